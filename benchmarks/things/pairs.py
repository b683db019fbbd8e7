"""Write pairs of scenes of things and their questions as a data set: `samples.jsonl` and `images/`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.benchmarks.spd_faith.data import Difference, Pair, to_row
from mmprobe.benchmarks.synthetic.pairs import check_options, write_pairs
from mmprobe.benchmarks.synthetic.scene import MAX_DIFFERENCES
from mmprobe.benchmarks.things.questions import ThingQuestion, describe_edit, draw_questions
from mmprobe.benchmarks.things.scene import (
    OBJECT_COUNT,
    ThingEdit,
    ThingScene,
    apply_edits,
    draw_edits,
    draw_scene,
    edit_regions,
    render,
    thing_box,
)


def make_things(
    out: str | Path, n: int, seed: int, differences: tuple[int, int] = (0, MAX_DIFFERENCES)
) -> Path:
    """Draw `n` pairs of scenes of things, and write a question of every type about each pair.

    Pair k depends only on the seed and k: the same seed gives the same bytes, and a larger `n` only adds pairs.

    Args:
        out: output folder. It must not exist, or be empty.
        n: number of pairs.
        seed: source of all randomness.
        differences: smallest and largest number of differences. All numbers in this range are equally likely.

    Returns:
        The samples file, `out/samples.jsonl`.

    Raises:
        InputError: `out` is not empty, or an argument is out of range.

    Example:
        >>> make_things("things", n=8, seed=0)                      # doctest: +SKIP
        PosixPath('things/samples.jsonl')
    """
    out = Path(out)
    check_options(n, seed, differences, (0, MAX_DIFFERENCES), None)

    def draw(folder: Path, index: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng([seed, index])
        changes = int(rng.integers(differences[0], differences[1] + 1))
        fewest, most = OBJECT_COUNT
        scene = draw_scene(rng, int(rng.integers(max(fewest, changes), most + 1)))
        edits = draw_edits(rng, scene, changes)
        return _write_pair(folder, f"{index:04d}", scene, edits, draw_questions(rng, scene, edits))

    return write_pairs(out, n, ("images",), draw)


def _write_pair(
    out: Path, name: str, scene: ThingScene, edits: tuple[ThingEdit, ...], questions: Iterable[ThingQuestion]
) -> list[dict[str, Any]]:
    """Write the images of a pair and those that its questions would be answered otherwise about; return its sample lines."""
    second = apply_edits(scene, edits)
    pair = [_write_image(out, f"{name}{letter}", each) for letter, each in (("a", scene), ("b", second))]
    objects = [_list_objects(each) for each in (scene, second)]
    row = to_row(Pair(name, tuple(map(_tell_difference, edits))))
    lines = []
    for question in questions:
        line: dict[str, Any] = {
            "id": f"{name}-{question.type}",
            "question": question.text,
            "answer": question.answer,
        }
        if question.edit is None:
            regions = [region for edit in edits for region in edit_regions(edit)]
            line |= {"images": pair, "metadata": {"type": question.type, "objects": objects, **row}}
        else:
            regions = edit_regions(question.edit, [0])
            kind = "add" if question.edit.before is None else question.edit.type
            other = {
                "counterfactual": [_write_image(out, f"{name}a-{kind}", question.edit.apply(scene))],
                "counterfactual_answer": question.otherwise,
            }
            line |= {
                "images": pair[:1],
                "metadata": {"type": question.type, "objects": objects[:1], **other},
            }
        if question.type in ("same", "different"):
            line |= {"pair_id": name, "polarity": question.type}
        line["regions"] = [region.model_dump(mode="json") for region in regions]
        lines.append(line)
    return lines


def _write_image(out: Path, name: str, scene: ThingScene) -> str:
    """Write the pixels of a scene, and return the file's path in the data set."""
    file = f"images/{name}.png"
    if not (out / file).exists():
        Image.fromarray(render(scene)).save(out / file)
    return file


def _list_objects(scene: ThingScene) -> list[dict[str, Any]]:
    return [
        {"name": thing.name, "colour": thing.colour, "place": thing.place, "bbox": thing_box(thing)}
        for thing in scene.things
    ]


def _tell_difference(edit: ThingEdit) -> Difference:
    """Return a difference of a pair as SPD-Faith Bench states one."""
    assert edit.before is not None
    words: tuple[str | None, str | None] = (None, None)
    if edit.after is not None:
        is_colour = edit.type == "color"
        words = (
            (edit.before.colour, edit.after.colour) if is_colour else (edit.before.place, edit.after.place)
        )
    x, y, width, height = map(float, thing_box(edit.before))
    regions = tuple(edit_regions(edit))
    return Difference(edit.type, edit.name, describe_edit(edit), (x, y, width, height), *words, regions)
