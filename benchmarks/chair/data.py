"""Captions, and the objects that images truly show, for CHAIR."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.chair.metrics import Mentions
from mmprobe.errors import InputError


def read_captions(path: str | Path) -> dict[str, str]:
    """Read captions in COCO's form for results: a JSON list of `{"image_id": …, "caption": …}`.

    Returns:
        Captions by image id.

    Raises:
        InputError: not such a file, or a picture with two captions.

    Example:
        >>> read_captions("captions.json")["42"]                                   # doctest: +SKIP
        'A dog on a sofa.'
    """
    rows = _json(Path(path))
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a JSON list of objects with image_id and caption")
    captions: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or "image_id" not in row or not isinstance(row.get("caption"), str):
            raise InputError(f"{path}, entry {number}: has no image_id, or no caption that is a text")
        name = str(row["image_id"])
        if name in captions:
            raise InputError(f"{path}, entry {number}: picture {name} has a caption already")
        captions[name] = row["caption"]
    return captions


def add_reference_captions(
    truth: Mapping[str, Collection[str]], path: str | Path, mentions: Mentions
) -> dict[str, frozenset[str]]:
    """The truth with what people's captions name added, as the authors count it: objects without a mask are there too.

    Args:
        truth: objects of each picture by image id, as `read_coco_objects(…, key="id")` gives them.
        path: COCO's `captions_val2014.json`.
        mentions: from a text to the objects it names.

    Raises:
        InputError: not such a file.

    Example:
        >>> truth = read_coco_objects("instances_val2014.json", key="id")                # doctest: +SKIP
        >>> truth = add_reference_captions(truth, "captions_val2014.json", mentions)  # doctest: +SKIP
    """
    data = _json(Path(path))
    whole = {name: set(objects) for name, objects in truth.items()}
    try:
        for annotation in data["annotations"]:
            if str(annotation["image_id"]) in whole:
                named = {category for category, _ in mentions(annotation["caption"])}
                whole[str(annotation["image_id"])] |= named
    except (KeyError, TypeError):
        raise InputError(
            f"{path}: not a COCO captions file, whose annotations have image_id and caption"
        ) from None
    return {name: frozenset(objects) for name, objects in whole.items()}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, RecursionError, ValueError):
        raise InputError(f"{path}: not a JSON file that can be read") from None
