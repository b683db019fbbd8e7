"""Features of an answer for the prediction of unfaithful answers: a few numbers of its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.analyses.attention_vs_activation import TOP, rank_correlation, read_maps, top_iou
from mmprobe.analyses.regions import find_patches, mask_patches
from mmprobe.cache import Trace
from mmprobe.cache.schema import BLOCK_STEPS, GROUP_NAMES
from mmprobe.errors import InputError, NotApplicable


class Feature(NamedTuple):
    """One number of an answer, computed from a series of `read_series` or from its first steps."""

    series: str
    compute: Callable[[np.ndarray], float]
    needs_end: bool = False  # whether the answer must have ended


def _early(values: np.ndarray) -> np.ndarray:
    """Return the values [step, layer] of the first third of the layers."""
    return values[:, : max(1, round(values.shape[1] / 3))]


def _late(values: np.ndarray) -> np.ndarray:
    """Return the values [step, layer] of the last third of the layers."""
    return values[:, -max(1, round(values.shape[1] / 3)) :]


FEATURES: dict[str, Feature] = {
    "visual_share": Feature("attention/mass", np.mean),
    "visual_share_early": Feature("attention/mass", lambda share: _early(share).mean()),
    "visual_share_late": Feature("attention/mass", lambda share: _late(share).mean()),
    "visual_slope": Feature("attention/mass", lambda share: slope_over_steps(share.mean(1)).item()),
    "visual_entropy": Feature("attention/visual", np.mean),
    "region_ratio": Feature("regions", np.mean),
    "overlap_iou": Feature("maps", lambda overlap: overlap[:, 0].mean()),
    "overlap_rank": Feature("maps", lambda overlap: overlap[:, 1].mean()),
    "residual_drift": Feature("residual/pair", lambda cosine: cosine[-1]),
    "cos_mha": Feature("update/cos_mha", np.mean),
    "cos_ffn_late": Feature("update/cos_ffn", lambda cosine: _late(cosine).mean()),
    "kl": Feature("update/kl", np.mean),
    "active_neurons": Feature("ffn/gate_sum", lambda sums: (sums > 0).mean(), needs_end=True),
    "logprob": Feature("steps/logprob", np.mean),
    "logprob_min": Feature("steps/logprob", np.min),
    "entropy": Feature("steps/entropy", np.mean),
    "steps": Feature("steps/logprob", len, needs_end=True),
}
"""Every feature, by name."""


def read_series(trace: Trace, partner: Trace | None = None) -> dict[str, np.ndarray]:
    """Return the series [step, ...] for the features, and ffn/gate_sum, as far as they were captured.

    Args:
        partner: the answer to the opposite question of the sample's pair.
    """
    captured = set(trace.captured)
    names = (
        "update/cos_mha",
        "update/cos_ffn",
        "update/kl",
        "ffn/gate_sum",
        "steps/logprob",
        "steps/entropy",
    )
    series = {name: trace.array(name).values for name in names if name in captured}
    if "attention/mass" in captured:
        mass = trace.attention_mass.values[..., GROUP_NAMES.index("visual")]
        series["attention/mass"] = mass.mean(2, dtype=float)
    if "attention/visual" in captured:
        inside = np.zeros(trace.attention_visual.shape[2], bool)
        if trace.sample.regions and "images/source" in captured:
            inside = mask_patches(find_patches(trace), trace.array("images/grid").values.tolist())
        entropy, share = _measure_visual(trace, inside)
        series["attention/visual"] = entropy
        if inside.any():
            series["regions"] = share / inside.mean()
    overlap = _measure_overlap(trace)
    if overlap is not None:
        series["maps"] = overlap
    if partner is not None and all("residual/post" in each.captured for each in (trace, partner)):
        series["residual/pair"] = _measure_drift(trace, partner)
    return series


def _measure_overlap(trace: Trace) -> np.ndarray | None:
    """Return IoU and rank correlation of the maps of attention and token activation, [step, 2].

    They are 0 where a map is 0 everywhere or constant. They are NaN if a value is not finite, and None if the
    trace has no maps.
    """
    needed = {"attention/visual", "tam/logit", "tam/prompt"}
    if not needed <= set(trace.captured) or not trace.images.sizes.get("image", 0):
        return None
    try:
        maps = read_maps(trace)
    except NotApplicable:
        return None
    except InputError:
        return np.full((1, 2), np.nan)
    return np.nan_to_num(np.stack([top_iou(*maps, TOP), rank_correlation(*maps)], -1))


def _measure_drift(trace: Trace, partner: Trace) -> np.ndarray:
    """Return the cosine of two answers' mean residual streams so far, mean over the last third of the layers.

    Number t is of the first t + 1 steps of each answer, or all steps of the shorter one. So the last number
    is the one of `residual_drift`.
    """
    streams = [each.array("residual/post") for each in (trace, partner)]
    steps, layers = max(map(len, streams)), streams[0].shape[1]
    late = range(layers - max(1, round(layers / 3)), layers)
    total = np.zeros(steps)
    for layer in late:
        sums = []
        for stream in streams:
            so_far = stream[:, layer].values.astype(float).cumsum(0)
            sums.append(so_far[np.minimum(np.arange(steps), len(so_far) - 1)])
        lengths = np.linalg.norm(sums[0], axis=-1) * np.linalg.norm(sums[1], axis=-1)
        with np.errstate(invalid="ignore"):
            total += (sums[0] * sums[1]).sum(-1) / lengths
    return total / len(late)


def _measure_visual(trace: Trace, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entropy [step] of attention over the visual tokens and its share [step] on a mask.

    Args:
        inside: bool [visual].

    They are means over the layers that attend to the images. They are NaN if no layer does or if a weight is
    not finite.
    """
    weights, blocks = trace.attention_visual, []
    for start in range(0, len(weights), BLOCK_STEPS):
        block = weights[start : start + BLOCK_STEPS].values.astype(float)
        total = block.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = block / total
            entropy = -np.where(shares > 0, shares * np.log(shares), 0).sum(-1)
            attends = total[..., 0] != 0
            measures = np.array([entropy, shares[..., inside].sum(-1)])
            means = np.where(attends, measures, 0).sum(-1) / attends.sum(-1)
        means[:, ~np.isfinite(total).all((1, 2))] = np.nan
        blocks.append(means)
    entropy, share = np.concatenate(blocks, 1) if blocks else np.zeros((2, 0))
    return entropy, share


def compute_features(series: dict[str, np.ndarray]) -> np.ndarray:
    """Return all features [upto, feature] of the first 1, 2, 4, ... steps and, last, of the whole answer.

    A feature is NaN if its series is missing, empty or not finite, or if it needs the answer's end.
    """
    steps = len(series["steps/logprob"])
    ends = [*(2**power for power in range(steps.bit_length())), None]
    rows = [[_compute_feature(feature, series, end) for feature in FEATURES.values()] for end in ends]
    return np.array(rows, float)


def _compute_feature(feature: Feature, series: dict[str, np.ndarray], end: int | None) -> float:
    if feature.series not in series or (feature.needs_end and end is not None):
        return np.nan
    values = series[feature.series][:end]
    return float(feature.compute(values)) if values.size and np.isfinite(values).all() else np.nan
