"""A pair's files in the published layout, and the files that list all pairs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.photo_pairs.colours import colour_of
from mmprobe.benchmarks.photo_pairs.masks import box_of, shifted
from mmprobe.benchmarks.photo_pairs.photos import Photo, Pixels, Rejected
from mmprobe.benchmarks.photo_pairs.planner import Edit, place_of
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import read_pairs
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, Difficulty
from mmprobe.errors import InputError

Row = dict[str, Any]
_QUALITY = 95  # of the JPEG files, ours; colours are not subsampled, which keeps equal blocks equal
_MANY = frozenset(("skis", "scissors"))  # categories whose name is a plural


def describe(photo: Photo, edit: Edit) -> str:
    """One sentence for one edit, which a reviewer may put better: `The car on the left was removed.`"""
    instance = photo.instances[edit.instance]
    box = box_of(instance.mask)
    here = place_of(box, instance.mask.shape)
    same = sum(one.category == instance.category for one in photo.instances)
    thing = f"The {instance.category}"
    if edit.shift is not None:
        there = place_of((box[0] + edit.shift[0], box[1] + edit.shift[1], *box[2:]), instance.mask.shape)
        if there != here:
            return f"{thing} moved from the {here} to the {there}."
        right, down = edit.shift
        way = ("left", "right")[right > 0] if abs(right) >= abs(down) else ("top", "bottom")[down > 0]
        return f"{thing} moved to the {way}."
    if same > 1:
        thing += f" {'in' if ' ' in here or here == 'center' else 'on'} the {here}"
    if edit.colour is not None:
        return f"{thing} changed from {colour_of(photo.pixels, instance.mask)} to {edit.colour}."
    return f"{thing} {'were' if instance.category in _MANY else 'was'} removed."


def row_of(photo: Photo, edits: Iterable[Edit], facts: Mapping[str, Any]) -> Row:
    """The published row of a pair, and more: `regions` as samples have them, and the facts given."""
    differences, regions = [], []
    for edit in edits:
        mask = photo.instances[edit.instance].mask
        boxes = [box_of(mask)]
        if edit.shift is not None:
            boxes.append(box_of(shifted(mask, edit.shift)))
        told = dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), boxes[0], strict=True))
        differences.append(
            {
                "type": edit.type,
                "category": photo.instances[edit.instance].category,
                "description": describe(photo, edit),
                **told,
            }
        )
        regions += [{"image": image, "box": list(box)} for image in (0, 1) for box in boxes]
    return {
        "image_id": photo.name,
        "image1": f"{photo.name}_original.jpg",
        "image2": f"{photo.name}_modified_final.jpg",
        "num_differences": len(differences),
        "differences": differences,
        **facts,
        "regions": regions,
        "reviewed": False,
    }


def encode(pixels: Pixels, file: Path) -> Pixels:
    """Write a picture as JPEG.

    Returns:
        The picture as the file gives it back.
    """
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, subsampling=0)
    with Image.open(file) as image:
        return np.array(image.convert("RGB"))


def write_metadata(folder: Path, row: Row) -> None:
    """A pair's `metadata.json`, written whole."""
    write_atomic(folder / "metadata.json", json.dumps(row, indent=1, ensure_ascii=False) + "\n")


def pair_folders(out: Path) -> dict[str, Path]:
    """The finished pairs by id, sorted."""
    files = [file for level in DIFFICULTIES for file in (out / level).glob("*/metadata.json")]
    return {file.parent.name: file.parent for file in sorted(files, key=lambda file: file.parent.name)}


def keep_pair(made: Path, out: Path, level: Difficulty, name: str) -> None:
    """Move a finished pair's folder to its place; before, it is not there at all."""
    place = out / level / name
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    os.replace(made, place)


def read_row(folder: Path) -> Row:
    """A finished pair's row."""
    return json.loads((folder / "metadata.json").read_text(encoding="utf-8"))


def write_lists(out: Path) -> Path | None:
    """`easy.jsonl`, `medium.jsonl`, `hard.jsonl`: the rows; `samples.jsonl`: every question of every pair.

    Returns:
        The samples file; None where there are no pairs, and then no lists.
    """
    rows = {name: read_row(folder) for name, folder in pair_folders(out).items()}
    for level in DIFFICULTIES:
        lines = ""
        for name, row in rows.items():
            if row["difficulty"] == level:
                images = {key: f"{level}/{name}/{row[key]}" for key in ("image1", "image2")}
                lines += _line({**row, **images})
        if lines:
            write_atomic(out / f"{level}.jsonl", lines)
        else:
            (out / f"{level}.jsonl").unlink(missing_ok=True)
    if not rows:
        (out / "samples.jsonl").unlink(missing_ok=True)
        return None
    return write_atomic(out / "samples.jsonl", _samples(out, rows))


def _samples(out: Path, rows: Mapping[str, Row]) -> str:
    """The benchmark's own questions, in its words, with the truth of each pair in their metadata."""
    truth = build_published_truth([pair for pair in read_pairs(out) if pair.id in rows])
    lines = []
    for sample in truth.samples:
        pair, kind = truth.questions[sample.id]
        row = {key: value for key, value in rows[pair].items() if key not in ("image1", "image2", "regions")}
        told: dict[str, Any] = {
            "id": sample.id,
            "images": [
                f"{rows[pair]['difficulty']}/{pair}/{rows[pair][key]}" for key in ("image1", "image2")
            ],
            "question": sample.question,
            "answer": _answer(kind, row),
        }
        if sample.pair_id:
            told |= {"pair_id": sample.pair_id, "polarity": sample.polarity}
        lines.append(
            _line({**told, "regions": rows[pair]["regions"], "metadata": {**sample.metadata, **row}})
        )
    return "".join(lines)


def _answer(kind: str, row: Row) -> str:
    caption = " ".join(one["description"] for one in row["differences"])
    number = row["num_differences"]
    if kind == "count":
        return "There is 1 difference." if number == 1 else f"There are {number} differences."
    return {"same": "No. ", "different": "Yes. "}.get(kind, "") + caption


def _line(data: Row) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def reject(out: Path, name: str, reason: Rejected) -> None:
    """Add one line: image_id, stage (read, plan, check, difficulty, review) and reason."""
    line = json.dumps({"image_id": name, "stage": reason.stage, "reason": " ".join(str(reason).split())})
    with (out / "rejected.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_rejected(out: Path) -> list[dict[str, str]]:
    """The rejected pictures; a last line that was cut off is taken away, so that its picture is tried again.

    Raises:
        InputError: another line is damaged.
    """
    file = out / "rejected.jsonl"
    if not file.is_file():
        return []
    whole, _, rest = file.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        write_atomic(file, whole + "\n" if whole else "")
    rows = []
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in ("image_id", "stage", "reason")})
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{file}, line {number}: damaged; choose another --out") from None
    return rows
