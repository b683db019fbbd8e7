"""Every metric of SPD-Faith Bench (arXiv:2602.07833), computed from the labels of single answers.

The paper (appendix B.2 and its tables) defines most metrics in two ways. Each definition has its own name
here, and a profile says which metrics are the headline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

import numpy as np

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
    with_ids,
)
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import PairLabels
from mmprobe.benchmarks.spd_faith.match import CLAIM_ERRORS
from mmprobe.benchmarks.spd_faith.scoring import compute_scores, count_list_matches
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES

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

    NAME leaves out answers that were not understood, which lowers its coverage; `NAME_unparsed_0` scores them
    as 0, except for consistency ratios. `NAME[difficulty=easy]`, `NAME[type=color]`, `NAME[differences=2]`
    and `NAME[set=multi]` (2 to 5 differences, as in Table 3) are computed on those pairs. Intervals draw pairs.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"),))
        >>> compute_metrics([PairLabels(pair, same="yes", different="yes")])["contradiction_rate"].value
        1.0
    """
    metrics = _compute_group(labels, f1_parts=_F1_PARTS)
    with_unparsed = _compute_group(labels, unparsed=0.0)
    without = ("consistency_ratio", *(f"drf_{error}" for error in CLAIM_ERRORS))
    metrics |= {
        f"{name}_unparsed_0": metric for name, metric in with_unparsed.items() if not name.startswith(without)
    }
    for key, group_of in _GROUPS.items():
        groups = [group_of(each.pair) for each in labels]
        metrics |= metrics_by_group(key, groups, lambda members: _compute_group([labels[i] for i in members]))
    return metrics


def _compute_group(
    labels: Sequence[PairLabels], unparsed: float | None = None, f1_parts: Iterable[str] = ("",)
) -> dict[str, Metric]:
    """Compute every metric over one group of pairs. Each is over the pairs whose question was asked."""
    return (
        _mean_metrics(labels, unparsed)
        | _list_metrics([each for each in labels if each.list_asked], unparsed, f1_parts)
        | _error_shares([each for each in labels if each.find_asked])
    )


def _mean_metrics(labels: Sequence[PairLabels], unparsed: float | None) -> dict[str, Metric]:
    """Compute the metrics that are means over pairs."""
    scores = [(each.pair.id, compute_scores(each, unparsed)) for each in labels]
    metrics: dict[str, Metric] = {}
    for name, (direction, limits) in _MEANS.items():
        asked = [(pair_id, values[name]) for pair_id, values in scores if name in values]
        if asked:
            metric = mean_metric([value for _, value in asked], direction, limits)
            metrics |= with_ids({name: metric}, [pair_id for pair_id, _ in asked])
    return metrics


def _list_metrics(
    labels: Sequence[PairLabels], unparsed: float | None, f1_parts: Iterable[str]
) -> dict[str, Metric]:
    """Compute TF1 and CF1; empty where nothing was asked."""
    rows = [count_list_matches(each, unparsed is not None) for each in labels]
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
            counts = [None if row is None else [row[column] for column in columns] for row in rows]
            metrics[name + part] = count_metric(counts, definition, "higher", limits)
    return with_ids(metrics, [each.pair.id for each in labels])


def _mean_over_types(combine: Combine, counts: np.ndarray) -> np.ndarray:
    """Return the mean over the types where the metric is defined: what is claimed or true (our choice)."""
    values = np.stack([np.asarray(combine(counts[..., list(columns)])) for columns in _TYPE_COLUMNS.values()])
    defined = np.isfinite(values)
    return np.where(defined, values, 0).sum(0) / defined.sum(0)


def _error_shares(labels: Sequence[PairLabels]) -> dict[str, Metric]:
    """Compute the share of each error among the claims of `find`; empty where it was not asked."""
    found = [each.find_errors for each in labels]
    metrics = {
        f"drf_{error}": count_metric(
            [None if errors is None else (errors.count(error), len(errors)) for errors in found],
            ratio,
            "lower",
        )
        for error in (CLAIM_ERRORS if labels else ())
    }
    return with_ids(metrics, [each.pair.id for each in labels])
