"""The types of the judges: what a judge is asked, and the labels that it returns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

Unscored = Literal["garbage", "refused", "timeout", "error", "disagreement"]
MAX_ANSWER_CHARS = 20_000  # of an answer that a judge sees, ours; longer answers repeat themselves

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Judgement(Generic[Item_co]):
    """The labels of one sample by a judge, which may be empty; None if it is unscored, and the reason.

    `garbage` and `refused`: no reply was usable. `timeout` and `error`: the call failed. `disagreement`: the
    judges of an ensemble disagreed. `calls` counts model calls, and replies from the cache are none.
    `truncated`: the answer was too long, so that only its beginning was judged.
    """

    items: tuple[Item_co, ...] | None
    unscored: Unscored | None = None
    calls: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class JudgeRequest(Generic[Item]):
    """The task of a judge for one sample: the system prompt, and the data to label as JSON values.

    Data are fenced, so that text in them gives no orders, and each text is cut to `MAX_ANSWER_CHARS`. `read`
    turns a reply into labels, or raises `UnusableReply`. `images` are shown before the data. With labels that
    are `known` no model is called. `vote` finds the labels of an ensemble; None takes
    `ensemble.majority_labels`.
    """

    system: str
    data: Any
    read: Callable[[str], tuple[Item, ...]]
    images: tuple[Path, ...] = ()
    known: tuple[Item, ...] | None = None
    vote: Callable[[Sequence[Judgement[Item]]], Judgement[Item]] | None = None


class Judge(Protocol):
    """What every judge can do."""

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the labels that each request asks for, in the order of the requests."""


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
