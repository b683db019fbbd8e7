"""CHAIR: the objects in a caption that the image does not show.

Rohrbach et al. (2018), "Object Hallucination in Image Captioning", arXiv:1809.02156. A `FindMentions`
function finds the objects of a text: `mmprobe.benchmarks.answers.coco.find_objects` for COCO's 80 categories
and their synonyms, `mmprobe.benchmarks.chair.synthetic.find_drawn` for drawn shapes and things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.core.results import Combine, Direction, Metric, count_metric, share, with_ids

FindMentions = Callable[[str], Sequence[tuple[str, tuple[int, int]]]]
"""Takes a text and returns the category and the span (start, end) of each object that it names."""

# Columns of a caption's counts: mentions; hallucinated mentions; 1 if there are any; captions; shown objects
# that are named; shown objects; 1 if the caption names any object.
_MENTIONS, _HALLUCINATED, _HAS_HALLUCINATED, _CAPTIONS, _NAMED_OBJECTS, _OBJECTS, _NAMES_OBJECTS = range(7)


_METRICS: dict[str, tuple[Combine, Direction]] = {
    "chair_s": (share(_HAS_HALLUCINATED, _CAPTIONS), "lower"),
    "chair_i": (share(_HALLUCINATED, _MENTIONS), "lower"),
    "recall": (share(_NAMED_OBJECTS, _OBJECTS), "higher"),
    "names_objects": (share(_NAMES_OBJECTS, _CAPTIONS), "neither"),
}


def make_record(
    name: str, caption: str | None, objects: Collection[str], find_mentions: FindMentions
) -> dict[str, Any]:
    """Return the record of an image: its caption, its objects, and the mentions and hallucinated ones."""
    record: dict[str, Any] = {"id": name, "answer": caption, "objects": sorted(set(objects))}
    if caption is None:
        return record | {"mentions": None, "hallucinated": None, "faithful": None}
    mentions = [category for category, _ in find_mentions(caption)]
    hallucinated = [category for category in mentions if category not in objects]
    return record | {"mentions": mentions, "hallucinated": hallucinated, "faithful": not hallucinated}


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute CHAIR_s, CHAIR_i and the recall of objects. An image without a caption lowers the coverage.

    - chair_s: share of captions with a hallucinated object
    - chair_i: share of hallucinated mentions; an object named twice is two mentions, as in the authors' code
    - recall: share of the shown objects that are named, summed over images first
    - names_objects: share of captions that name an object; without objects, nothing is hallucinated
    """
    counts = [_count(record) for record in records]
    metrics = {
        name: count_metric(counts, combine, direction) for name, (combine, direction) in _METRICS.items()
    }
    return with_ids(metrics, [record["id"] for record in records])


def _count(record: Mapping[str, Any]) -> list[int] | None:
    mentions, hallucinated, objects = record["mentions"], record["hallucinated"], record["objects"]
    if mentions is None:
        return None
    n_named_objects = len(set(mentions) & set(objects))
    return [
        len(mentions),
        len(hallucinated),
        int(bool(hallucinated)),
        1,
        n_named_objects,
        len(objects),
        int(bool(mentions)),
    ]


def metrics_by_length(
    captions: Mapping[str, str | None],
    objects: Mapping[str, Collection[str]],
    find_mentions: FindMentions,
    lengths: Sequence[int],
) -> dict[str, Metric]:
    """Return the metrics of captions that are cut after so many words, and of a list that needs no image.

    A longer caption names more objects and hallucinates more, so methods are compared at one length: `chair_i[words=16]` is of captions
    of at most 16 words. `chair_i[matched=16]` is of those that had so many, so that two methods are compared where both did.
    `chair_i[commonest=3]` is of the three objects that most of the other images show, in place of a caption: what is had without
    looking.

    Args:
        captions: by image; None where there is none.
        objects: that each image shows.
        lengths: in words for cuts, and in objects for the list.

    Example:
        >>> from mmprobe.benchmarks.chair.synthetic import find_drawn
        >>> metrics = metrics_by_length({"1": "A star and a ring."}, {"1": ["star"]}, find_drawn, [2])
        >>> metrics["chair_i[words=2]"].value, metrics["recall[words=2]"].value
        (0.0, 1.0)
    """
    metrics: dict[str, Metric] = {}
    shown = Counter(name for each in objects.values() for name in set(each))
    for length in lengths:
        cut = [
            make_record(name, _cut(captions.get(name), length), own, find_mentions)
            for name, own in objects.items()
        ]
        listed = []
        for name, own in objects.items():
            others = {each: -(count - (each in set(own))) for each, count in shown.items()}
            common = sorted((each for each in others if others[each]), key=lambda each: (others[each], each))
            false = [each for each in common[:length] if each not in own]
            listed.append(
                {"id": name, "mentions": common[:length], "hallucinated": false, "objects": sorted(set(own))}
            )
        matched = [
            each
            if len((each["answer"] or "").split()) == length
            else make_record(each["id"], None, (), find_mentions)
            for each in cut
        ]
        for kind, records in (("words", cut), ("matched", matched), ("commonest", listed)):
            metrics |= {f"{name}[{kind}={length}]": each for name, each in compute_metrics(records).items()}
    return metrics


def _cut(caption: str | None, length: int) -> str | None:
    """Return the first words of a caption."""
    return None if caption is None else " ".join(caption.split()[:length])
