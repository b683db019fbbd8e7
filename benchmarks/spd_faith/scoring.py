"""The scores of one pair from the labels of its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmprobe.benchmarks.answers.claims import parse_count
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels
from mmprobe.benchmarks.spd_faith.match import AGREEMENT_WEIGHTS, Agreement
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES


def compute_scores(labels: PairLabels, unparsed: float | None = None) -> dict[str, float | None]:
    """Compute the scores of one pair, by metric, for the questions that were asked.

    None where an answer was not understood or the score divides by zero: the ratios of a pair without
    differences, DRF without claims, and consistency without pairs of claims.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"), Difference("color", "car")))
        >>> compute_scores(PairLabels(pair, count=3, count_asked=True))["ds_tolerance"]
        0.5
    """
    scores: dict[str, float | None] = {}
    n_differences = len(labels.pair.differences)
    if labels.count_asked:
        scores |= _count_scores(labels.count, n_differences, unparsed)
    # A judge that failed says nothing about the answer, so the answer is not scored as `unparsed` either.
    unparsed_find = None if "find" in labels.unscored else unparsed
    unparsed_steps = None if "steps" in labels.unscored else unparsed
    if labels.find_asked:
        scores["drf"] = _true_share(labels.find_errors, unparsed_find)
    if labels.steps_asked:
        scores["drf_steps"] = _true_share(labels.steps_errors, unparsed_steps)
    if labels.find_asked and labels.count_asked:
        if labels.find_errors is None or labels.count is None:
            scores["drf_of_count"] = unparsed_find
        else:
            n_true = labels.find_errors.count(None)
            scores["drf_of_count"] = n_true / labels.count if labels.count else None
    if labels.same is not None and labels.different is not None:
        weights = [AGREEMENT_WEIGHTS[agreement] for agreement in labels.agreement]
        scores["consistency_ratio"] = sum(weights) / len(weights) if weights else None
        weights = [AGREEMENT_WEIGHTS[agreement] for agreement in labels.all_agreement]
        scores["consistency_ratio_all_pairs"] = sum(weights) / len(weights) if weights else None
    if n_differences == 1:
        scores |= _binary_scores(labels, unparsed)
    return scores


def _true_share(errors: tuple[Any, ...] | None, unparsed: float | None) -> float | None:
    if errors is None:
        return unparsed
    return errors.count(None) / len(errors) if errors else None


def _count_scores(count: int | None, n_differences: int, unparsed: float | None) -> dict[str, float | None]:
    n = n_differences
    if count is None:
        ratio = unparsed if n else None
        ratios = dict.fromkeys(("dqr_ratio", "dqr_ratio_clamped", "ds_tolerance", "ds_exist"), ratio)
        return {"dqr_exact": unparsed, **ratios}
    return {
        "dqr_exact": float(count == n),
        "dqr_ratio": count / n if n else None,
        "dqr_ratio_clamped": min(1.0, count / n) if n else None,
        "ds_tolerance": max(0.0, 1 - abs(count - n) / n) if n else None,
        "ds_exist": float(count > 0) if n else None,
    }


def _binary_scores(labels: PairLabels, unparsed: float | None) -> dict[str, float | None]:
    scores: dict[str, float | None] = {}
    if labels.same is not None:
        scores["yes_ratio"] = unparsed if labels.same == "unknown" else float(labels.same == "yes")
        if labels.different is not None:
            answers = (labels.same, labels.different)
            understood = "unknown" not in answers
            scores["contradiction_rate"] = float(answers == ("yes", "yes")) if understood else unparsed
            scores["contradiction_rate_no_no"] = float(answers == ("no", "no")) if understood else unparsed
    return scores


def count_list_matches(labels: PairLabels, unparsed: bool = False) -> list[int] | None:
    """Count claims and true differences of one pair for TF1 and CF1, as multisets.

    Two claimed chairs match one true chair once; "two dogs were removed" counts twice. As in the released code, a
    claim of another type is false among all types, and one of an unknown object among the categories. Returns 16 counts: (matched, claimed, true) for
    color, remove, position, all types and categories; then the category matches of the released code, which
    counts every claim with a true category. None if the answer is left out or the judge failed.

    Example:
        >>> from mmprobe.benchmarks.answers.claims import Claim
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"),))
        >>> claims = (Claim("remove", "dog"),) * 3
        >>> count_list_matches(PairLabels(pair, list_claims=claims, list_asked=True))[12:]
        [1, 3, 1, 3]
    """
    if labels.list_claims is None and (not unparsed or "list" in labels.unscored):
        return None
    types: Counter[str | None] = Counter()
    categories: Counter[str | None] = Counter()
    for claim in labels.list_claims or ():
        if not claim.negated:
            types[claim.type] += claim.quantity or 1
            categories[claim.category] += claim.quantity or 1
    true_types: Counter[str | None] = Counter(difference.type for difference in labels.pair.differences)
    true_categories: Counter[str | None] = Counter(
        difference.category for difference in labels.pair.differences
    )
    by_type = [(min(types[name], true_types[name]), types[name], true_types[name]) for name in EDIT_TYPES]
    return [
        *(count for row in by_type for count in row),
        sum(row[0] for row in by_type),
        types.total(),
        true_types.total(),
        (categories & true_categories).total(),
        categories.total(),
        true_categories.total(),
        sum(count for category, count in categories.items() if category in true_categories),
    ]


def make_record(
    pair: Pair,
    answers: Mapping[str, str],
    answer_claims: Mapping[str, AnswerClaims],
    agreement: Sequence[tuple[int, int, Agreement]],
    all_agreement: Sequence[Agreement],
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[PairLabels, dict[str, Any]]:
    """Return the labels and the record of one pair, from the claims that any judge read.

    Rules read yes, no and numbers. `stated` contains those that rules cannot read and a judge could, by question type.
    """
    answer_records = {
        question_type: _make_answer_record(
            question_type, text, answer_claims.get(question_type), stated.get(question_type)
        )
        for question_type, text in answers.items()
    }
    not_asked = AnswerClaims(None, False, None)
    # TF1 and CF1 use the answer to `find` where `list` was not asked.
    listing = answer_claims.get("list" if "list" in answers else "find", not_asked)
    find, steps = answer_claims.get("find", not_asked), answer_claims.get("steps", not_asked)
    failed = {
        "list": listing.claims is None and listing.unscored is not None,
        "find": find.errors is None and find.unscored is not None,
        "steps": steps.errors is None and steps.unscored is not None,
    }
    labels = PairLabels(
        pair,
        same=answer_records.get("same", {}).get("yes_no"),
        different=answer_records.get("different", {}).get("yes_no"),
        count=answer_records.get("count", {}).get("count"),
        count_asked="count" in answers,
        list_claims=listing.claims if listing.understood else None,
        list_asked="list" in answers or "find" in answers,
        find_errors=find.errors,
        find_asked="find" in answers,
        steps_errors=steps.errors,
        steps_asked="steps" in answers,
        agreement=tuple(label for _, _, label in agreement),
        all_agreement=tuple(all_agreement),
        unscored=frozenset(question_type for question_type, is_failed in failed.items() if is_failed),
    )
    record = {
        "id": pair.id,
        "difficulty": pair.difficulty,
        "differences": [
            {name: value for name, value in vars(difference).items() if name != "regions"}
            for difference in pair.differences
        ],
        "answers": answer_records,
        "agreement": agreement,
        "scores": compute_scores(labels),
    }
    return labels, record


def _make_answer_record(
    question_type: str, text: str, read: AnswerClaims | None, stated: Any = None
) -> dict[str, Any]:
    record: dict[str, Any] = {"response": text}
    if question_type in ("same", "different"):
        record["yes_no"] = read_yes_no(text) or stated or "unknown"
    if read is None:
        return record | {"count": parse_count(text) if stated is None else stated}
    claims = None if read.claims is None else [dict(vars(claim)) for claim in read.claims]
    record |= {"claims": claims, "understood": read.understood, "errors": read.errors}
    if read.unscored is not None:
        record["unscored"] = read.unscored
    return record
