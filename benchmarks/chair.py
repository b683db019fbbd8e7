"""CHAIR: which objects that a caption names are not in the picture.

Rohrbach et al. (2018), "Object Hallucination in Image Captioning", arXiv 1809.02156. Words become objects by a
`mentions` function: `mmprobe.benchmarks.coco.mentions` for COCO's 80 categories and their synonyms,
`shape_mentions` for the shapes of the synthetic world.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmprobe.benchmarks.results import Direction, Metric, count_metric, of_samples
from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample

Mentions = Callable[
    [str], Sequence[tuple[str, tuple[int, int]]]
]  # each category named, and where: start, end

_SHAPE = re.compile(rf"\b({'|'.join(SHAPES)})(?:e?s)?\b", re.IGNORECASE)


def shape_mentions(text: str) -> list[tuple[str, tuple[int, int]]]:
    """The shapes of the synthetic world that a text names, in order, with their spans.

    Example:
        >>> shape_mentions("Two stars and a red cross.")
        [('star', (4, 9)), ('cross', (20, 25))]
    """
    return [(found[1].lower(), found.span()) for found in _SHAPE.finditer(text)]


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
        truth: objects of each picture by image id, as `coco_objects(…, key="id")` gives them.
        path: COCO's `captions_val2014.json`.
        mentions: from a text to the objects it names.

    Raises:
        InputError: not such a file.

    Example:
        >>> truth = coco_objects("instances_val2014.json", key="id")                # doctest: +SKIP
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


def synthetic_truth(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """The shapes in the picture of each sample of the synthetic world that asks for a description, by id.

    Raises:
        InputError: none asks for one.

    Example:
        >>> facts = {"type": "describe", "objects": [["red star B2"], []]}
        >>> synthetic_truth([Sample(id="0", question="Describe the picture.", metadata=facts)])
        {'0': frozenset({'star'})}
    """
    truth = {
        sample.id: frozenset(thing.split()[1] for thing in sample.metadata["objects"][0])
        for sample in samples
        if sample.metadata.get("type") == "describe" and sample.metadata.get("objects")
    }
    if not truth:
        raise InputError("CHAIR: no sample of the synthetic world asks for a description")
    return truth


# Counts of a caption: mentions, hallucinated ones, whether it has one, captions, true objects named, true
# objects, and whether it names any object.
_MENTIONS, _FALSE, _HAS_FALSE, _CAPTIONS, _FOUND, _TRUE, _NAMES = range(7)


def _share(over: int, under: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda counts: counts[..., over] / counts[..., under]


_METRICS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Direction]] = {
    "chair_s": (_share(_HAS_FALSE, _CAPTIONS), "lower"),
    "chair_i": (_share(_FALSE, _MENTIONS), "lower"),
    "recall": (_share(_FOUND, _TRUE), "higher"),
    "names_objects": (_share(_NAMES, _CAPTIONS), "neither"),
}


def score_chair(
    captions: Mapping[str, str], truth: Mapping[str, Collection[str]], mentions: Mentions
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """CHAIR_s, CHAIR_i and the recall of objects, each with an interval over captions.

    - chair_s: captions that name an object which is not there / captions.
    - chair_i: mentions of objects that are not there / mentions. An object named twice is two mentions, as in
      the authors' code. Undefined (None) where no caption names any object.
    - recall: true objects named / true objects, summed over pictures first (micro).
    - names_objects: share of captions that name any object at all; what says nothing hallucinates nothing.

    Args:
        captions: by picture's or sample's id.
        truth: the objects that each picture shows, by the same id. One without a caption lowers the coverage.
        mentions: from a text to the objects it names.

    Returns:
        Metrics by name, and a row a picture with its mentions and the hallucinated ones among them.

    Raises:
        InputError: a caption of a picture that the truth does not hold.

    Example:
        >>> metrics, rows = score_chair({"1": "A star and a ring."}, {"1": ["star", "heart"]}, shape_mentions)
        >>> metrics["chair_i"].value, metrics["chair_s"].value, metrics["recall"].value, rows[0]["hallucinated"]
        (0.5, 1.0, 0.5, ['ring'])
    """
    for name in captions:
        if name not in truth:
            raise InputError(f"CHAIR: caption {name!r} is of no picture whose objects are known")
    counts: list[list[int] | None] = []
    rows = []
    for name, objects in truth.items():
        caption = captions.get(name)
        row: dict[str, Any] = {"id": name, "answer": caption, "objects": sorted(set(objects))}
        if caption is None:
            counts.append(None)
            rows.append(row | {"mentions": None, "hallucinated": None, "faithful": None})
            continue
        named = [category for category, _ in mentions(caption)]
        false = [category for category in named if category not in objects]
        found = set(named) & set(objects)
        counts.append([len(named), len(false), bool(false), 1, len(found), len(set(objects)), bool(named)])
        rows.append(row | {"mentions": named, "hallucinated": false, "faithful": not false})
    metrics = {name: count_metric(counts, of, direction) for name, (of, direction) in _METRICS.items()}
    return of_samples(metrics, list(truth)), rows
