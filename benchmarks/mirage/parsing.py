"""Read the replies of judges of MIRAGE (arXiv:2505.24238)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from mmprobe.benchmarks.judges.parsing import StrictReply, UnusableReply, read_reply
from mmprobe.benchmarks.mirage.data import MAX_ITEMS
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Extraction, Kind, Matches, MatchLabel

Score = Annotated[int, Field(ge=1, le=5)]


class _Marked(StrictReply):
    marked: str


class _Matches(StrictReply):
    predicted: list[MatchLabel]
    true: list[MatchLabel]


_KIND_FIELDS: dict[str, Any] = dict.fromkeys(KINDS, (bool, ...))
_SCORE_FIELDS: dict[str, Any] = dict.fromkeys(DIMENSIONS, (Score, ...))
_Kinds: Any = create_model("_Kinds", __base__=StrictReply, **_KIND_FIELDS)
_Scores: Any = create_model("_Scores", __base__=StrictReply, **_SCORE_FIELDS)


# Each reader raises `UnusableReply` where the form is wrong.
def read_extraction(reply: str) -> Extraction:
    """Return the steps and claims between the tags of a reply, 1 to 10 of each (section 3.2 and figure 8).

    Example:
        >>> read_extraction('{"marked": "<step>Halve 6.</step> <claim>It is 3.</claim>"}').claims
        ('It is 3.',)
    """
    marked = read_reply(reply, _Marked).marked
    return Extraction(_find_tagged(marked, "step"), _find_tagged(marked, "claim"))


def _find_tagged(text: str, tag: Literal["step", "claim"]) -> tuple[str, ...]:
    items = []
    open_tag: tuple[str, int] | None = None  # name, and the place where its text begins
    for match in re.finditer(r"<(/?)(step|claim)>", text, re.IGNORECASE):
        is_closing = match.group(1) == "/"
        name = match.group(2).lower()
        if is_closing != (open_tag is not None) or (open_tag is not None and open_tag[0] != name):
            raise UnusableReply(f"a tag at character {match.start()} does not pair with the tag before it")
        if open_tag is None:
            open_tag = (name, match.end())
            continue
        item = " ".join(text[open_tag[1] : match.start()].split())
        if not item:
            raise UnusableReply(f"an empty <{name}> stands at character {open_tag[1]}")
        if name == tag:
            items.append(item)
        open_tag = None
    if open_tag is not None:
        raise UnusableReply(f"a <{open_tag[0]}> is not closed")
    if not 1 <= len(items) <= MAX_ITEMS:
        raise UnusableReply(f"it holds {len(items)} <{tag}> tags, 1 to {MAX_ITEMS} are asked for")
    return tuple(items)


def read_matches(reply: str, predicted: int, true: int) -> Matches:
    """Return the labels of so many predicted and true items (figure 9)."""
    matches = read_reply(reply, _Matches)
    for labels, count, name in ((matches.predicted, predicted, "predicted"), (matches.true, true, "true")):
        if len(labels) != count:
            raise UnusableReply(f"{name!r} holds {len(labels)} labels for {count} items")
    return Matches(tuple(matches.predicted), tuple(matches.true))


def read_hallucinations(reply: str) -> dict[Kind, bool]:
    """Return whether a judge found each of the five kinds of hallucination (figure 10)."""
    verdicts = read_reply(reply, _Kinds)
    return {kind: getattr(verdicts, kind) for kind in KINDS}


def read_scores(reply: str) -> tuple[int, ...]:
    """Return the five scores of a reasoning chain, 1 to 5, in the order of `DIMENSIONS` (figure 11)."""
    scores = read_reply(reply, _Scores)
    return tuple(getattr(scores, dimension) for dimension in DIMENSIONS)
