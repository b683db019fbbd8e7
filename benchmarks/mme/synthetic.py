"""Build MME's questions over the synthetic world, so that it runs offline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmprobe.benchmarks.answers.objects import read_synthetic_objects
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, GRID, SHAPES
from mmprobe.samples import Sample


def synthetic_mme(samples: Sequence[Sample], seed: int = 0) -> list[Sample]:
    """MME over the pictures of the synthetic world: existence, count, position and color, two questions each.

    The false question names a shape that is not there, a wrong number, cell or colour. Only the questions of
    existence are of the kind that the embedded model was trained on.

    Args:
        samples: of `make-pairs`; each picture they show is asked about once.
        seed: of all draws.

    Raises:
        InputError: a sample does not say what its pictures show.

    Example:
        >>> synthetic_mme(load_samples("pairs/samples.jsonl"))[0].question          # doctest: +SKIP
        'Is there a circle?'
    """
    shown = read_synthetic_objects(samples)
    made = []
    for index, (image, objects) in enumerate(sorted(shown.items())):
        for subtask, texts in _questions(objects, np.random.default_rng([seed, index])).items():
            for number, (text, label) in enumerate(zip(texts, ("yes", "no"), strict=True), 1):
                facts = {"subtask": subtask, "image": image.name}
                made.append(
                    Sample(
                        id=f"{subtask}-{index:04d}-{number}",
                        images=[image],
                        question=text,
                        system=SYSTEM,
                        answer=label,
                        metadata=facts,
                    )
                )
    return made


def _questions(
    objects: Sequence[tuple[str, str, str]], rng: np.random.Generator
) -> dict[str, tuple[str, str]]:
    """For each subtask the question whose answer is yes, and the one whose answer is no."""
    colour, shape, cell = objects[int(rng.integers(len(objects)))]
    shapes = {shape for _, shape, _ in objects}
    cells = [f"{column}{row + 1}" for column in COLUMNS for row in range(GRID)]

    def other(than: set[str], pool: Sequence[str]) -> str:
        left = [name for name in pool if name not in than]
        return left[int(rng.integers(len(left)))]

    count = len(objects)
    wrong = other({str(count)}, [str(number) for number in range(1, len(SHAPES))])
    return {
        "existence": (f"Is there a {shape}?", f"Is there a {other(shapes, SHAPES)}?"),
        "count": (_how_many(str(count)), _how_many(wrong)),
        "position": (f"Is the {shape} at {cell}?", f"Is the {shape} at {other({cell}, cells)}?"),
        "color": (f"Is the {shape} {colour}?", f"Is the {shape} {other({colour}, list(COLOURS))}?"),
    }


def _how_many(count: str) -> str:
    return "Is there 1 shape?" if count == "1" else f"Are there {count} shapes?"
