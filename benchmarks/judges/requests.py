"""Send requests by name and read their labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from mmprobe.benchmarks.judges.types import Item, Judge, Judgement, JudgeRequest

Name = TypeVar("Name", bound=Hashable)


async def ask_by_name(
    judge: Judge, requests: Mapping[Name, JudgeRequest[Item]]
) -> dict[Name, Judgement[Item]]:
    """Return the judgement of each request, under the name of the request."""
    judgements = await judge.ask(list(requests.values()))
    return dict(zip(requests, judgements, strict=True))


def first_item(judgement: Judgement[Item] | None) -> Item | None:
    """Return the first label of a judgement, or None if there is none.

    Example:
        >>> first_item(Judgement(("right",))), first_item(Judgement(None, "refused"))
        ('right', None)
    """
    return judgement.items[0] if judgement is not None and judgement.items else None
