"""Read the objects that images show, from COCO's annotations or from the synthetic world."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from mmprobe.errors import InputError
from mmprobe.samples import Sample, regular_file


def read_coco_objects(
    path: str | Path, key: Literal["file_name", "id"] = "file_name"
) -> dict[str, frozenset[str]]:
    """Return the categories that each image of a COCO instances file shows, with crowds, by the field `key`.

    Raises InputError for another file, or two images of one key.
    """
    try:
        data = json.loads(regular_file(Path(path)).read_text(encoding="utf-8-sig"))
        names = {category["id"]: str(category["name"]) for category in data["categories"]}
        categories: dict[Any, set[str]] = {image["id"]: set() for image in data["images"]}
        for annotation in data["annotations"]:
            categories[annotation["image_id"]].add(names[annotation["category_id"]])
        items = [(str(image[key]), frozenset(categories[image["id"]])) for image in data["images"]]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (KeyError, TypeError, RecursionError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a COCO instances file with images, annotations and categories ({error!r:.80})"
        ) from None
    counts = Counter(name for name, _ in items)
    if len(counts) < len(items):
        name, count = counts.most_common(1)[0]
        raise InputError(f"{path}: {count} images have the {key} {name!r}; each must have its own")
    return dict(items)


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
        if len(contents) < len(sample.images):
            raise InputError(f"sample {sample.id}: has no objects of its images; is it from make-pairs?")
        for image, objects in zip(sample.images, contents, strict=False):
            fields = [obj.split() for obj in objects]
            objects_by_image[image] = [(colour, shape, cell) for colour, shape, cell in fields]
    return objects_by_image
