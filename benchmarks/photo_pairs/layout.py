"""Write pairs in the published layout, and the files that list all pairs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import name_colour
from mmprobe.benchmarks.photo_pairs.masks import Mask, bounding_box, encode_mask, shift_mask
from mmprobe.benchmarks.photo_pairs.photos import Instance, Photo, Pixels, Rejection
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import Pair, name_place, read_pairs
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, Difficulty
from mmprobe.errors import InputError
from mmprobe.files import append_lines, cut_torn_line, write_atomic
from mmprobe.samples import read_picture

PhotoRow = dict[str, Any]
_QUALITY = 95  # of the JPEG files, our choice; without chroma subsampling, equal blocks stay equal
_PLURAL_CATEGORIES = frozenset(("skis", "scissors"))


def describe_edit(photo: Photo, edit: PhotoEdit) -> str:
    """Return one sentence for an edit, such as `The car on the left was removed.`"""
    instance = photo.instances[edit.instance]
    box = bounding_box(instance.mask)
    size = (instance.mask.shape[1], instance.mask.shape[0])
    old_place = name_place(box, size)
    n_same_category = sum(other.category == instance.category for other in photo.instances)
    subject = f"The {instance.category}"
    if edit.shift is not None:
        new_place = name_place((box[0] + edit.shift[0], box[1] + edit.shift[1], *box[2:]), size)
        if new_place != old_place:
            return f"{subject} moved from the {old_place} to the {new_place}."
        right, down = edit.shift
        side = ("left", "right")[right > 0] if abs(right) >= abs(down) else ("top", "bottom")[down > 0]
        return f"{subject} moved to the {side}."
    if n_same_category > 1:
        preposition = "in" if " " in old_place or old_place == "center" else "on"
        subject += f" {preposition} the {old_place}"
    if edit.colour is not None:
        return f"{subject} changed from {name_colour(photo.pixels, instance.mask)} to {edit.colour}."
    return f"{subject} {'were' if instance.category in _PLURAL_CATEGORIES else 'was'} removed."


def list_objects(photo: Photo, edits: Iterable[PhotoEdit]) -> list[list[PhotoRow]]:
    """Return the objects of the original and of the edited image, each in COCO's form: category, bbox, segmentation, iscrowd.

    The bbox is that of the mask. An object without a mask has neither.
    """
    by_instance = {edit.instance: edit for edit in edits}
    images: list[list[PhotoRow]] = [[], []]
    for index, instance in enumerate(photo.instances):
        edit = by_instance.get(index)
        shift = edit.shift if edit else None
        images[0].append(_make_object(instance, instance.mask))
        if edit is None or edit.type != "remove":
            images[1].append(
                _make_object(instance, shift_mask(instance.mask, shift) if shift else instance.mask)
            )
    return images


def _make_object(instance: Instance, mask: Mask) -> PhotoRow:
    found: PhotoRow = {"category": instance.category, "iscrowd": int(instance.crowd)}
    if mask.any():
        found |= {"bbox": list(bounding_box(mask)), "segmentation": encode_mask(mask)}
    return found


def make_row(photo: Photo, edits: Iterable[PhotoEdit], properties: Mapping[str, Any]) -> PhotoRow:
    """Return the published row of a pair, with `regions` in the form of samples, `objects` in COCO's, and further properties."""
    edits = list(edits)
    differences, regions = [], []
    for edit in edits:
        mask = photo.instances[edit.instance].mask
        boxes = [bounding_box(mask)]
        if edit.shift is not None:
            boxes.append(bounding_box(shift_mask(mask, edit.shift)))
        own_regions = [{"image": image, "box": list(box)} for image in (0, 1) for box in boxes]
        box_fields = dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), boxes[0], strict=True))
        differences.append(
            {
                "type": edit.type,
                "category": photo.instances[edit.instance].category,
                "description": describe_edit(photo, edit),
                **box_fields,
                "regions": own_regions,
            }
        )
        regions += own_regions
    return {
        "image_id": photo.name,
        "image1": f"{photo.name}_original.jpg",
        "image2": f"{photo.name}_modified_final.jpg",
        "num_differences": len(differences),
        "differences": differences,
        **properties,
        "regions": regions,
        "objects": list_objects(photo, edits),
        "reviewed": False,
    }


def write_jpeg(pixels: Pixels, file: Path) -> Pixels:
    """Write an image as JPEG, and return its pixels as read back from the file."""
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return np.array(read_picture(file))


