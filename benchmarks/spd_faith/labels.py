"""The labels of the answers about one pair, and how they are put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmprobe.benchmarks.answers.lexical.claims import Claim
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.match import Error, Label
from mmprobe.errors import InputError

Word = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class PairLabels:
    """The labels of the answers about one pair, from whatever judge.

    Attributes:
        pair: the pair and its truth.
        same, different: the answers to the two binary questions; None where one was not asked.
        count: the number of differences stated; None if not asked or not stated.
        count_asked: whether it was asked.
        listed: the differences listed, for TF1 and CF1; None if not asked or not understood, and empty if the
            answer says that there are none.
        listed_asked: whether it was asked.
        found: for each claim of the answer to 'There are n^ differences. Can you find them?' its error, or None
            where it is faithful; None instead of all if not asked or not understood.
        found_asked: whether it was asked.
        steps, steps_asked: the same of the step-by-step form.
        agreement: for each pair of claims of the two binary answers whether they agree; empty without claims.
        unscored: which of `listed`, `found` and `steps` a judge failed at; nothing is said of these answers, not even
            where one that was not understood counts as 0.
    """

    pair: Pair
    same: Word | None = None
    different: Word | None = None
    count: int | None = None
    count_asked: bool = False
    listed: tuple[Claim, ...] | None = None
    listed_asked: bool = False
    found: tuple[Error | None, ...] | None = None
    found_asked: bool = False
    steps: tuple[Error | None, ...] | None = None
    steps_asked: bool = False
    agreement: tuple[Label, ...] = field(default=())
    unscored: frozenset[str] = frozenset()


QUESTION_TYPES = ("same", "different", "count", "find", "list", "steps")


def by_pair(truths: Sequence[Pair], responses: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The answers by pair and question type, checked.

    Raises:
        InputError: as `score_responses`.
    """
    owner: dict[str, str] = {}
    if len({pair.id for pair in truths}) < len(truths):
        raise InputError("truth: an id is used for two pairs")
    for pair in truths:
        for name in {pair.id, *pair.question_ids}:
            if owner.setdefault(name, pair.id) != pair.id:
                raise InputError(f"truth: id {name!r} stands for two pairs")
    answers: dict[str, dict[str, str]] = {}
    for number, line in enumerate(responses, 1):
        where = f"response {number}"
        told, kind, text = line.get("id"), line.get("question_type"), line.get("response", 0)
        if kind not in QUESTION_TYPES:
            raise InputError(f"{where}: question_type is {kind!r}; use one of {', '.join(QUESTION_TYPES)}")
        if not isinstance(told, str | int) or str(told) not in owner:
            raise InputError(f"{where}: id {told!r} is in no pair of the data")
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where}: field 'response' is missing or no text")
        mine = answers.setdefault(owner[str(told)], {})
        if kind in mine:
            raise InputError(f"{where}: {kind!r} of {told!r} was answered already")
        mine[kind] = (text or "").encode("utf-8", "replace").decode("utf-8")  # half an emoji cannot be stored
    if not answers:
        raise InputError("there are no responses to score")
    return answers


@dataclass(frozen=True)
class AnswerClaims:
    """What a judge made of one answer about differences.

    Attributes:
        claims: what the answer claims and denies; None if the judge failed.
        understood: whether it claims a difference, or says that there are none.
        errors: for each claim that is no denial what is wrong with it, None where nothing is; None instead of all if
            the answer was not understood or the judge failed.
        unscored: why the judge failed.
    """

    claims: tuple[Claim, ...] | None
    understood: bool
    errors: tuple[Error | None, ...] | None
    unscored: str | None = None
