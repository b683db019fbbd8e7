"""Read COCO's instances file and its images. A bad image does not stop the others."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import BadMask, Mask, decode_mask
from mmprobe.errors import InputError
from mmprobe.files import check_readable
from mmprobe.samples import check_id, check_image, read_picture

Pixels = NDArray[np.uint8]
_MAX_PIXELS = 20_000_000  # of an image, our choice: the masks of all its instances are held in memory at once


class Rejection(Exception):
    """The reason why an image gives no pair, and its stage: read, plan, check, difficulty or review."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


@dataclass(frozen=True)
class ImageEntry:
    """An image as the instances file lists it, not checked yet.

    `name`, the id of its pair, is that of the file without its suffix. `data` and `annotations` are its
    entries, `categories` the names by COCO id.
    """

    name: str
    data: dict[str, Any]
    annotations: list[dict[str, Any]]
    categories: dict[Any, str]


@dataclass(frozen=True)
class Instance:
    """One object of an image: its category, whether the mask covers many objects (crowd), and the mask."""

    category: str
    crowd: bool
    mask: Mask


@dataclass(frozen=True)
class Photo:
    """An image, RGB uint8 [height, width, 3], its objects, the id of its pair, and id, file_name and license."""

    name: str
    source: dict[str, Any]
    pixels: Pixels
    instances: tuple[Instance, ...]

    @property
    def n_objects(self) -> int:
        """The number of objects, without crowds."""
        return sum(not instance.crowd for instance in self.instances)


def read_entries(path: str | Path) -> list[ImageEntry]:
    """Return the images of a COCO instances file, in its order, each with another id of its pair."""
    try:
        data = json.loads(check_readable(Path(path)).read_text(encoding="utf-8-sig"))
        categories = {item["id"]: " ".join(str(item["name"]).lower().split()) for item in data["categories"]}
        entries = {
            image["id"]: ImageEntry(PurePosixPath(str(image["file_name"])).stem, image, [], categories)
            for image in data["images"]
        }
        for annotation in data["annotations"]:
            entries[annotation["image_id"]].annotations.append(annotation)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (AttributeError, KeyError, TypeError, RecursionError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a COCO instances file with images, annotations and categories ({error!r:.80})"
        ) from None
    if not entries:
        raise InputError(f"{path}: lists no images")
    for category in categories.values():
        if not re.fullmatch(r"[\w .,'()/&-]{1,60}", category):
            raise InputError(f"{path}: category {category[:60]!r} is not a name of 1 to 60 letters")
    _check_names(path, [entry.name for entry in entries.values()])
    return list(entries.values())


def _check_names(path: str | Path, names: list[str]) -> None:
    used: set[str] = set()
    for name in names:
        try:
            check_id(f"{name}-different")  # the longest id of a question about the pair
        except ValueError:
            raise InputError(
                f"{path}: image {name[:60]!r}: not a valid id of a pair; rename the file"
            ) from None
        if name in used:
            raise InputError(f"{path}: two images are called {name!r}; their pairs would have the same id")
        used.add(name)


def read_photo(entry: ImageEntry, folder: Path) -> Photo:
    """Read an image with its masks. Raises Rejection where these do not fit it, or it cannot be read."""
    file = (folder / str(entry.data["file_name"])).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise Rejection("read", "its file is outside the folder of images")
    try:
        height, width = check_image(file, entry.name)
    except InputError as error:
        raise Rejection("read", str(error)) from None
    if [entry.data.get("height", height), entry.data.get("width", width)] != [height, width]:
        raise Rejection("read", f"the image has {width} x {height} pixels, its annotations another number")
    if height * width > _MAX_PIXELS:
        raise Rejection("read", f"the image has over {_MAX_PIXELS // 1_000_000} megapixels")
    try:
        pixels = np.array(read_picture(file))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Rejection("read", f"the image cannot be read ({error})") from None
    instances = tuple(_read_instance(item, entry, height, width) for item in entry.annotations)
    source = {key: entry.data.get(key) for key in ("id", "file_name", "license")}
    return Photo(entry.name, source, pixels, instances)


def _read_instance(annotation: dict[str, Any], entry: ImageEntry, height: int, width: int) -> Instance:
    where = f"annotation {str(annotation.get('id'))[:40]}"
    category = entry.categories.get(annotation.get("category_id"))
    if category is None:
        raise Rejection("read", f"{where}: no such category")
    crowd = annotation.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise Rejection("read", f"{where}: iscrowd is neither 0 nor 1")
    try:
        mask = decode_mask(annotation.get("segmentation"), height, width)
    except BadMask as error:
        raise Rejection("read", f"{where}: {error}") from None
    return Instance(category, bool(crowd), mask)


def covered_share(mask: Mask) -> float:
    """Return the share of an image that a mask covers, from 0 to 1."""
    return float(mask.mean()) if mask.size else math.nan
