"""Every metric of SPD-Faith Bench (arXiv:2602.07833), computed from the labels of single answers.

The paper (appendix B.2 and its tables) defines most metrics in two ways. Each definition has its own name
here, and a profile says which metrics are the headline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from mmprobe.benchmarks.answers.claims import Claim, parse_count
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.core.results import (
    Combine,
    Direction,
    Metric,
    count_metric,
    f1,
    mean_metric,
    metrics_by_group,
    ratio,
    share,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels
from mmprobe.benchmarks.spd_faith.match import AGREEMENT_WEIGHTS, CLAIM_ERRORS, Agreement, ClaimError
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
            answers = {labels.same, labels.different}
            for name, said, other in (
                ("contradiction_rate", "yes", "no"),
                ("contradiction_rate_no_no", "no", "yes"),
            ):
                decided = answers == {said} or other in answers  # one answer alone can rule it out
                scores[name] = float(answers == {said}) if decided else unparsed
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
        unread={
            kind: answer_claims[name].unread
            for kind, name in (
                ("list", "list" if "list" in answers else "find"),
                *zip(_READ, _READ, strict=True),
            )
            if name in answer_claims
        },
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


_READ = ("find", "steps", "same", "different")  # answers whose sentences are read
_ASKED = {"same": "Are the two images the same?", "different": "Are the two images different?"}


def _make_answer_record(
    question_type: str, text: str, read: AnswerClaims | None, stated: Any = None
) -> dict[str, Any]:
    record: dict[str, Any] = {"response": text}
    if question_type in ("same", "different"):
        record["yes_no"] = read_yes_no(text, _ASKED[question_type]) or stated or "unknown"
    if read is None:
        return record | {"count": parse_count(text) if stated is None else stated}
    claims = None if read.claims is None else [dict(vars(claim)) for claim in read.claims]
    record |= {"claims": claims, "understood": read.understood, "errors": read.errors}
    if read.unread:
        record["unread"] = read.unread
    if read.unscored is not None:
        record["unscored"] = read.unscored
    return record


Profile = Literal["paper-main", "paper-appendix", "code"]

# paper-main: the main text and tables. paper-appendix: appendix B.2. code: the released code, whose DS is the tolerance,
# whose overall F1 pools counts, and which has neither `ds_exist` nor a contradiction rate.
PROFILES: dict[Profile, tuple[str, ...]] = {
    "paper-main": (
        "dqr_ratio",
        "ds_exist",
        "tf1_macro",
        "cf1",
        "contradiction_rate",
        "consistency_ratio",
        "drf",
    ),
    "paper-appendix": (
        "dqr_exact",
        "ds_tolerance",
        "tf1_micro",
        "cf1",
        "consistency_ratio",
        "yes_ratio",
        "drf",
    ),
    "code": ("dqr_ratio", "ds_tolerance", "tf1_micro", "cf1_code", "consistency_ratio", "drf"),
}

# Metrics that are means over pairs: direction and range.
_MEANS: dict[str, tuple[Direction, tuple[float | None, float | None]]] = {
    "dqr_exact": ("higher", (0, 1)),
    "dqr_ratio": ("higher", (0, None)),  # the paper's direction, although above 1 the model counted too many
    "dqr_ratio_clamped": ("higher", (0, 1)),
    "ds_tolerance": ("higher", (0, 1)),
    "ds_exist": ("higher", (0, 1)),
    "drf": ("higher", (0, 1)),
    "drf_of_count": ("higher", (0, None)),
    "drf_steps": ("higher", (0, 1)),
    "consistency_ratio": ("higher", (-1, 1)),
    "consistency_ratio_all_pairs": ("higher", (-1, 1)),
    "contradiction_rate": ("lower", (0, 1)),
    "contradiction_rate_no_no": ("lower", (0, 1)),
    "yes_ratio": ("lower", (0, 1)),
}

# Columns of `count_list_matches`.
_TYPE_COLUMNS = {name: range(3 * index, 3 * index + 3) for index, name in enumerate(EDIT_TYPES)}
_ALL_TYPE_COLUMNS = range(9)
_POOLED_TYPE_COLUMNS = range(9, 12)
_CATEGORY_COLUMNS = range(12, 15)
_CODE_COLUMNS = (15, 13, 14)
_CLAIMED = (*range(1, 12, 3), 13)  # an unread sentence may claim what is not true, of any type

# Suffix of the metric's name: how it is computed from (matched, claimed, true).
_F1_PARTS: dict[str, Combine] = {
    "": f1,
    "_precision": ratio,
    "_recall": share(0, 2),
}
_CODE_MAXIMUM: dict[str, float | None] = {"": 2.0, "_precision": 1.0, "_recall": None}


def difference_type(pair: Pair) -> str:
    """Return the type of all differences of a pair, `mixed` for several types, or `none`."""
    types = {difference.type for difference in pair.differences}
    return types.pop() if len(types) == 1 else "mixed" if types else "none"


_GROUPS: dict[str, Callable[[Pair], str]] = {
    "difficulty": lambda pair: pair.difficulty or "unknown",
    "type": difference_type,
    "differences": lambda pair: str(len(pair.differences)),
    "set": lambda pair: "multi" if len(pair.differences) > 1 else "single",
}


def compute_metrics(labels: Sequence[PairLabels]) -> dict[str, Metric]:
    """Compute every metric whose questions were asked, over all pairs and by group.

    n is the true number of differences and n^ the number that the model stated. Means over pairs (appendix
    B.2 unless another source is given):

    - dqr_exact: 1[n^ = n]. dqr_ratio: n^ / n (released code). dqr_ratio_clamped: n^ / n, but at most 1.
    - ds_tolerance: max(0, 1 - |n^ - n| / n). ds_exist: 1[n^ > 0] where n > 0 (main text).
    - contradiction_rate: "yes" to both binary questions. contradiction_rate_no_no: "no" to both. yes_ratio:
      "yes" to `same`. Only pairs with one difference count, as in the paper's Table 2 and Figure 11.
    - consistency_ratio: mean over pairs of claims of +1 (agree), -1 (conflict) or +0.5 (neither), where claims
      are paired one to one. consistency_ratio_all_pairs: the same over each claim of one answer with each of
      the other, as equation 12 is written; two equal answers with several claims then score less than 1.
    - drf: true claims / all claims. drf_of_count: true claims / n^. drf_steps: drf of the step-by-step
      question.

    From counts that are pooled over pairs:

    - tf1_micro: F1 over all types. tf1_macro: mean of tf1_color, tf1_remove and tf1_position. cf1: F1 over
      the categories. cf1_code: the same with the duplicates of the released code. Each has a `_precision` and
      `_recall`.
    - drf_type_category_mismatch and so on: the share of each error among all claims.

    NAME scores answers that were not understood as 0; `NAME[read]` leaves them out, and so do consistency ratios and the shares
    of errors. Bounds say what each would be with the best and the worst in their place, and in that of unread sentences beside
    claims.
    `NAME[difficulty=easy]`, `NAME[type=color]`, `NAME[differences=2]`
    and `NAME[set=multi]` (2 to 5 differences, as in Table 3) are computed on those pairs. Intervals draw pairs.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"),))
        >>> compute_metrics([PairLabels(pair, same="yes", different="yes")])["contradiction_rate"].value
        1.0
    """
    metrics = _compute_group(labels, f1_parts=_F1_PARTS)
    for key, group_of in _GROUPS.items():
        groups = [group_of(each.pair) for each in labels]
        metrics |= metrics_by_group(key, groups, lambda members: _compute_group([labels[i] for i in members]))
    return metrics


def _compute_group(labels: Sequence[PairLabels], f1_parts: Iterable[str] = ("",)) -> dict[str, Metric]:
    """Compute every metric over one group of pairs. Each is over the pairs whose question was asked."""
    return (
        _mean_metrics(labels)
        | _list_metrics([each for each in labels if each.list_asked], f1_parts)
        | _error_shares([each for each in labels if each.find_asked])
    )


def _mean_metrics(labels: Sequence[PairLabels]) -> dict[str, Metric]:
    """Compute the metrics that are means over pairs."""
    scores = [
        (
            each,
            compute_scores(each, 0.0),
            compute_scores(each),
            compute_scores(_fill(each, "fabrication")),
            compute_scores(_fill(each, None)),
        )
        for each in labels
    ]
    metrics: dict[str, Metric] = {}
    for name, (direction, limits) in _MEANS.items():
        asked = [(each, *(values[name] for values in rows)) for each, *rows in scores if name in rows[0]]
        if not asked:
            continue
        pairs, counted, read, *filled = (list(column) for column in zip(*asked, strict=True))
        is_consistency = name.startswith("consistency_ratio")
        unread = [
            bool(each.unread.get("same") or each.unread.get("different"))
            if is_consistency
            else value is not None and own is None
            for each, value, own in zip(pairs, counted, read, strict=True)
        ]
        partly = [low != high for low, high in zip(*filled, strict=True)]
        ends: list[list[Sequence[float] | None] | None] = [
            None
            if end is None and any(unread)
            else [
                (end or 0.0, 1.0) if is_unread else None if value is None else (float(value), 1.0)
                for is_unread, value in zip(unread, values, strict=True)
            ]
            for end, values in zip(limits, filled, strict=True)
        ]
        n_unread = sum(one or other for one, other in zip(unread, partly, strict=True))
        values = {name: with_bounds(mean_metric(counted, direction, limits), n_unread, ratio, *ends)}
        if not is_consistency:
            values[f"{name}[read]"] = mean_metric(read, direction, limits)
        metrics |= with_ids(values, [each.pair.id for each in pairs])
    return metrics


def _fill(labels: PairLabels, error: ClaimError | None) -> PairLabels:
    """Return labels in which each unread sentence beside claims is a claim with an error, or a true one."""

    def fill(kind: str, errors: tuple[ClaimError | None, ...] | None) -> tuple[ClaimError | None, ...] | None:
        return None if errors is None else (*errors, *[error] * labels.unread.get(kind, 0))

    return replace(
        labels,
        find_errors=fill("find", labels.find_errors),
        steps_errors=fill("steps", labels.steps_errors),
    )


def _list_metrics(labels: Sequence[PairLabels], f1_parts: Iterable[str]) -> dict[str, Metric]:
    """Compute TF1 and CF1; empty where nothing was asked."""
    read, counted = ([count_list_matches(each, unparsed) for each in labels] for unparsed in (False, True))
    rest = [each.unread.get("list", 0) for each in labels]
    worst = [
        None if counts is None else [count + n * (column in _CLAIMED) for column, count in enumerate(counts)]
        for counts, n in zip(counted, rest, strict=True)
    ]
    best = [
        None if counts is None else count_list_matches(_claim_rest(each, n))
        for each, counts, n in zip(labels, counted, rest, strict=True)
    ]
    unread = sum(
        counts is not None and (own is None or n > 0)
        for own, counts, n in zip(read, counted, rest, strict=True)
    )
    metrics: dict[str, Metric] = {}
    for part in f1_parts if labels else ():
        combine = _F1_PARTS[part]
        definitions: dict[str, tuple[Combine, Iterable[int]]] = {
            **{f"tf1_{name}": (combine, columns) for name, columns in _TYPE_COLUMNS.items()},
            "tf1_micro": (combine, _POOLED_TYPE_COLUMNS),
            "tf1_macro": (partial(_mean_over_types, combine), _ALL_TYPE_COLUMNS),
            "cf1": (combine, _CATEGORY_COLUMNS),
            "cf1_code": (combine, _CODE_COLUMNS),
        }
        for name, (definition, columns) in definitions.items():
            limits = (0.0, _CODE_MAXIMUM[part] if name == "cf1_code" else 1.0)
            own, counts, least, most = (
                [None if row is None else [row[column] for column in columns] for row in rows]
                for rows in (read, counted, worst, best)
            )
            metric = count_metric(counts, definition, "higher", limits)
            metrics[name + part] = with_bounds(metric, unread, definition, least, most)
            metrics[f"{name}{part}[read]"] = count_metric(own, definition, "higher", limits)
    return with_ids(metrics, [each.pair.id for each in labels])


def _claim_rest(labels: PairLabels, unread: int) -> PairLabels:
    """Return labels in which the unread sentences of a listing claim what is true and not yet claimed, or all if it is unread."""
    missing = [Claim(each.type, each.category) for each in labels.pair.differences]
    if labels.list_claims is None:
        return replace(labels, list_claims=tuple(missing))
    for claim in labels.list_claims:
        own = Claim(claim.type, claim.category)
        if own in missing:
            missing.remove(own)
    return replace(labels, list_claims=(*labels.list_claims, *missing[:unread]))


def _mean_over_types(combine: Combine, counts: np.ndarray) -> np.ndarray:
    """Return the mean over the types where the metric is defined: what is claimed or true (our choice)."""
    values = np.stack([np.asarray(combine(counts[..., list(columns)])) for columns in _TYPE_COLUMNS.values()])
    defined = np.isfinite(values)
    return np.where(defined, values, 0).sum(0) / defined.sum(0)


def _error_shares(labels: Sequence[PairLabels]) -> dict[str, Metric]:
    """Compute the share of each error among the claims of `find`; empty where it was not asked."""
    found = [each.find_errors for each in labels]
    rest = [each.unread.get("find", 0) for each in labels]
    metrics: dict[str, Metric] = {}
    for error in CLAIM_ERRORS if labels else ():
        rows = [None if errors is None else (errors.count(error), len(errors)) for errors in found]
        least, most = (
            [
                row if not n else ((row[0] if row else 0) + n * is_error, (row[1] if row else 0) + n)
                for row, n in zip(rows, rest, strict=True)
            ]
            for is_error in (False, True)
        )
        metric = count_metric(rows, ratio, "lower")
        metrics[f"drf_{error}"] = with_bounds(metric, sum(n > 0 for n in rest), ratio, least, most)
    return with_ids(metrics, [each.pair.id for each in labels])
