"""The `ensemble` judge: the majority of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from mmprobe.benchmarks.answers.coco import category_of
from mmprobe.benchmarks.judges import Item, Judge, JudgedClaim, Judgement, JudgeRequest, Match, PairLabel
from mmprobe.errors import InputError


def majority_claims(judgements: Sequence[Judgement[JudgedClaim]]) -> Judgement[JudgedClaim]:
    """The claims that more than half of the judges found, of those that scored the sample.

    Claims are the same if their type and category are; a puppy and a dog are of one category of COCO. One that a judge found twice is there twice if more than half
    found it twice. Their words, and their order, are those of the first judge that found them.

    Args:
        judgements: of one sample, one a judge. Unless more than half scored it, it stays unscored.

    Example:
        >>> dog, cat = JudgedClaim("remove", "dog", "no dog"), JudgedClaim("color", "cat", "a black cat")
        >>> found = majority_claims([Judgement((dog,)), Judgement((dog, cat)), Judgement((dog,))])
        >>> [claim.category for claim in found.items]
        ['dog']
    """
    scored = _scored(judgements)
    if scored is None:
        return _unscored(judgements)
    votes: Counter[tuple[str, str, int]] = Counter()
    first: dict[tuple[str, str, int], JudgedClaim] = {}
    for claims in scored:
        seen: Counter[tuple[str, str]] = Counter()
        for claim in claims:
            category = category_of(claim.category) or claim.category
            copy = (claim.type, category, seen[claim.type, category])
            seen[claim.type, category] += 1
            votes[copy] += 1
            first.setdefault(copy, claim)
    kept = tuple(claim for copy, claim in first.items() if 2 * votes[copy] > len(scored))
    return _judgement(kept, judgements)


def majority_labels(judgements: Sequence[Judgement[Item]], tie: Item | None = None) -> Judgement[Item]:
    """For each item the label that more than half of the judges gave, of those that scored the sample.

    Args:
        judgements: of one sample, one a judge, with labels of the same items. Unless more than half scored it, it
            stays unscored.
        tie: label of an item without a majority; None leaves the whole sample unscored, by disagreement.

    Raises:
        ValueError: judges labelled different numbers of items.

    Example:
        >>> majority_labels([Judgement(("a",)), Judgement(("a",)), Judgement(("b",))]).items
        ('a',)
    """
    scored = _scored(judgements)
    if scored is None:
        return _unscored(judgements)
    labels = []
    for given in zip(*scored, strict=True):
        label, votes = Counter(given).most_common(1)[0]
        if 2 * votes <= len(scored):
            if tie is None:
                return _unscored(judgements)
            label = tie
        labels.append(label)
    return _judgement(tuple(labels), judgements)


def _scored(judgements: Sequence[Judgement[Item]]) -> list[tuple[Item, ...]] | None:
    scored = [judgement.items for judgement in judgements if judgement.items is not None]
    return scored if 2 * len(scored) > len(judgements) else None


def _unscored(judgements: Sequence[Judgement[Any]]) -> Judgement[Any]:
    """Unscored for the most frequent reason, or by disagreement if more than half of the judges scored it."""
    reasons = Counter(judgement.unscored for judgement in judgements if judgement.unscored)
    reason = "disagreement" if _scored(judgements) is not None else reasons.most_common(1)[0][0]
    return _judgement(None, judgements, reason)


def _judgement(
    items: tuple[Any, ...] | None, judgements: Sequence[Judgement[Any]], reason: Any = None
) -> Judgement[Any]:
    calls = sum(judgement.calls for judgement in judgements)
    return Judgement(items, reason, calls, any(judgement.cut for judgement in judgements))


class EnsembleJudge:
    """A judge that asks several and takes their majority.

    Pairs of claims without a majority are ambiguous; a sample with a claim whose match has none is unscored.

    Args:
        judges: two or more; an odd number avoids most ties. They are its `members`, for what is asked of each.

    Raises:
        InputError: fewer than two judges.

    Example:
        >>> judge = EnsembleJudge([ModelJudge(name) for name in names])              # doctest: +SKIP
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        if len(judges) < 2:
            raise InputError("an ensemble needs two judges or more")
        self.members = list(judges)

    async def ask(self, questions: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """For each of a question's items the label that more than half of the judges gave."""
        found = await self._ask(lambda judge: judge.ask(questions))
        return [majority_labels(judgements) for judgements in zip(*found, strict=True)]

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """The differences that more than half of the judges found in each answer."""
        found = await self._ask(lambda judge: judge.extract(answers))
        return [majority_claims(judgements) for judgements in zip(*found, strict=True)]

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """For each sample's pairs of claims, the label that more than half of the judges gave."""
        found = await self._ask(lambda judge: judge.label_pairs(samples))
        return [majority_labels(judgements, tie="ambiguous") for judgements in zip(*found, strict=True)]

    async def match(self, samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Judgement[Match]]:
        """For each sample's claims, the match that more than half of the judges gave."""
        found = await self._ask(lambda judge: judge.match(samples))
        return [majority_labels(judgements) for judgements in zip(*found, strict=True)]

    async def _ask(self, ask: Callable[[Judge], Any]) -> list[Any]:
        found: list[Any] = [None] * len(self.members)
        fatal: list[InputError] = []

        async def run(place: int, judge: Judge) -> None:
            try:
                found[place] = await ask(judge)
            except InputError as error:
                fatal.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for place, judge in enumerate(self.members):
                group.start_soon(run, place, judge)
        if fatal:
            raise fatal[0]
        return found
