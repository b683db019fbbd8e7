"""COCO's instances file and its pictures, read so that one bad picture does not stop the others."""

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

from mmprobe.benchmarks.photo_pairs.masks import BadMask, Mask, mask_of
from mmprobe.errors import InputError
from mmprobe.samples import check_id, check_image

Pixels = NDArray[np.uint8]
_MOST_PIXELS = 20_000_000  # of a picture, ours: every instance's mask is held in memory at once


class Rejected(Exception):
    """Why a picture gives no pair.

    Attributes:
        stage: read, plan, check, difficulty or review.
    """

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


@dataclass(frozen=True)
class Listed:
    """A picture as the instances file lists it, unchecked.

    Attributes:
        name: what its pair is called: the file's name without its ending.
        about: its entry under `images`.
        annotations: its entries under `annotations`.
        categories: category names by COCO's ids.
    """

    name: str
    about: dict[str, Any]
    annotations: list[dict[str, Any]]
    categories: dict[Any, str]


@dataclass(frozen=True)
class Instance:
    """One object of a picture.

    Attributes:
        category: as the instances file names it.
        crowd: whether the mask is that of many objects.
        mask: booleans [height, width].
    """

    category: str
    crowd: bool
    mask: Mask


@dataclass(frozen=True)
class Photo:
    """A picture and its objects.

    Attributes:
        name: what its pair is called.
        source: id, file_name and license of its entry.
        pixels: red, green and blue, uint8 [height, width, 3].
    """

    name: str
    source: dict[str, Any]
    pixels: Pixels
    instances: tuple[Instance, ...]

    @property
    def count(self) -> int:
        """The number of objects, crowds left out."""
        return sum(not instance.crowd for instance in self.instances)


def list_photos(path: str | Path) -> list[Listed]:
    """The pictures of a COCO instances file, in its order.

    Raises:
        InputError: not such a file, or two pictures whose pairs would have the same name.

    Example:
        >>> list_photos("instances_val2017.json")[0].name                 # doctest: +SKIP
        '000000397133'
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        categories = {one["id"]: " ".join(str(one["name"]).lower().split()) for one in data["categories"]}
        photos = {
            one["id"]: Listed(PurePosixPath(str(one["file_name"])).stem, one, [], categories)
            for one in data["images"]
        }
        for annotation in data["annotations"]:
            photos[annotation["image_id"]].annotations.append(annotation)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (AttributeError, KeyError, TypeError, RecursionError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a COCO instances file with images, annotations and categories ({error!r:.80})"
        ) from None
    if not photos:
        raise InputError(f"{path}: lists no images")
    for category in categories.values():
        if not re.fullmatch(r"[\w .,'()/&-]{1,60}", category):
            raise InputError(f"{path}: category {category[:60]!r} is no name of 1 to 60 letters")
    seen: set[str] = set()
    for photo in photos.values():
        try:
            check_id(f"{photo.name}-different")  # the longest id of a question about the pair
        except ValueError:
            raise InputError(
                f"{path}: image {photo.name[:60]!r}: a pair cannot be called so; rename the file"
            ) from None
        if photo.name in seen:
            raise InputError(f"{path}: two images are called {photo.name!r}; their pairs would be, too")
        seen.add(photo.name)
    return list(photos.values())


def read_photo(listed: Listed, folder: Path) -> Photo:
    """A picture with its masks.

    Raises:
        Rejected: the picture is missing or not the one that was annotated, or a mask is none of it.
    """
    file = (folder / str(listed.about["file_name"])).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise Rejected("read", "its file is outside the folder of pictures")
    try:
        height, width = check_image(file, listed.name)
    except InputError as error:
        raise Rejected("read", str(error)) from None
    if [listed.about.get("height", height), listed.about.get("width", width)] != [height, width]:
        raise Rejected("read", f"the picture has {width} x {height} pixels, its annotations another number")
    if height * width > _MOST_PIXELS:
        raise Rejected("read", f"the picture has over {_MOST_PIXELS // 1_000_000} megapixels")
    try:
        with Image.open(file) as image:
            pixels = np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Rejected("read", f"the picture cannot be read ({error})") from None
    instances = tuple(_instance(one, listed, height, width) for one in listed.annotations)
    source = {key: listed.about.get(key) for key in ("id", "file_name", "license")}
    return Photo(listed.name, source, pixels, instances)


def _instance(told: dict[str, Any], listed: Listed, height: int, width: int) -> Instance:
    where = f"annotation {str(told.get('id'))[:40]}"
    category = listed.categories.get(told.get("category_id"))
    if category is None:
        raise Rejected("read", f"{where}: no such category")
    crowd = told.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise Rejected("read", f"{where}: iscrowd is neither 0 nor 1")
    try:
        mask = mask_of(told.get("segmentation"), height, width)
    except BadMask as error:
        raise Rejected("read", f"{where}: {error}") from None
    return Instance(category, bool(crowd), mask)


def share(mask: Mask) -> float:
    """The share of a picture that a mask covers, from 0 to 1."""
    return float(mask.mean()) if mask.size else math.nan
