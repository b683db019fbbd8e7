"""Read the replies of judges of MIRAGE (arXiv:2505.24238)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from mmprobe.benchmarks.judges.parsing import UnusableReply, reader
from mmprobe.benchmarks.mirage.data import MAX_ITEMS
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Extraction, Matches, MatchLabel

# Each reader raises `UnusableReply` where the form is wrong.
_read_marked = reader(marked=str)
_read_matches = reader(predicted=list[MatchLabel], true=list[MatchLabel])
read_hallucinations = reader(**dict.fromkeys(KINDS, bool))  # one verdict a kind (figure 10)
read_scores = reader(**dict.fromkeys(DIMENSIONS, Annotated[int, Field(ge=1, le=5)]))  # figure 11


def read_extraction(reply: str) -> Extraction:
    """Return the steps and claims between the tags of a reply, 1 to 10 of each (section 3.2 and figure 8)."""
    (marked,) = _read_marked(reply)
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
    of_predicted, of_true = _read_matches(reply)
    for labels, count, name in ((of_predicted, predicted, "predicted"), (of_true, true, "true")):
        if len(labels) != count:
            raise UnusableReply(f"{name!r} holds {len(labels)} labels for {count} items")
    return Matches(tuple(of_predicted), tuple(of_true))
