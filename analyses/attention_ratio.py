"""Attention on the changed regions against the rest of the images, by layer and head, and on sinks.

A side result of the code of SPD-Faith Bench (arXiv:2602.07833).
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from mmprobe.analyses.regions import find_patches, mask_patches, random_masks
from mmprobe.analyses.source import Columns, SampleRows, analysis_of_run
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel
from mmprobe.stats.estimate import Estimate, estimate_known, estimate_mean, stack_estimates
from mmprobe.stats.intervals import FRACTION, LENGTH

DRAWS = 100
HALVINGS = 20  # of the samples, for the stability of the heads; our choice


@analysis_of_run
def attention_ratio(run: Run, draws: int = DRAWS, seed: int = 0, minimum: int = MINIMUM) -> xr.Dataset:
    """Return the attention on the changed regions relative to other places, a ranking of heads, and sinks.

    The ratio is the mean attention on the visual tokens of a sample's regions over the mean attention on its
    other visual tokens, both averaged over the answer's steps. A ratio of 1 means that the regions get as
    much as any place. Random regions of the same size, anywhere on the same views, show the ratio by chance.

    Args:
        run: traces with `attention/visual`; `attention/visual_head` for the heads; `attention/mass` and
            `attention/leading` for attention before the first image; samples with `regions`.
        draws, seed: of the random regions; the defaults 100 and 0 are our choice.
        minimum: samples that each group of a comparison needs; the default 5 is our choice.

    Returns:
        A data set with dimensions `sample` (samples with regions), `layer`, `label`, `head`, `rank`:

        - ratio (sample, layer); ratio_random (sample, layer): mean over random regions
        - ratio_by_label (label, layer) with _low, _high, random_by_label with _low, _high; n_label (label)
        - difference (layer): unfaithful minus faithful, with _low, _high, effect, p, p_holm
          (`compare_groups`)
        - head_ratio (layer, head) with _low, _high: mean over samples; only with `attention/visual_head`
        - n_head (layer, head): samples in which the head attends to the images. A run of an earlier version keeps weights
          under 6e-8 as 0, so a head with an attention sink may have none
        - head_layer, head_number (rank): the heads in descending order of head_ratio, without those that have no ratio
        - head_stability: Spearman's correlation of the heads' ratios between two halves of the data that
          share no image, the mean of twenty halvings, with _low, _high: the
          smallest and the largest
        - border_share (layer) with _low, _high: share of visual attention on the outermost cells of the
          views; border_area: share of the cells that are outermost
        - leading_share (layer) with _low, _high: share of all attention on the tokens before the first image,
          mean over heads; only with `attention/leading`

        Intervals are 95 % intervals over sets of images (`stats.intervals`); attrs["sets"] is their
        number. Samples with values that are not finite, or with no attention beside their regions, are left
        out: attrs["left_out"] names them and n_left_out counts them. n_without_regions counts the samples
        without regions.

    Raises:
        NotApplicable: no sample has regions on its images.
        NotCaptured: attention/visual was not captured.
        InputError: the run is empty or draws is under 1.

    Example:
        >>> ds = attention_ratio(run)                               # doctest: +SKIP
        >>> ds.ratio_by_label.sel(label="all", layer=5).item()      # doctest: +SKIP
        3.1
    """
    if draws < 1:
        raise InputError(f"draws {draws}: must be 1 or more")
    measured = SampleRows("attention_ratio", run)
    n_without_regions = 0
    for name, trace in run.stream("attention_ratio"):
        patches = find_patches(trace) if trace.images.sizes.get("image", 0) else []
        if not patches:
            n_without_regions += 1
            continue
        row = _measure_sample(trace, draws, seed)
        if all(np.isfinite(values).all() for name, values in row.items() if name != "head_ratio"):
            measured.add(trace, row)
        else:
            measured.left_out.append(name)
    if not len(measured):
        raise NotApplicable(f"{run.path}: no sample has `regions` on its images and finite values")
    first, rows = run[measured.names[0]], measured.rows
    layers = first.attention_visual["layer"].values
    out = xr.Dataset(coords={"sample": measured.names, "layer": layers, "label": list(LABELS)})
    note = _add_ratios(out, rows, measured.labels, minimum)
    _add_sinks(out, rows, measured.sets)
    if "head_ratio" in rows:
        out["head"] = ("head", first.attention_visual_head["head"].values)
        _add_heads(out, rows["head_ratio"], measured.sets)
    out.attrs = measured.describe(note, {"n_without_regions": n_without_regions}, draws=draws)
    return out


def ratio_on(weights: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the mean weight on each mask over the mean weight elsewhere, [..., mask].

    It is NaN where a mask is empty or covers everything, and where nothing is elsewhere.

    Args:
        weights: [..., visual].
        masks: bool [mask, visual].

    Example:
        >>> ratio_on(np.array([3.0, 1.0, 1.0]), np.array([[True, False, False]])).tolist()
        [3.0]
    """
    inside, outside = masks.T.astype(np.float64), (~masks.T).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        on, off = (weights @ part / part.sum(0) for part in (inside, outside))
        return np.asarray(np.where(off > 0, on / off, np.nan))


