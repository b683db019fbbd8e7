"""The `ensemble` judge: the majority of several judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.api_models import open_model, run_all
from mmprobe.benchmarks.judges.judge import Item, Judge, Judgement, JudgeRequest
from mmprobe.benchmarks.judges.local import PREFIX
from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.errors import InputError


class EnsembleJudge:
    """A judge that calls two or more judges (`members`) and returns their majority."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        if len(judges) < 2:
            raise InputError(f"an ensemble needs two judges or more, not {len(judges)}")
        self.members = list(judges)

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the label that more than half of the judges gave, for each item. All are asked at once."""
        judgements = await run_all([partial(judge.ask, requests) for judge in self.members])
        votes = zip(*judgements, strict=True)
        return [
            (request.vote or majority_labels)(each) for request, each in zip(requests, votes, strict=True)
        ]


def open_ensemble_judge(
    models: Sequence[str], cache: str | Path | None = None, retry_unscored: bool = True
) -> EnsembleJudge:
    """Open the judges of several models, with one file for their replies."""
    # A missing key of the last model must show before the first model's cache is made.
    for model in models[1:]:
        if not model.startswith(PREFIX):
            open_model(model, "judge")
    return EnsembleJudge(
        [ModelJudge(model, cache, JudgeSettings(retry_unscored=retry_unscored)) for model in models]
    )


def majority_labels(judgements: Sequence[Judgement[Item]], tie: Item | None = None) -> Judgement[Item]:
    """Return, for each item, the label that more than half of the scoring judges gave.

    The sample stays unscored unless more than half of the judges scored it. An item without a majority gets
    the label `tie`; if that is None, the sample is unscored as `disagreement`. Raises ValueError for
    different numbers of items.

    Example:
        >>> majority_labels([Judgement(("a",)), Judgement(("a",)), Judgement(("b",))]).items
        ('a',)
    """
    scored = scored_items(judgements)
    if scored is None:
        return leave_unscored(judgements)
    labels = []
    for item_labels in zip(*scored, strict=True):
        label, votes = Counter(item_labels).most_common(1)[0]
        if 2 * votes <= len(scored):
            if tie is None:
                return leave_unscored(judgements)
            label = tie
        labels.append(label)
    return merge(tuple(labels), judgements)


def scored_items(judgements: Sequence[Judgement[Item]]) -> list[tuple[Item, ...]] | None:
    """Return the items of the judges that scored the sample; None unless these are more than half."""
    scored = [judgement.items for judgement in judgements if judgement.items is not None]
    return scored if 2 * len(scored) > len(judgements) else None


def leave_unscored(judgements: Sequence[Judgement[Any]]) -> Judgement[Any]:
    """Return an unscored judgement with the most frequent reason, or `disagreement` if most judges scored."""
    reasons = Counter(judgement.unscored for judgement in judgements if judgement.unscored)
    reason = "disagreement" if scored_items(judgements) is not None else reasons.most_common(1)[0][0]
    return merge(None, judgements, reason)


def merge(
    items: tuple[Any, ...] | None, judgements: Sequence[Judgement[Any]], reason: Any = None
) -> Judgement[Any]:
    calls = sum(judgement.calls for judgement in judgements)
    return Judgement(items, reason, calls, any(judgement.truncated for judgement in judgements))
