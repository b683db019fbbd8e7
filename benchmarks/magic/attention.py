"""Find the numbered boxes that a model attended to, and compare them with the relevant ones; our choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmprobe.analyses.regions import covered_shares, split_grids
from mmprobe.benchmarks.core.results import Direction, Metric, mean_metric
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.metrics import magiscore
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Box

MINIMUM_LIFT = 1.0


class AttentionView(NamedTuple):
    """The attention on a grid of visual tokens: weights [y, x], 0 or more, and the part it shows.

    The box is x, y, width and height in pixels of the image, which may be fractions.
    """

    weights: np.ndarray
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class BoxAttention:
    """The attention on the boxes of one image, which may overlap.

    `mass` [box] is the share of the image's attention on each box. `lift` [box] is the mass divided by the
    share of tokens on the box: 1 for uniform attention, NaN for a box that no view shows. `attended` are the
    numbers, from 1, of the boxes whose lift is above the minimum.
    """

    mass: np.ndarray
    lift: np.ndarray
    attended: frozenset[int]


def measure_box_attention(
    views: Sequence[AttentionView], boxes: Sequence[Box], minimum_lift: float = MINIMUM_LIFT
) -> BoxAttention | None:
    """Measure the attention on each box. The weight of a token is spread evenly over its part of the image.

    Boxes are in pixels. One above the minimum lift is attended; our default is 1, more than uniform attention.
    Returns None without attention or with a weight that is not finite. Raises InputError for an empty map or
    a negative weight.

    Example:
        >>> view = AttentionView(np.array([[3.0, 1.0]]), (0, 0, 20, 10))
        >>> measure_box_attention([view], [(0, 0, 10, 10), (10, 0, 10, 10)]).attended
        frozenset({1})
    """
    maps = [np.asarray(view.weights, float) for view in views]
    if any(weights.ndim != 2 or not weights.size for weights in maps):
        raise InputError("an attention map needs two dimensions and at least one token")
    if not all(np.isfinite(weights).all() for weights in maps):
        return None
    if any(weights.min() < 0 for weights in maps):
        raise InputError("an attention map contains a negative weight")
    total = sum(weights.sum() for weights in maps)
    n_tokens = sum(weights.size for weights in maps)
    if not total:
        return None
    mass = np.zeros(len(boxes))
    token_share = np.zeros(len(boxes))
    for weights, (left, top, width, height) in zip(maps, (view.box for view in views), strict=True):
        for index, (x, y, w, h) in enumerate(boxes):
            rows = covered_shares(y - top, h, height, weights.shape[0])
            columns = covered_shares(x - left, w, width, weights.shape[1])
            mass[index] += rows @ weights @ columns / total
            token_share[index] += rows.sum() * columns.sum() / n_tokens
    lift = np.full(len(boxes), np.nan)
    np.divide(mass, token_share, out=lift, where=token_share > 0)
    # Rounding must not lift uniform attention above the minimum.
    above = np.flatnonzero(lift > minimum_lift * (1 + 1e-9))
    return BoxAttention(mass, lift, frozenset(int(index) + 1 for index in above))


def read_attention_views(trace: Trace, image: int = 0) -> list[AttentionView]:
    """Return the attention on the views of an image, averaged over steps, captured layers and heads.

    Raises NotApplicable where the trace has no such image or no step, or its family has no token per patch,
    and NotCaptured without `attention/visual`.
    """
    weights = trace.attention_visual
    shapes, source, box = (trace.array(f"images/{name}").values for name in ("grid", "source", "box"))
    grids = [(int(rows), int(columns)) for rows, columns in shapes]
    tokens = sum(rows * columns for rows, columns in grids)
    if not weights.sizes["step"] or not grids or tokens != weights.sizes["visual"]:
        raise NotApplicable(f"trace {trace.id}: has no attention on tokens that show image patches")
    mean = weights.values.astype(np.float64).mean((0, 1))
    views = []
    for grid, shown, (left, top, width, height) in zip(
        split_grids(mean, grids), source.tolist(), box.tolist(), strict=True
    ):
        if shown == image:
            views.append(AttentionView(grid, (left, top, width, height)))
    if not views:
        raise NotApplicable(f"trace {trace.id}: holds no image {image}")
    return views


def score_attention(
    questions: Sequence[MagicQuestion], run: Run
) -> tuple[dict[str, Metric], dict[str, dict[str, Any]]]:
    """Return the MagiScore of the boxes that a traced model attended to, and rows by question id; our choice.

    A question without a trace or without attention on patches lowers the coverage. `attention_lift_relevant`
    and `attention_lift_adversarial` are means over questions of the mean lift of the relevant and of the
    other boxes. A row contains the attended boxes and the lift of each box.
    """
    traced = set(run.ids)
    measured = [
        _measure_trace(run[question.id], question) if question.id in traced else None
        for question in questions
    ]
    attended = [None if boxes is None else boxes.attended for boxes in measured]
    metrics = magiscore(attended, [question.relevant() for question in questions], "attention_magiscore")
    directions: dict[bool, Direction] = {True: "higher", False: "lower"}
    for relevant, name in ((True, "relevant"), (False, "adversarial")):
        lifts = [_mean_lift(*pair, relevant) for pair in zip(questions, measured, strict=True)]
        metrics[f"attention_lift_{name}"] = mean_metric(lifts, directions[relevant], (0.0, None))
    rows: dict[str, dict[str, Any]] = {}
    for question, boxes in zip(questions, measured, strict=True):
        rows[question.id] = {
            "attended": None if boxes is None else sorted(boxes.attended),
            "lift": None if boxes is None else [float(x) if np.isfinite(x) else None for x in boxes.lift],
        }
    return metrics, rows


def _measure_trace(trace: Trace, question: MagicQuestion) -> BoxAttention | None:
    try:
        views = read_attention_views(trace)
    except NotApplicable:  # also raised if the attention was not captured
        return None
    return measure_box_attention(views, [box.box for box in question.boxes])


def _mean_lift(question: MagicQuestion, attention: BoxAttention | None, relevant: bool) -> float | None:
    """Return the mean lift of a question over its relevant boxes, or over the others."""
    if attention is None:
        return None
    chosen = np.array([box.relevant == relevant for box in question.boxes]) & np.isfinite(attention.lift)
    return float(attention.lift[chosen].mean()) if chosen.any() else None
