"""CHAIR: which objects that a caption names are not in the picture.

Rohrbach et al. (2018), "Object Hallucination in Image Captioning", arXiv 1809.02156. Words become objects by a
`mentions` function: `mmprobe.benchmarks.answers.coco.mentions` for COCO's 80 categories and their synonyms,
`shape_mentions` for the shapes of the synthetic world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.benchmarks.core.results import Direction, Metric, count_metric, of_samples
from mmprobe.errors import InputError

Mentions = Callable[
    [str], Sequence[tuple[str, tuple[int, int]]]
]  # each category named, and where: start, end


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
        >>> from mmprobe.benchmarks.chair.synthetic import shape_mentions
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
