"""Which numbered boxes a model attended to, beside those that it named, ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.core.results import Metric, mean_metric
from mmprobe.benchmarks.magic.boxes.regions import Box
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.metrics import magiscore
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable, NotCaptured

MINIMUM_LIFT = 1.0


class AttentionView(NamedTuple):
    """Attention on one grid of visual tokens: weights [y, x], 0 or more, and what of the picture it shows.

    The box is x, y, width and height in pixels of the picture, which need not be whole.
    """

    weights: np.ndarray
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Attended:
    """Attention on the boxes of one picture.

    Attributes:
        mass: [box], share of the attention on the picture that falls on each; boxes may overlap.
        lift: [box], that share over the share of the tokens that fall on the box: 1 is what even attention
            gives. NaN for a box that no view shows.
        regions: numbers, from 1, of the boxes whose lift is above the minimum.
    """

    mass: np.ndarray
    lift: np.ndarray
    regions: frozenset[int]


def attended_regions(
    views: Sequence[AttentionView], boxes: Sequence[Box], minimum_lift: float = MINIMUM_LIFT
) -> Attended | None:
    """Which boxes attention falls on; give their numbers to `magiscore` with another name.

    A token's weight is spread evenly over the part of the picture that it stands for.

    Args:
        views: of one picture, such as `views_of` reads; most families have one.
        boxes: in pixels of the picture.
        minimum_lift: a box counts as attended to above it; ours is 1, more than even attention.

    Returns:
        None where there is no attention, or some is not finite.

    Raises:
        InputError: a map is empty or holds a negative weight.

    Example:
        >>> view = AttentionView(np.array([[3.0, 1.0]]), (0, 0, 20, 10))
        >>> attended_regions([view], [(0, 0, 10, 10), (10, 0, 10, 10)]).regions
        frozenset({1})
    """
    maps = [np.asarray(view.weights, float) for view in views]
    if any(weights.ndim != 2 or not weights.size for weights in maps):
        raise InputError("an attention map needs two dimensions and a token at least")
    if not all(np.isfinite(weights).all() for weights in maps):
        return None
    if any(weights.min() < 0 for weights in maps):
        raise InputError("an attention map holds a negative weight")
    total, tokens = sum(weights.sum() for weights in maps), sum(weights.size for weights in maps)
    if not total:
        return None
    mass, share = np.zeros(len(boxes)), np.zeros(len(boxes))
    for weights, (left, top, width, height) in zip(maps, (view.box for view in views), strict=True):
        for index, (x, y, w, h) in enumerate(boxes):
            rows = _covered(y - top, h, height, weights.shape[0])
            columns = _covered(x - left, w, width, weights.shape[1])
            mass[index] += rows @ weights @ columns / total
            share[index] += rows.sum() * columns.sum() / tokens
    lift = np.full(len(boxes), np.nan)
    np.divide(mass, share, out=lift, where=share > 0)
    above = np.flatnonzero(lift > minimum_lift * (1 + 1e-9))  # even attention is not above 1 by rounding
    return Attended(mass, lift, frozenset(int(index) + 1 for index in above))


def _covered(start: float, length: float, pixels: float, cells: int) -> np.ndarray:
    """Share of each of a side's equal cells that the pixels from start on cover: [cell]."""
    edges = np.arange(cells + 1) * pixels / cells
    inside = np.minimum(edges[1:], start + length) - np.maximum(edges[:-1], start)
    return np.maximum(inside, 0) * cells / pixels


def views_of(trace: Trace, image: int = 0, layers: Sequence[int] | None = None) -> list[AttentionView]:
    """Mean attention of an answer's steps on the views of one picture, over layers and heads.

    Args:
        trace: with `attention/visual`.
        image: index into the sample's pictures.
        layers: whose attention; all captured ones by default.

    Raises:
        NotApplicable: the trace has no such picture, no step, or a family without a token a patch.
        NotCaptured: attention/visual, or one of the layers, was not captured.

    Example:
        >>> views_of(run["0001"])[0].weights.shape                  # doctest: +SKIP
        (4, 4)
    """
    weights = trace.attention_visual
    if layers is not None:
        missing = set(layers) - set(weights["layer"].values.tolist())
        if missing:
            raise NotCaptured(f"trace {trace.id}: layer {min(missing)} was not captured")
        weights = weights.sel(layer=list(layers))
    images = trace.images.compute()
    grids = [(int(rows), int(columns)) for rows, columns in images["grid"].values]
    ends = np.cumsum([rows * columns for rows, columns in grids])
    if not weights.sizes["step"] or not len(ends) or int(ends[-1]) != weights.sizes["visual"]:
        raise NotApplicable(f"trace {trace.id}: no attention on tokens that stand for patches of pictures")
    mean = weights.values.astype(np.float64).mean((0, 1))
    found = []
    for view in np.flatnonzero(images["source"].values == image):
        rows, columns = grids[view]
        left, top, width, height = (float(side) for side in images["box"].values[view])
        part = mean[ends[view] - rows * columns : ends[view]].reshape(rows, columns)
        found.append(AttentionView(part, (left, top, width, height)))
    if not found:
        raise NotApplicable(f"trace {trace.id}: holds no picture {image}")
    return found


def attention_scores(
    questions: Sequence[MagicQuestion], run: Run, minimum_lift: float = MINIMUM_LIFT
) -> tuple[dict[str, Metric], dict[str, dict[str, Any]]]:
    """MagiScore of the boxes that a traced model attended to, beside that of those that its answers name; ours.

    Args:
        questions: with boxes.
        run: of their answers, under their ids.
        minimum_lift: of `attended_regions`.

    Returns:
        Metrics, and by question's id the boxes attended to and each one's lift. What was not traced, or has no
        attention on patches, lowers the coverage.

        - attention_magiscore_...: as `magiscore`
        - attention_lift_relevant, attention_lift_adversarial: mean over questions of the mean lift of the boxes
          that matter, and of the others

    Example:
        >>> attention_scores(truth.questions, open_run("out/run"))[0]               # doctest: +SKIP
    """
    traced = set(run.ids)
    found = [
        _attended(run[question.id], question, minimum_lift) if question.id in traced else None
        for question in questions
    ]
    regions = [None if one is None else one.regions for one in found]
    relevant = [question.relevant() for question in questions]
    lifts = {
        kind: mean_metric(
            [
                None if one is None else _mean_lift(one, question, kind == "relevant")
                for question, one in zip(questions, found, strict=True)
            ],
            "higher" if kind == "relevant" else "lower",
            (0.0, None),
        )
        for kind in ("relevant", "adversarial")
    }
    metrics = magiscore(regions, relevant, "attention_magiscore")
    rows = {
        question.id: {
            "attended": None if one is None else sorted(one.regions),
            "lift": None if one is None else [float(x) if np.isfinite(x) else None for x in one.lift],
        }
        for question, one in zip(questions, found, strict=True)
    }
    return metrics | {f"attention_lift_{kind}": metric for kind, metric in lifts.items()}, rows


def _attended(trace: Trace, question: MagicQuestion, minimum_lift: float) -> Attended | None:
    try:
        return attended_regions(views_of(trace), [box.box for box in question.boxes], minimum_lift)
    except NotApplicable:  # no step, or no token that stands for a patch, or not captured
        return None


def _mean_lift(attended: Attended, question: MagicQuestion, relevant: bool) -> float | None:
    own = [
        lift
        for lift, box in zip(attended.lift, question.boxes, strict=True)
        if box.relevant == relevant and np.isfinite(lift)
    ]
    return float(np.mean(own)) if own else None
