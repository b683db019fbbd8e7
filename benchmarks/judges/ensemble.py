"""The `ensemble` judge: the majority of several judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.judges.types import (
    Item,
    Judge,
    JudgedClaim,
    Judgement,
    JudgeRequest,
    Match,
    PairLabel,
)
from mmprobe.errors import InputError


class EnsembleJudge:
    """A judge that asks several judges and returns their majority.

    A pair of claims without a majority is ambiguous. A sample is unscored if one of its claims has no match
    with a majority.

    Args:
        judges: two or more; an odd number avoids most ties. They are the attribute `members`.

    Raises:
        InputError: fewer than two judges.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        if len(judges) < 2:
            raise InputError(f"an ensemble needs two judges or more, not {len(judges)}")
        self.members = list(judges)

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return, for each item of a request, the label that more than half of the judges gave."""
        judgements = await self._ask_members(lambda judge: judge.ask(requests))
        return [majority_labels(votes) for votes in zip(*judgements, strict=True)]

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """Return the differences that more than half of the judges found in each answer."""
        judgements = await self._ask_members(lambda judge: judge.extract(answers))
        return [majority_claims(votes) for votes in zip(*judgements, strict=True)]

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """Return, for each pair of claims, the label that more than half of the judges gave."""
        judgements = await self._ask_members(lambda judge: judge.label_pairs(samples))
        return [majority_labels(votes, tie="ambiguous") for votes in zip(*judgements, strict=True)]

    async def match(
        self,
        samples: Sequence[tuple[Sequence[str], Sequence[str]]],
        images: Sequence[Sequence[Path]] = (),
    ) -> list[Judgement[Match]]:
        """Return, for each claim, the match that more than half of the judges gave."""
        judgements = await self._ask_members(lambda judge: judge.match(samples, images))
        return [majority_labels(votes) for votes in zip(*judgements, strict=True)]

    async def _ask_members(self, ask: Callable[[Judge], Any]) -> list[Any]:
        """Ask all judges at the same time. The first error cancels the others."""
        results: list[Any] = [None] * len(self.members)
        fatal: list[InputError | OSError] = []

        async def run(index: int, judge: Judge) -> None:
            try:
                results[index] = await ask(judge)
            except (InputError, OSError) as error:  # OSError: a full disk under the cache
                fatal.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index, judge in enumerate(self.members):
                group.start_soon(run, index, judge)
        if fatal:
            raise fatal[0]
        return results


def majority_claims(judgements: Sequence[Judgement[JudgedClaim]]) -> Judgement[JudgedClaim]:
    """Return the claims that more than half of the scoring judges found.

    Two claims are equal if they have the same type and category. Words for one category of COCO, such as
    puppy and dog, are equal. If a judge found a claim twice, the second copy is a claim of its own. The words
    and the order of the claims come from the first judge that found them.

    Args:
        judgements: the judgements of one sample, one per judge. The sample stays unscored unless more than
            half of the judges scored it.

    Example:
        >>> dog, cat = JudgedClaim("remove", "dog", "no dog"), JudgedClaim("color", "cat", "a black cat")
        >>> majority = majority_claims([Judgement((dog,)), Judgement((dog, cat)), Judgement((dog,))])
        >>> [claim.category for claim in majority.items]
        ['dog']
    """
    scored = _scored_items(judgements)
    if scored is None:
        return _leave_unscored(judgements)
    votes: Counter[tuple[str, str, int]] = Counter()
    first: dict[tuple[str, str, int], JudgedClaim] = {}
    for claims in scored:
        copies: Counter[tuple[str, str]] = Counter()
        for claim in claims:
            category = find_category(claim.category) or claim.category
            key = (claim.type, category, copies[claim.type, category])
            copies[claim.type, category] += 1
            votes[key] += 1
            first.setdefault(key, claim)
    kept = tuple(claim for key, claim in first.items() if 2 * votes[key] > len(scored))
    return _merge(kept, judgements)


def majority_labels(judgements: Sequence[Judgement[Item]], tie: Item | None = None) -> Judgement[Item]:
    """Return, for each item, the label that more than half of the scoring judges gave.

    Args:
        judgements: the judgements of one sample, one per judge, with labels of the same items. The sample
            stays unscored unless more than half of the judges scored it.
        tie: the label of an item without a majority. With None, such an item leaves the sample unscored, with
            the reason `disagreement`.

    Raises:
        ValueError: the judges labelled different numbers of items.

    Example:
        >>> majority_labels([Judgement(("a",)), Judgement(("a",)), Judgement(("b",))]).items
        ('a',)
    """
    scored = _scored_items(judgements)
    if scored is None:
        return _leave_unscored(judgements)
    labels = []
    for item_labels in zip(*scored, strict=True):
        label, votes = Counter(item_labels).most_common(1)[0]
        if 2 * votes <= len(scored):
            if tie is None:
                return _leave_unscored(judgements)
            label = tie
        labels.append(label)
    return _merge(tuple(labels), judgements)


def _scored_items(judgements: Sequence[Judgement[Item]]) -> list[tuple[Item, ...]] | None:
    """Return the items of the judges that scored the sample; None unless these are more than half."""
    scored = [judgement.items for judgement in judgements if judgement.items is not None]
    return scored if 2 * len(scored) > len(judgements) else None


def _leave_unscored(judgements: Sequence[Judgement[Any]]) -> Judgement[Any]:
    """Return an unscored judgement with the most frequent reason, or `disagreement` if most judges scored."""
    reasons = Counter(judgement.unscored for judgement in judgements if judgement.unscored)
    reason = "disagreement" if _scored_items(judgements) is not None else reasons.most_common(1)[0][0]
    return _merge(None, judgements, reason)


def _merge(
    items: tuple[Any, ...] | None, judgements: Sequence[Judgement[Any]], reason: Any = None
) -> Judgement[Any]:
    calls = sum(judgement.calls for judgement in judgements)
    return Judgement(items, reason, calls, any(judgement.truncated for judgement in judgements))
