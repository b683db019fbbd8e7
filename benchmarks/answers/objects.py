"""Which objects a picture shows: from COCO's annotations, or from the scenes of the synthetic world."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from mmprobe.errors import InputError
from mmprobe.samples import Sample


def read_coco_objects(
    path: str | Path, key: Literal["file_name", "id"] = "file_name"
) -> dict[str, frozenset[str]]:
    """The categories that each picture of a COCO instances file shows, crowds too.

    Args:
        path: `instances_val2014.json` or another of its form.
        key: what to call a picture.

    Raises:
        InputError: not such a file, or two of its pictures are called the same.

    Example:
        >>> read_coco_objects("instances_val2014.json")["COCO_val2014_000000000042.jpg"]  # doctest: +SKIP
        frozenset({'dog'})
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        names = {category["id"]: str(category["name"]) for category in data["categories"]}
        shown: dict[Any, set[str]] = {image["id"]: set() for image in data["images"]}
        for annotation in data["annotations"]:
            shown[annotation["image_id"]].add(names[annotation["category_id"]])
        found = [(str(image[key]), frozenset(shown[image["id"]])) for image in data["images"]]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (KeyError, TypeError, RecursionError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a COCO instances file with images, annotations and categories ({error!r:.80})"
        ) from None
    counted = Counter(name for name, _ in found)
    if len(counted) < len(found):
        name, count = counted.most_common(1)[0]
        raise InputError(f"{path}: {count} images have the {key} {name!r}; each must have its own")
    return dict(found)


def read_synthetic_objects(samples: Iterable[Sample]) -> dict[Path, list[tuple[str, str, str]]]:
    """Colour, shape and cell of everything that the pictures of the synthetic world's samples show.

    Raises:
        InputError: a sample does not say what its pictures show.

    Example:
        >>> facts = {"objects": [["red star B2", "blue heart A4"]]}
        >>> read_synthetic_objects([Sample(id="1", images=["a.png"], question="?", metadata=facts)])
        {PosixPath('a.png'): [('red', 'star', 'B2'), ('blue', 'heart', 'A4')]}
    """
    shown = {}
    for sample in samples:
        listed = sample.metadata.get("objects", [])
        if len(listed) < len(sample.images):
            raise InputError(f"sample {sample.id}: does not say what its pictures show; is it of make-pairs?")
        for picture, objects in zip(sample.images, listed, strict=False):
            things = [thing.split() for thing in objects]
            shown[picture] = [(colour, shape, cell) for colour, shape, cell in things]
    return shown
