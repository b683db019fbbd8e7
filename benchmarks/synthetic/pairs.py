"""Write scene pairs and their questions as a data set: `samples.jsonl`, `images/` and `scenes/`. Read its objects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmprobe.benchmarks.synthetic.questions import SYSTEM, Question, describe_edit, draw_questions
from mmprobe.benchmarks.synthetic.scene import (
    DIFFICULTIES,
    MAX_DIFFERENCES,
    Difficulty,
    Mix,
    ScenePair,
    draw_count,
    draw_level,
    draw_pair,
    edit_boxes,
    is_drawn,
    render,
)
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, json_lines
from mmprobe.ledger import LOCK_NAMES, lock_folder
from mmprobe.samples import Sample


def make_pairs(
    out: str | Path,
    n: int,
    seed: int,
    differences: tuple[int, int] = (0, MAX_DIFFERENCES),
    difficulty: Difficulty | None = None,
    mix: Mix = "even",
) -> Path:
    """Draw `n` pairs and write every question about every pair.

    Pair k depends only on the seed and k: the same seed gives the same bytes, and a larger `n` only adds
    pairs.

    Args:
        out: output folder. It must not exist, or be empty.
        n: number of pairs.
        seed: source of all randomness.
        differences: smallest and largest number of differences. All numbers in this range are equally likely.
        difficulty: easy, medium or hard; None for all three in turn.
        mix: `paper` draws both as in SPD-Faith Bench (`mmprobe.benchmarks.synthetic.scene`), with up to 3
            differences.

    Returns:
        The samples file, `out/samples.jsonl`.

    Raises:
        InputError: `out` is not empty, or an argument is out of range.

    Example:
        >>> make_pairs("pairs", n=8, seed=0)                        # doctest: +SKIP
        PosixPath('pairs/samples.jsonl')
    """
    out = Path(out)
    check_options(n, seed, differences, (0, MAX_DIFFERENCES), difficulty)

    def draw(folder: Path, index: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng([seed, index])
        if mix == "paper":
            own = np.random.default_rng([seed, index, 1])
            level, count = draw_level(own), draw_count(own, MAX_DIFFERENCES)
        else:
            level = difficulty or DIFFICULTIES[index % len(DIFFICULTIES)]
            count = int(rng.integers(differences[0], differences[1] + 1))
        pair = draw_pair(rng, level, count)
        return _write_pair(folder, f"{index:04d}", pair, draw_questions(rng, pair))

    return write_pairs(out, n, ("images", "scenes"), draw)


def write_pairs(
    out: Path, n: int, folders: Sequence[str], draw: Callable[[Path, int], list[dict[str, Any]]]
) -> Path:
    """Write a data set of n pairs, and return its `samples.jsonl`.

    Args:
        folders: that the data set has beside it.
        draw: function from the folder of the data set and a pair's number, which writes its files and returns its sample lines.
    """
    with staging_folder(out) as part:
        for name in folders:
            (part / name).mkdir()
        numbers = tqdm(range(n), desc="pairs", unit="pair", disable=None)
        lines = [json.dumps(line) + "\n" for index in numbers for line in draw(part, index)]
        (part / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    return out / "samples.jsonl"


@contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, `out/.part`, and move its contents to `out` at the end.

    It is removed if the block fails or is interrupted; one that a killed process left is replaced.
    `samples.jsonl` moves last, so a data set with this file is complete. It is in `out`, which may be a
    link, a mount or the working directory, which a folder beside it cannot replace. Raises InputError where
    `out` is not empty, cannot be created, or another process writes to it.
    """
    with lock_folder(out, "drawing into it"):
        part = check_no_link(out / ".part")
        if any(path.name not in {".part", *LOCK_NAMES} for path in out.iterdir()):
            raise InputError(f"{out}: exists and is not an empty folder; choose another folder")
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            yield part
            for path in sorted(part.iterdir(), key=lambda path: path.name == "samples.jsonl"):
                path.replace(out / path.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _write_pair(out: Path, name: str, pair: ScenePair, questions: Iterable[Question]) -> list[dict[str, Any]]:
    """Write the images and the scenes of a pair, and return its sample lines."""
    files = []
    for letter, scene in zip("ab", (pair.first, pair.second), strict=True):
        files.append(f"images/{name}{letter}.png")
        Image.fromarray(render(scene)).save(out / files[-1])
    scene_file = f"scenes/{name}.json"
    scenes = {"first": pair.first.to_json(), "second": pair.second.to_json()}
    (out / scene_file).write_text(json.dumps(scenes, indent=1) + "\n", encoding="utf-8")
    objects = [
        [f"{obj.colour} {obj.shape} {obj.cell}" for obj in scene.objects]
        for scene in (pair.first, pair.second)
    ]
    differences: list[dict[str, Any]] = [
        {
            "type": edit.type,
            "shape": edit.before.shape,
            "sentence": describe_edit(edit),
            "regions": [{"image": image, "box": box} for image, box in edit_boxes(edit)],
        }
        for edit in pair.edits
    ]
    regions = [region for difference in differences for region in difference["regions"]]
    lines = []
    for number, question in enumerate(questions):
        line: dict[str, Any] = {
            "id": f"{name}-{number}-{question.type}",
            "images": [files[image] for image in question.images],
            "question": question.text,
            "system": SYSTEM,
            "answer": question.answer,
        }
        if question.type in ("same", "different"):
            line |= {"pair_id": name, "polarity": question.type}
        line["regions"] = [region for region in regions if region["image"] in question.images]
        line["metadata"] = {
            "type": question.type,
            "difficulty": pair.difficulty,
            "differences": differences,
            "objects": objects,
            "scene": scene_file,
        }
        lines.append(line)
    return lines


def is_synthetic(path: Path) -> bool:
    """Return whether `make_pairs` wrote a file, by its first line. Raises InputError if that is not JSON."""
    _, line = next(json_lines(path), (0, None))
    metadata = line.get("metadata") if isinstance(line, dict) and "choices" not in line else None
    return isinstance(metadata, dict) and "scene" in metadata


def check_options(
    n: int, seed: int, differences: tuple[int, int], possible: tuple[int, int], difficulty: str | None
) -> None:
    """Check the arguments of any source of pairs. Raises InputError that names the one out of range.

    Example:
        >>> check_options(3, 0, (1, 3), (0, 3), "hard")
    """
    low, high = differences
    minimum, maximum = possible
    if not minimum <= low <= high <= maximum:
        raise InputError(f"differences {low}-{high}: must be in {minimum}-{maximum}")
    if difficulty not in (None, *DIFFICULTIES):
        raise InputError(f"difficulty {difficulty}: must be one of {', '.join(DIFFICULTIES)}")
    if n < 1:
        raise InputError(f"n {n}: must be 1 or more")
    if seed < 0:
        raise InputError(f"seed {seed}: must be 0 or more")


def read_synthetic_objects(samples: Iterable[Sample]) -> dict[Path, list[tuple[str, str, str]]]:
    """Return the colour, shape and cell of each object in each image of the synthetic world.

    Example:
        >>> metadata = {"objects": [["red star B2", "blue heart A4"]]}
        >>> read_synthetic_objects([Sample(id="1", images=["a.png"], question="?", metadata=metadata)])
        {PosixPath('a.png'): [('red', 'star', 'B2'), ('blue', 'heart', 'A4')]}
    """
    objects_by_image = {}
    for sample in samples:
        contents = sample.metadata.get("objects", [])
        if not is_drawn(contents) or len(contents) < len(sample.images):
            raise InputError(f"sample {sample.id}: has no objects of its images; is it from make-pairs?")
        for image, objects in zip(sample.images, contents, strict=False):
            fields = [obj.split() for obj in objects]
            objects_by_image[image] = [(colour, shape, cell) for colour, shape, cell in fields]
    return objects_by_image