def write_metadata(folder: Path, row: PhotoRow) -> None:
    """Write the `metadata.json` of a pair."""
    write_atomic(folder / "metadata.json", json.dumps(row, indent=1, ensure_ascii=False) + "\n")


def find_pair_folders(out: Path) -> dict[str, Path]:
    """Return the folders of the finished pairs, by id, sorted."""
    files = [file for level in DIFFICULTIES for file in (out / level).glob("*/metadata.json")]
    return {file.parent.name: file.parent for file in sorted(files, key=lambda file: file.parent.name)}


def move_pair(folder: Path, out: Path, difficulty: Difficulty, name: str) -> None:
    """Move the folder of a finished pair to its final place. Only complete pairs appear there."""
    target = out / difficulty / name
    target.parent.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(folder, target)


def read_row(folder: Path) -> PhotoRow:
    """Return the row of a finished pair."""
    return json.loads((folder / "metadata.json").read_text(encoding="utf-8"))


def write_lists(out: Path) -> Path | None:
    """Write the rows of each difficulty and `samples.jsonl`; return this file, or None if there are no pairs."""
    rows = {name: read_row(folder) for name, folder in find_pair_folders(out).items()}
    for level in DIFFICULTIES:
        lines = ""
        for name, row in rows.items():
            if row["difficulty"] == level:
                images = {key: f"{level}/{name}/{row[key]}" for key in ("image1", "image2")}
                lines += _to_line({**row, **images})
        if lines:
            write_atomic(out / f"{level}.jsonl", lines)
        else:
            (out / f"{level}.jsonl").unlink(missing_ok=True)
    if not rows:
        (out / "samples.jsonl").unlink(missing_ok=True)
        return None
    return write_atomic(out / "samples.jsonl", _make_samples(out, rows))


def _make_samples(out: Path, rows: Mapping[str, PhotoRow]) -> str:
    """Return the lines of the benchmark's questions, with the truth of each pair in their metadata."""
    pairs = {pair.id: pair for pair in read_pairs(out) if pair.id in rows}
    truth = build_published_truth(list(pairs.values()))
    lines = []
    for sample in truth.samples:
        pair_id, question_type = truth.questions[sample.id]
        row = rows[pair_id]
        properties = {key: value for key, value in row.items() if key not in ("image1", "image2", "regions")}
        if "objects" in row:
            properties["objects"] = _name_colours(row["objects"], pairs[pair_id])
        line: dict[str, Any] = {
            "id": sample.id,
            "images": [f"{row['difficulty']}/{pair_id}/{row[key]}" for key in ("image1", "image2")],
            "question": sample.question,
            "answer": _make_answer(question_type, row),
        }
        if sample.pair_id:
            line |= {"pair_id": sample.pair_id, "polarity": sample.polarity}
        line |= {"regions": row["regions"], "metadata": {**sample.metadata, **properties}}
        lines.append(_to_line(line))
    return "".join(lines)


def _name_colours(objects: list[list[PhotoRow]], pair: Pair) -> list[list[PhotoRow]]:
    """Return the objects of both images, those that got another colour with the colours that the description of it names."""
    named = [[dict(each) for each in image] for image in objects]
    for difference in pair.differences:
        if difference.type == "color" and difference.box is not None:
            for image, colour in zip(named, (difference.before, difference.after), strict=True):
                own = [each for each in image if each.get("bbox") == list(map(int, difference.box))]
                if len(own) == 1 and colour:
                    own[0]["colour"] = colour
    return named


def _make_answer(question_type: str, row: PhotoRow) -> str:
    caption = " ".join(difference["description"] for difference in row["differences"])
    count = row["num_differences"]
    if question_type == "count":
        return "There is 1 difference." if count == 1 else f"There are {count} differences."
    return {"same": "No. ", "different": "Yes. "}.get(question_type, "") + caption


def _to_line(data: PhotoRow) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def append_rejection(out: Path, name: str, rejection: Rejection) -> None:
    """Append a line with image_id, stage and reason to `rejected.jsonl`."""
    reason = " ".join(str(rejection).split())
    line = {"image_id": name, "stage": rejection.stage, "reason": reason}
    append_lines(out / "rejected.jsonl", [line])


def read_rejections(out: Path) -> list[dict[str, str]]:
    """Return the lines of `rejected.jsonl`. One cut off is deleted, so that its image is tried again."""
    file = out / "rejected.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if cut_torn_line(file) else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in ("image_id", "stage", "reason")})
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{file}, line {number}: damaged; choose another folder") from None
    return rows
