"""From answers to metrics with a judge that is a model, or several."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.lexical.claims import Claim, parse_count
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.judges import Judge, JudgedClaim, Judgement, Match
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, by_pair
from mmprobe.benchmarks.spd_faith.match import Error, Label, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import metrics_of
from mmprobe.benchmarks.spd_faith.scoring import put_together
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, SHAPES

COMPARED = (
    12  # claims of a binary answer that are compared with those of the other, ours: each with each is 144
)
_CHANGED = {"color": "its colour changed", "remove": "it was removed", "position": "it was moved"}

_Key = tuple[str, str]  # pair and question type


def judge_responses(
    truths: Sequence[Pair], responses: Iterable[Mapping[str, Any]], judge: Judge
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """As `score_responses`, with claims extracted, compared and matched by a judge.

    The judge lists the claims of each answer without the truth in sight, says of each claim which true difference it
    tells or what is wrong with it, and of the claims of the two binary answers which agree; each with each, then one
    to one as the lexical judge has them. Each true difference counts once: a second claim of it is a quantity error
    (ours). Yes, no and numbers are read by rules. Every metric is then computed from these labels.

    Args:
        truths, responses: as for `score_responses`.
        judge: a model, or several.

    Returns:
        As `score_responses`. What the judge failed at lowers the coverage of the metrics that need it, and of those
        that count what was not understood as 0 as well; `unscored` in the records says why.

    Raises:
        InputError: as `score_responses`, or the provider refuses the key.

    Example:
        >>> judge_responses(truths, answers, ModelJudge("openai/gpt-4o"))           # doctest: +SKIP
    """
    answers = by_pair(truths, responses)
    asked = [pair for pair in truths if pair.id in answers]
    told, agreement = asyncio.run(_label(asked, answers, judge))
    judged, records = [], []
    for pair in asked:
        mine = {kind: told[pair.id, kind] for kind in answers[pair.id] if kind != "count"}
        one, record = put_together(pair, answers[pair.id], mine, agreement.get(pair.id, []))
        judged.append(one)
        records.append(record)
    return metrics_of(judged), records


async def _label(
    pairs: Sequence[Pair], answers: Mapping[str, Mapping[str, str]], judge: Judge
) -> tuple[dict[_Key, AnswerClaims], dict[str, list[tuple[int, int, Label]]]]:
    """What is made of each answer, and how the claims of each pair's binary answers agree."""
    texts = {
        (pair.id, kind): text for pair in pairs for kind, text in answers[pair.id].items() if kind != "count"
    }
    extracted = dict(zip(texts, await judge.extract(list(texts.values())), strict=True))
    claims = {key: found.items for key, found in extracted.items() if found.items is not None}
    truth = {pair.id: [_of_truth(one) for one in pair.differences] for pair in pairs}
    to_match = [([_of_claim(claim) for claim in items], truth[key[0]]) for key, items in claims.items()]
    matched = dict(zip(claims, await judge.match(to_match), strict=True))
    told = {key: _told(texts[key], found, matched.get(key)) for key, found in extracted.items()}
    return told, await _agreement([pair.id for pair in pairs], claims, judge)


def _told(text: str, extracted: Judgement[JudgedClaim], matched: Judgement[Match] | None) -> AnswerClaims:
    """An answer's labels; `matched` is None where nothing was extracted."""
    if extracted.items is None or matched is None:
        return AnswerClaims(None, False, None, extracted.unscored)
    claims = tuple(_claim(claim) for claim in extracted.items)
    understood = bool(claims) or parse_count(text) == 0
    if matched.items is None:
        return AnswerClaims(claims, understood, None, matched.unscored)
    return AnswerClaims(claims, understood, _errors(matched.items) if understood else None)


def _claim(claim: JudgedClaim) -> Claim:
    category = claim.category if claim.category in SHAPES else find_category(claim.category)
    kind = next((one for one in EDIT_TYPES if one == claim.type), None)
    return Claim(kind, category, text=claim.text)


def _errors(matches: Sequence[Match]) -> tuple[Error | None, ...]:
    seen: set[int] = set()
    errors: list[Error | None] = []
    for match in matches:
        again = match.truth is not None and match.truth in seen
        errors.append("quantity_error" if again else match.error)
        if match.truth is not None:
            seen.add(match.truth)
    return tuple(errors)


async def _agreement(
    ids: Sequence[str], claims: Mapping[_Key, tuple[JudgedClaim, ...]], judge: Judge
) -> dict[str, list[tuple[int, int, Label]]]:
    both = {
        name: (claims[name, "same"][:COMPARED], claims[name, "different"][:COMPARED])
        for name in ids
        if (name, "same") in claims and (name, "different") in claims
    }
    pairs = [
        [(_of_claim(one), _of_claim(other)) for one in first for other in second]
        for first, second in both.values()
    ]
    found = {}
    for (name, (first, second)), labelled in zip(both.items(), await judge.label_pairs(pairs), strict=True):
        if labelled.items is not None:
            found[name] = _one_to_one(len(first), len(second), labelled.items)
    return found


def _one_to_one(first: int, second: int, labels: Sequence[Label]) -> list[tuple[int, int, Label]]:
    return pair_claims(range(first), range(second), lambda one, other: labels[one * second + other])


def _of_claim(claim: JudgedClaim) -> str:
    """A claim in words, with what its quote may leave out."""
    return f"{claim.category} ({claim.type}): {claim.text}"


def _of_truth(one: Difference) -> str:
    changed = _CHANGED[one.type]
    if one.before and one.after:
        changed += f" from {one.before} to {one.after}"
    return f"{one.category} ({one.type}): {one.description or changed}"
