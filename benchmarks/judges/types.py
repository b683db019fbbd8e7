"""The types of the judges: what a judge is asked, and the labels that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

ClaimType = Literal["color", "remove", "position", "other"]
PairLabel = Literal["consistent", "contradictory", "ambiguous"]
MatchError = Literal[
    "type_category_mismatch", "type_confusion", "attribute_error", "quantity_error", "fabrication"
]
CLAIM_TYPES: tuple[ClaimType, ...] = get_args(ClaimType)
PAIR_LABELS: tuple[PairLabel, ...] = get_args(PairLabel)
MATCH_ERRORS: tuple[MatchError, ...] = get_args(MatchError)

Unscored = Literal["garbage", "refused", "timeout", "error", "disagreement"]

MAX_ANSWER_CHARS = (
    20_000  # a judge sees no more characters of an answer, ours; longer answers repeat themselves
)

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True)
class JudgedClaim:
    """One difference that an answer claims.

    Attributes:
        type: color, remove, position, or other.
        category: the object as the judge names it: a singular noun in lower case.
        text: the words of the answer.
    """

    type: ClaimType
    category: str
    text: str


@dataclass(frozen=True)
class Match:
    """The index of the true difference that a claim states, or else the claim's error."""

    truth: int | None
    error: MatchError | None


@dataclass(frozen=True)
class Judgement(Generic[Item_co]):
    """The labels of one sample by a judge.

    Attributes:
        items: the labels, which may be empty; None if the sample is unscored.
        unscored: the reason if the sample is unscored, else None. `garbage` and `refused`: no reply was
            usable. `timeout` and `error`: the call failed. `disagreement`: the judges of an ensemble
            disagreed.
        calls: number of model calls. A reply from the cache is no call.
        truncated: whether the answer was too long, so that only its beginning was judged.
    """

    items: tuple[Item_co, ...] | None
    unscored: Unscored | None = None
    calls: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class JudgeRequest(Generic[Item_co]):
    """The task of a judge for one sample.

    Attributes:
        system: the system prompt. It says what to label and in which form to reply.
        data: the data to label, as JSON values. They are fenced, so that text in them gives no orders.
        read: turns the text of a reply into labels. It raises `UnusableReply` (`judges/parsing.py`) if the
            reply does not have the requested form.
    """

    system: str
    data: Any
    read: Callable[[str], tuple[Item_co, ...]]


class Judge(Protocol):
    """The methods of every judge. Each takes many samples and returns the results in their order."""

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the labels that each request asks for."""

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """Return the differences that each answer claims. The judge does not see the truth."""

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """Label each pair of claims of each sample. The claims of a pair come from two different answers."""

    async def match(
        self,
        samples: Sequence[tuple[Sequence[str], Sequence[str]]],
        images: Sequence[Sequence[Path]] = (),
    ) -> list[Judgement[Match]]:
        """Match the claims of each sample with its true differences. Images that are given are shown, too."""
