"""Read captions, and the objects that images show, for CHAIR (arXiv:1809.02156)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from mmprobe.benchmarks.chair.metrics import FindMentions
from mmprobe.errors import InputError
from mmprobe.files import read_json


def read_captions(path: str | Path) -> dict[str, str]:
    """Read captions in COCO's results form, a JSON list of `{"image_id": …, "caption": …}`."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a JSON list of objects with image_id and caption")
    captions: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or "image_id" not in row or not isinstance(row.get("caption"), str):
            raise InputError(f"{path}, entry {number}: has no image_id, or its caption is not a text")
        name = str(row["image_id"])
        if name in captions:
            raise InputError(f"{path}, entry {number}: image {name} has a caption already")
        captions[name] = row["caption"]
    return captions


def add_reference_captions(
    truth: Mapping[str, Collection[str]], path: str | Path, find_mentions: FindMentions
) -> dict[str, frozenset[str]]:
    """Add the objects that people's captions name, also without a mask, as the authors do."""
    data = read_json(path)
    combined = {name: set(objects) for name, objects in truth.items()}
    try:
        for annotation in data["annotations"]:
            name = str(annotation["image_id"])
            if name in combined:
                combined[name] |= {category for category, _ in find_mentions(annotation["caption"])}
    except (KeyError, TypeError):
        raise InputError(
            f"{path}: not a COCO captions file, whose annotations have image_id and caption"
        ) from None
    return {name: frozenset(objects) for name, objects in combined.items()}
