"""Make MME's questions (arXiv:2306.13394) about images of the synthetic world, so that it runs offline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmprobe.benchmarks.synthetic.pairs import read_synthetic_objects
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, GRID, SHAPES
from mmprobe.samples import Sample


def draw_synthetic_mme(samples: Sequence[Sample], seed: int = 0) -> list[Sample]:
    """Draw two questions of existence, count, position and color about each image of the synthetic world.

    The false question names an absent shape, or a wrong number, cell or colour. The embedded model was
    trained only on questions of existence.
    """
    objects_by_image = read_synthetic_objects(samples)
    questions = []
    for index, (image, objects) in enumerate(sorted(objects_by_image.items())):
        for subtask, texts in _draw_texts(objects, np.random.default_rng([seed, index])).items():
            for number, (text, label) in enumerate(zip(texts, ("yes", "no"), strict=True), 1):
                metadata = {"subtask": subtask, "image": image.name}
                questions.append(
                    Sample(
                        id=f"{subtask}-{index:04d}-{number}",
                        images=[image],
                        question=text,
                        system=SYSTEM,
                        answer=label,
                        metadata=metadata,
                    )
                )
    return questions


def _draw_texts(
    objects: Sequence[tuple[str, str, str]], rng: np.random.Generator
) -> dict[str, tuple[str, str]]:
    """Return for each subtask a question with the answer yes and one with the answer no."""
    colour, shape, cell = objects[int(rng.integers(len(objects)))]
    shapes = {shape for _, shape, _ in objects}
    cells = [f"{column}{row + 1}" for column in COLUMNS for row in range(GRID)]

    def draw_other(excluded: set[str], names: Sequence[str]) -> str:
        others = [name for name in names if name not in excluded]
        return others[int(rng.integers(len(others)))]

    count = len(objects)
    wrong_count = draw_other({str(count)}, [str(number) for number in range(1, len(SHAPES))])
    return {
        "existence": (f"Is there a {shape}?", f"Is there a {draw_other(shapes, SHAPES)}?"),
        "count": (_ask_count(str(count)), _ask_count(wrong_count)),
        "position": (f"Is the {shape} at {cell}?", f"Is the {shape} at {draw_other({cell}, cells)}?"),
        "color": (f"Is the {shape} {colour}?", f"Is the {shape} {draw_other({colour}, list(COLOURS))}?"),
    }


def _ask_count(count: str) -> str:
    return "Is there 1 shape?" if count == "1" else f"Are there {count} shapes?"
