"""The scores of one pair from the labels of its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mmprobe.benchmarks.answers.lexical.claims import parse_count
from mmprobe.benchmarks.answers.yes_no import parse_yes_no
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels
from mmprobe.benchmarks.spd_faith.match import WEIGHT, Label
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES


def scores_of(judged: PairLabels, unparsed: float | None = None) -> dict[str, float | None]:
    """The scores of one pair by metric; only those whose questions were asked.

    Args:
        judged: its labels.
        unparsed: the score of an answer that was not understood.

    Returns:
        None where an answer was not understood, or the score divides by nothing: the ratios of a pair without
        differences, DRF without claims, consistency without pairs of claims.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"), Difference("color", "car")))
        >>> scores_of(PairLabels(pair, count=3, count_asked=True))["ds_tolerance"]
        0.5
    """
    scores: dict[str, float | None] = {}
    n = len(judged.pair.differences)
    if judged.count_asked:
        scores |= _count_scores(judged.count, n, unparsed)
    lost = {part: None if part in judged.unscored else unparsed for part in ("found", "steps")}
    for name, errors, asked, missing in (
        ("drf", judged.found, judged.found_asked, lost["found"]),
        ("drf_steps", judged.steps, judged.steps_asked, lost["steps"]),
    ):
        if asked:
            scores[name] = missing if errors is None else errors.count(None) / len(errors) if errors else None
    if judged.found_asked and judged.count_asked:
        faithful = None if judged.found is None else judged.found.count(None)
        known = faithful is not None and judged.count
        scores["drf_of_count"] = faithful / judged.count if known else None  # type: ignore[operator]
        if judged.found is None or judged.count is None:
            scores["drf_of_count"] = lost["found"]
    if judged.same is not None and judged.different is not None:
        weights = [WEIGHT[label] for label in judged.agreement]
        scores["consistency_ratio"] = sum(weights) / len(weights) if weights else None
    if n == 1:
        scores |= _binary_scores(judged, unparsed)
    return scores


def _count_scores(count: int | None, n: int, unparsed: float | None) -> dict[str, float | None]:
    if count is None:
        ratio = unparsed if n else None
        rest = dict.fromkeys(("dqr_ratio", "dqr_ratio_clamped", "ds_tolerance", "ds_exist"), ratio)
        return {"dqr_exact": unparsed, **rest}
    return {
        "dqr_exact": float(count == n),
        "dqr_ratio": count / n if n else None,
        "dqr_ratio_clamped": min(1.0, count / n) if n else None,
        "ds_tolerance": max(0.0, 1 - abs(count - n) / n) if n else None,
        "ds_exist": float(count > 0) if n else None,
    }


def _binary_scores(judged: PairLabels, unparsed: float | None) -> dict[str, float | None]:
    scores: dict[str, float | None] = {}
    if judged.same is not None:
        scores["yes_ratio"] = unparsed if judged.same == "unknown" else float(judged.same == "yes")
        if judged.different is not None:
            words = (judged.same, judged.different)
            known = "unknown" not in words
            scores["contradiction_rate"] = float(words == ("yes", "yes")) if known else unparsed
            scores["contradiction_rate_no_no"] = float(words == ("no", "no")) if known else unparsed
    return scores


def listing_counts(judged: PairLabels, unparsed: bool = False) -> list[int] | None:
    """The counts of one pair that TF1 and CF1 are made of, as multisets: two chairs claimed of one true match once.

    A claim of several things (`two dogs were removed`) is as many. Claims of no type count in no type, claims of no
    category in no category.

    Args:
        judged: the labels of a pair whose differences were asked for.
        unparsed: an answer that was not understood claims nothing, instead of being left out.

    Returns:
        matched, claimed and true of each of color, remove, position, of the three pooled, and of the categories,
        then the category matches of the released code, which matches every claim whose category is among the true;
        None for an answer that was not understood, or that a judge failed at.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"),))
        >>> listing_counts(PairLabels(pair, listed=(Claim("remove", "dog"),) * 3, listed_asked=True))[12:]
        [1, 3, 1, 3]
    """
    if judged.listed is None and (not unparsed or "listed" in judged.unscored):
        return None
    types: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for claim in judged.listed or ():
        if not claim.negated:
            types.update({claim.type: claim.quantity or 1} if claim.type else {})
            categories.update({claim.category: claim.quantity or 1} if claim.category else {})
    true_types = Counter(one.type for one in judged.pair.differences)
    true_categories = Counter(one.category for one in judged.pair.differences)
    by_type = [(min(types[kind], true_types[kind]), types[kind], true_types[kind]) for kind in EDIT_TYPES]
    return [
        *(number for row in by_type for number in row),
        *(sum(row[column] for row in by_type) for column in range(3)),
        (categories & true_categories).total(),
        categories.total(),
        true_categories.total(),
        sum(number for category, number in categories.items() if category in true_categories),
    ]


def put_together(
    pair: Pair,
    answers: Mapping[str, str],
    told: Mapping[str, AnswerClaims],
    agreement: list[tuple[int, int, Label]],
) -> tuple[PairLabels, dict[str, Any]]:
    """One pair's labels from those of its answers, by whatever judge, and its record.

    Yes, no and numbers are read by rules, whoever judges the claims.

    Args:
        answers: by question type.
        told: of each answer but that to `count`.
        agreement: of the claims of the two binary answers.
    """
    said: dict[str, dict[str, Any]] = {}
    for kind, text in answers.items():
        said[kind] = {"response": text}
        if kind in ("same", "different"):
            said[kind]["yes_no"] = parse_yes_no(text)
        if kind == "count":
            said[kind]["count"] = parse_count(text)
            continue
        one = told[kind]
        claims = None if one.claims is None else [dict(vars(claim)) for claim in one.claims]
        said[kind] |= {"claims": claims, "understood": one.understood, "errors": one.errors}
        if one.unscored is not None:
            said[kind]["unscored"] = one.unscored
    listing = "list" if "list" in answers else "find"
    nothing = AnswerClaims(None, False, None)
    listed, found, steps = (told.get(kind, nothing) for kind in (listing, "find", "steps"))
    lost = {"listed": listed.claims is None, "found": found.errors is None, "steps": steps.errors is None}
    unscored = {"listed": listed.unscored, "found": found.unscored, "steps": steps.unscored}
    judged = PairLabels(
        pair,
        same=said.get("same", {}).get("yes_no"),
        different=said.get("different", {}).get("yes_no"),
        count=said.get("count", {}).get("count"),
        count_asked="count" in answers,
        listed=listed.claims if listed.understood else None,
        listed_asked=listing in answers,
        found=found.errors,
        found_asked="find" in answers,
        steps=steps.errors,
        steps_asked="steps" in answers,
        agreement=tuple(label for _, _, label in agreement),
        unscored=frozenset(part for part, reason in unscored.items() if reason is not None and lost[part]),
    )
    record = {
        "id": pair.id,
        "difficulty": pair.difficulty,
        "differences": [dict(vars(one)) for one in pair.differences],
        "answers": said,
        "agreement": agreement,
        "scores": scores_of(judged),
    }
    return judged, record
