"""Every metric of SPD-Faith Bench under a name of its own, recomputed from the labels of single answers.

The paper (appendix B.2, and its tables) gives two readings of most metrics; each reading has its name here, and a
profile says which are headline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from mmprobe.benchmarks.core.results import Direction, Metric, Of, f1, ratio
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.intervals import Number, measure
from mmprobe.benchmarks.spd_faith.labels import PairLabels
from mmprobe.benchmarks.spd_faith.match import ERRORS
from mmprobe.benchmarks.spd_faith.scoring import listing_counts, scores_of
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES

Profile = Literal["paper-main", "paper-appendix", "code"]

# which metrics are headline: what the main text says and the tables fit, what appendix B.2 writes, what was released
PROFILES: dict[Profile, tuple[str, ...]] = {
    "paper-main": (
        *("dqr_ratio", "ds_exist", "tf1_macro", "cf1", "contradiction_rate", "consistency_ratio", "drf"),
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
    "code": (
        "dqr_ratio",
        "ds_exist",
        "tf1_macro",
        "cf1_code",
        "contradiction_rate",
        "consistency_ratio",
        "drf",
    ),
}


_MEANS: dict[str, tuple[Direction, tuple[float | None, float | None]]] = {
    "dqr_exact": ("higher", (0, 1)),
    "dqr_ratio": ("higher", (0, None)),  # as the paper takes it, though beyond 1 too many were counted
    "dqr_ratio_clamped": ("higher", (0, 1)),
    "ds_tolerance": ("higher", (0, 1)),
    "ds_exist": ("higher", (0, 1)),
    "drf": ("higher", (0, 1)),
    "drf_of_count": ("higher", (0, None)),
    "drf_steps": ("higher", (0, 1)),
    "consistency_ratio": ("higher", (-1, 1)),
    "contradiction_rate": ("lower", (0, 1)),
    "contradiction_rate_no_no": ("lower", (0, 1)),
    "yes_ratio": ("lower", (0, 1)),
}

# columns of `listing_counts`: matched, claimed, true of each type, of all types, of the categories; and the
# matches that the released code counts
_TYPES = range(9)
_TYPE_COLUMNS = {kind: _TYPES[3 * at : 3 * at + 3] for at, kind in enumerate(EDIT_TYPES)}
_ALL_TYPES, _CATEGORIES, _CODE, _WIDTH = range(9, 12), range(12, 15), (15, 13, 14), 16


_CODE_LIMIT: dict[str, float | None] = {"": 2.0, "_precision": 1.0, "_recall": None}


_PARTS: dict[str, Of] = {
    "": f1,
    "_precision": ratio,
    "_recall": lambda sums: sums[..., 0] / sums[..., 2],
}


def _macro(of: Of, counts: np.ndarray) -> np.ndarray:
    """Mean over the types where it is defined; a type that nobody claims and nothing has is left out (ours)."""
    each = np.stack([np.asarray(of(counts[..., list(columns)])) for columns in _TYPE_COLUMNS.values()])
    defined = np.isfinite(each)
    return np.where(defined, each, 0).sum(0) / defined.sum(0)


def _listing_numbers(first: int, scored: np.ndarray, asked: int, parts: Iterable[str]) -> dict[str, Number]:
    """TF1 and CF1 of sums whose columns from `first` are those of `listing_counts`."""
    numbers = {}
    for part in parts:
        of = _PARTS[part]
        readings: dict[str, tuple[Of, Iterable[int]]] = {
            **{f"tf1_{kind}": (of, columns) for kind, columns in _TYPE_COLUMNS.items()},
            "tf1_micro": (of, _ALL_TYPES),
            "tf1_macro": (partial(_macro, of), _TYPES),
            "cf1": (of, _CATEGORIES),
            "cf1_code": (of, _CODE),
        }
        for name, (reading, columns) in readings.items():
            limits = (0.0, _CODE_LIMIT[part] if name == "cf1_code" else 1.0)
            places = [first + column for column in columns]
            numbers[name + part] = Number(reading, places, scored, asked, "higher", limits)
    return numbers


def _measured(
    judged: Sequence[PairLabels], unparsed: float | None = None, parts: Iterable[str] = ("",)
) -> dict[str, Metric]:
    """Every metric of some pairs."""
    scored = [scores_of(one, unparsed) for one in judged]
    columns: list[list[float]] = []
    numbers: dict[str, Number] = {}
    for name, (direction, limits) in _MEANS.items():
        asked = sum(name in scores for scores in scored)
        if asked:
            values = [scores.get(name) for scores in scored]
            known = [float(value is not None) for value in values]
            places = [len(columns), len(columns) + 1]
            numbers[name] = Number(ratio, places, np.array(known, bool), asked, direction, limits)
            columns += [[value or 0.0 for value in values], known]
    if any(one.listed_asked for one in judged):
        rows = [listing_counts(one, unparsed is not None) if one.listed_asked else None for one in judged]
        scored_rows = np.array([row is not None for row in rows])
        asked = sum(one.listed_asked for one in judged)
        numbers |= _listing_numbers(len(columns), scored_rows, asked, parts)
        columns += [list(column) for column in zip(*(row or [0] * _WIDTH for row in rows), strict=True)]
    if any(one.found_asked for one in judged):
        told = [one.found or () for one in judged]
        asked, understood = sum(one.found_asked for one in judged), [one.found is not None for one in judged]
        end = len(columns) + len(ERRORS)
        for at, kind in enumerate(ERRORS, len(columns)):
            numbers[f"drf_{kind}"] = Number(ratio, [at, end], np.array(understood), asked, "lower")
        columns += [[float(errors.count(kind)) for errors in told] for kind in ERRORS]
        columns.append([float(len(errors)) for errors in told])
    table = np.array(columns, float).reshape(len(columns), len(judged)).T
    return measure(table, [one.pair.id for one in judged], numbers)


def difference_type(pair: Pair) -> str:
    """The type of all its differences; `mixed` if they are of several, `none` if there are none."""
    types = {one.type for one in pair.differences}
    return types.pop() if len(types) == 1 else "mixed" if types else "none"


_GROUPS: dict[str, Callable[[Pair], str]] = {
    "difficulty": lambda pair: pair.difficulty or "unknown",
    "type": difference_type,
    "differences": lambda pair: str(len(pair.differences)),
}


def metrics_of(judged: Sequence[PairLabels]) -> dict[str, Metric]:
    """Every metric whose questions were asked, over all pairs and by difficulty, type and number of differences.

    With n true differences and n^ stated, each the mean over pairs (appendix B.2 unless said otherwise):

    - dqr_exact: 1[n^ = n]. dqr_ratio: n^ / n, of the released code; dqr_ratio_clamped: at most 1.
    - ds_tolerance: max(0, 1 - |n^ - n| / n). ds_exist: 1[n^ > 0] where n > 0, of the main text.
    - contradiction_rate: 'yes' to 'same?' and to 'different?'; contradiction_rate_no_no: 'no' to both; yes_ratio:
      'yes' to 'same?'. Of the pairs with one difference, as in the paper's Table 2 and Figure 11.
    - consistency_ratio: +1, -1, +0.5 for claims that agree, conflict, or neither, over the pairs of claims.
    - drf: claims that are true / claims made; drf_of_count: the same / n^; drf_steps: drf of the step-by-step form.

    And from counts pooled over pairs:

    - tf1_micro over the types, tf1_macro the mean of tf1_color, tf1_remove and tf1_position; cf1 over the
      categories, cf1_code with the duplicates of the released code; of each, `_precision` and `_recall`.
    - drf_type_category_mismatch, drf_type_confusion, drf_attribute_error, drf_quantity_error, drf_fabrication:
      shares of all claims made.

    `NAME_unparsed_0` counts answers that were not understood as 0, where NAME leaves them out and has a lower
    coverage (not for consistency_ratio: there no claims are nothing to judge). `NAME[difficulty=easy]`,
    `NAME[type=color]` and `NAME[differences=2]` rest on those pairs. Intervals are bootstraps over pairs.

    Args:
        judged: one a pair.

    Returns:
        Metrics by name.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"),))
        >>> metrics_of([PairLabels(pair, same="yes", different="yes")])["contradiction_rate"].value
        1.0
    """
    metrics = _measured(judged, parts=_PARTS)
    counted = _measured(judged, unparsed=0.0)
    metrics |= {f"{name}_unparsed_0": counted[name] for name in _counted_anyway(counted)}
    for key, group in _GROUPS.items():
        members: dict[str, list[PairLabels]] = {}
        for one in judged:
            members.setdefault(group(one.pair), []).append(one)
        for value, some in sorted(members.items()):
            metrics |= {f"{name}[{key}={value}]": one for name, one in _measured(some).items()}
    return metrics


def _counted_anyway(names: Iterable[str]) -> list[str]:
    """The metrics that an answer which was not understood can count 0 in."""
    errors = {f"drf_{kind}" for kind in ERRORS}
    return [name for name in names if name != "consistency_ratio" and name not in errors]