def _measure_sample(trace: Trace, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Return a sample's measures [layer], border_area [], and head_ratio [layer, head]."""
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    patches = find_patches(trace)
    true = mask_patches(patches, grids)[None]
    random = random_masks(patches, grids, draws, np.random.default_rng(seed))
    weights = trace.attention_visual.values.astype(np.float64).mean(0)  # [layer, visual]
    border = np.concatenate([_border(grid).ravel() for grid in grids])
    with np.errstate(divide="ignore", invalid="ignore"):
        measures = {
            "ratio": ratio_on(weights, true)[:, 0],
            "ratio_random": ratio_on(weights, random).mean(-1),
            "border_share": weights[:, border].sum(1) / weights.sum(1),
        }
    measures["border_area"] = np.array(border.mean())
    if "attention/leading" in trace.captured:
        measures["leading_share"] = trace.attention_leading.values.astype(np.float64).mean((0, 2))
    if "attention/visual_head" in trace.captured:
        by_head = trace.attention_visual_head.mean("step", dtype=np.float64).values  # [layer, head, visual]
        measures["head_ratio"] = ratio_on(by_head, true)[..., 0]
    return measures


def _border(grid: tuple[int, int]) -> np.ndarray:
    """Return a mask bool [y, x] of the outermost cells of a grid."""
    cells = np.ones(grid, bool)
    cells[1:-1, 1:-1] = False
    return cells


def _add_ratios(out: xr.Dataset, rows: Columns, labels: ByLabel, minimum: int) -> str:
    """Add the ratios and their comparison; return the note of the comparison."""
    ratio, random = rows["ratio"], rows["ratio_random"]
    out["ratio"] = (("sample", "layer"), ratio)
    out["ratio_random"] = (("sample", "layer"), random)
    differences, note = labels.compare(ratio, minimum=minimum)
    out.update(labels.counts() | labels.means("ratio_by_label", ratio, LENGTH))
    out.update(labels.means("random_by_label", random, LENGTH) | differences)
    return note


def _add_sinks(out: xr.Dataset, rows: Columns, sets: np.ndarray) -> None:
    """Add the shares of attention on border cells and before the first image."""
    for name in ("border_share", "leading_share"):
        if name in rows:
            out.update(estimate_mean(rows[name], sets, FRACTION).variables(name, "layer"))
    out["border_area"] = ((), float(rows["border_area"].mean()))


def _add_heads(out: xr.Dataset, ratio: np.ndarray, groups: np.ndarray) -> None:
    """Add the mean ratios of the heads, their ranking, and the stability of the ranking.

    Args:
        ratio: [sample, layer, head].
        groups: int [sample], as `image_sets` returns them.
    """
    heads = ratio.reshape(len(ratio), -1).T
    mean = stack_estimates([estimate_known(head, groups, LENGTH) for head in heads], ratio.shape[1:])
    out.update(mean.variables("head_ratio", ("layer", "head")))
    out["n_head"] = (("layer", "head"), mean.n)
    order = np.argsort(-mean.value.ravel(), kind="stable")[: int((mean.n > 0).sum())]  # NaN come last
    layer, head = np.unravel_index(order, mean.value.shape)
    out["rank"] = ("rank", np.arange(len(order)) + 1)
    out["head_layer"] = ("rank", out["layer"].values[layer])
    out["head_number"] = ("rank", out["head"].values[head])
    correlations = correlate_halves(ratio.reshape(len(ratio), -1), groups)
    stability: Estimate[float] = Estimate(np.nan, np.nan, np.nan)
    if correlations:
        stability = Estimate(float(np.mean(correlations)), min(correlations), max(correlations))
    out.update(stability.variables("head_stability"))


def correlate_halves(ratio: np.ndarray, groups: np.ndarray) -> list[float]:
    """Return the rank correlation of the heads' mean ratios between two halves, for several random halvings.

    Args:
        ratio: [sample, head]; heads without a ratio in every sample are left out.
        groups: int [sample]; a group is in one half.

    Returns:
        One correlation a halving; none for fewer than two groups or two heads.
    """
    ratio, n_groups = ratio[:, np.isfinite(ratio).all(0)], int(groups.max()) + 1
    if n_groups < 2 or ratio.shape[1] < 2:
        return []
    rng, correlations = np.random.default_rng(0), []
    for _ in range(HALVINGS):
        half = np.isin(groups, rng.permutation(n_groups)[: n_groups // 2])
        ranks = [rankdata(ratio[mask].mean(0)) for mask in (half, ~half)]
        if min(ranks[0].std(), ranks[1].std()) > 0:
            correlations.append(float(np.corrcoef(*ranks)[0, 1]))
    return correlations
