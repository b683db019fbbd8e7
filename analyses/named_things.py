"""The words of an answer that name a thing, and that thing's own regions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmprobe.cache import Trace
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.samples import Region, Sample

NAME_KEYS = ("shape", "category", "object")
Things = Mapping[str, Sequence[Region]]
_REGIONS = TypeAdapter(list[Region])
_GENERATED = GROUP_NAMES.index("generated")
_LOOK_AHEAD = 8  # characters of the answer that a token's text may be away from the last token's end


def read_things(sample: Sample) -> dict[str, list[Region]]:
    """Return the names of the changed things, in lower case, each with its own regions.

    The names are `shape`, `category` and `object` of `metadata.differences`. A difference's regions are its
    `regions`, or its `box` in every image. Without both, they are all regions of the sample if it has one
    difference, and unknown (an empty list) if it has several. Two differences of one name share their regions.

    Example:
        >>> change = {"type": "color", "shape": "Star", "regions": [{"image": 0, "box": [0, 0, 9, 9]}]}
        >>> sample = Sample(id="a", images=["a.png"], question="?", metadata={"differences": [change]})
        >>> read_things(sample)
        {'star': [Region(image=0, box=(0, 0, 9, 9))]}
    """
    listed = sample.metadata.get("differences")  # some data sets hold their number
    differences = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    by_name: dict[str, list[list[Region]]] = {}
    for difference in differences:
        regions = _own_regions(difference, sample)
        if not regions and len(differences) == 1:
            regions = list(sample.regions)
        for name in {str(difference[key]).strip().lower() for key in NAME_KEYS if difference.get(key)}:
            by_name.setdefault(name, []).append(regions)
    return {
        name: [region for regions in parts for region in regions] if all(parts) else []
        for name, parts in by_name.items()
    }


def _own_regions(difference: dict[str, Any], sample: Sample) -> list[Region]:
    """Return a difference's regions on the sample's images; none if it has none or they are malformed."""
    images, box = len(sample.images), difference.get("box")
    listed = difference.get("regions")
    if listed is None and isinstance(box, list | tuple):
        listed = [{"image": image, "box": box} for image in range(images)]
    try:
        regions = _REGIONS.validate_python(listed or [])
    except ValidationError:
        return []
    return [region for region in regions if region.image < images]


def find_mentions(trace: Trace, names: Sequence[str]) -> dict[str, list[list[int]]]:
    """Return the steps of each mention of a name in an answer: one list of steps a mention.

    A mention is the whole name, in any case, with or without a plural's s; a name of several words or tokens
    is one mention. The longest name wins: a `teddy bear` does not mention a `bear`. Names that are not in the
    answer are left out.

    Example:
        >>> find_mentions(run["0001"], ["star", "traffic light"])   # doctest: +SKIP
        {'star': [[3], [17]], 'traffic light': [[8, 9]]}
    """
    if not names:
        return {}
    texts = trace.tokens["text"].values[trace.tokens["group"].values == _GENERATED]
    answer, spans = align_tokens([str(text) for text in texts], trace.answer)
    ordered = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"({re.escape(name)})" for name in ordered)
    mentions: dict[str, list[list[int]]] = {}
    for match in re.finditer(rf"(?<!\w)(?:{pattern})(?:e?s)?(?!\w)", answer, re.IGNORECASE):
        assert match.lastindex is not None
        name = ordered[match.lastindex - 1]
        first, last = match.span(match.lastindex)
        steps = [step for step, (start, end) in enumerate(spans) if start < last and end > first]
        if steps:
            mentions.setdefault(name, []).append(steps)
    return mentions


def align_tokens(texts: Sequence[str], answer: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the answer, and the place (start, end) of each token's text in it.

    Some tokenizers drop the space before a word where they decode a token on its own. So the texts are looked
    up in the answer, one after another. A token that is not in the answer, such as a control token, has an
    empty place. If no answer is stored, it is the joined texts.

    Example:
        >>> align_tokens(["A", "tra", "ffic", "light", "</s>"], "A traffic light")[1]
        [(0, 1), (2, 5), (5, 9), (10, 15), (15, 15)]
    """
    answer = answer or "".join(texts)
    spans, cursor = [], 0
    for text in texts:
        word = text.strip()
        start = answer.find(word, cursor, cursor + len(word) + _LOOK_AHEAD) if word else -1
        if start < 0:
            spans.append((cursor, cursor))
            continue
        cursor = start + len(word)
        spans.append((start, cursor))
    return answer, spans
