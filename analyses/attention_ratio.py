"""Where on the pictures attention goes: to what changed, by which heads, and how much to sinks."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from mmprobe.analyses.held_out import picture_groups
from mmprobe.analyses.regions import mask_of, patches_of, random_masks
from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    bootstrap_mean,
    by_label,
    means_by_label,
    unfaithful_minus_faithful,
)
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable

DRAWS = 100


def attention_ratio(run: Run, draws: int = DRAWS, seed: int = 0, minimum: int = MINIMUM) -> xr.Dataset:
    """Attention on the changed regions against the rest of the pictures, heads ranked by it, and sinks.

    The ratio is the mean attention on the visual tokens of a sample's regions over that on its other visual
    tokens, both over an answer's steps (a side result of paper 003's code); 1 means that the regions get what
    any place gets. Random regions of the same size, anywhere on the same views, show what chance gives.

    Args:
        run: traces with `attention/visual`; `attention/visual_head` for the heads, `attention/mass` and
            `attention/leading` for what goes before the pictures; samples with `regions`.
        draws, seed: of the random regions; ours, the defaults are 100 and 0.
        minimum: samples that both groups of a comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample` (those with regions), `layer`, `label`, `head`, `rank`:

        - ratio (sample, layer), ratio_random (sample, layer): mean over random regions
        - ratio_by_label (label, layer) with _low, _high, random_by_label with _low, _high; n_label (label)
        - difference (layer): unfaithful minus faithful, with _low, _high, effect, p, p_holm (`compare_groups`)
        - head_ratio (layer, head) with _low, _high: mean over samples; head_layer, head_number (rank): the
          heads by it, the largest first; head_stability: Spearman's correlation of the heads' ratios between
          two halves of the data, no pictures in both, with _low, _high over twenty ways of halving; only with
          `attention/visual_head`
        - border_share (layer) with _low, _high: share of visual attention on the outermost cells of the views;
          border_area: their share of the cells
        - leading_share (layer) with _low, _high: share of all attention on what stands before the first
          picture, which holds the first tokens, mean over heads; only with `attention/leading`

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples with values
        that are not finite, or without any attention beside their regions; n_left_out counts them,
        n_without_regions those that say nothing of where to look.

    Raises:
        NotApplicable: no sample has regions on its pictures.
        NotCaptured: attention/visual was not captured.
        InputError: the run is empty or draws is under 1.

    Example:
        >>> ds = attention_ratio(run)                               # doctest: +SKIP
        >>> ds.ratio_by_label.sel(label="all", layer=5).item()      # doctest: +SKIP
        3.1
    """
    if draws < 1:
        raise InputError(f"draws {draws}: must be 1 or more")
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    rows, samples, left_out, without = [], [], [], 0
    for name, trace in run.stream("attention_ratio"):
        patches = patches_of(trace) if trace.images.sizes.get("image", 0) else []
        if not patches:
            without += 1
            continue
        row = _of_sample(trace, draws, seed)
        if all(np.isfinite(values).all() for values in row.values()):
            rows.append(row)
            samples.append(trace.sample)
        else:
            left_out.append(name)
    if not rows:
        raise NotApplicable(f"{run.path}: no sample has `regions` on its pictures and finite values")
    names = [sample.id for sample in samples]
    first = run[names[0]]
    out = xr.Dataset(
        coords={"sample": names, "layer": first.attention_visual["layer"].values, "label": list(LABELS)}
    )
    note = _ratios(out, rows, by_label([run.faithful(name) for name in names]), minimum)
    _sinks(out, rows)
    if "head_ratio" in rows[0]:
        out["head"] = ("head", first.attention_visual_head["head"].values)
        _heads(out, np.array([row["head_ratio"] for row in rows]), picture_groups(samples))
    out.attrs = {
        "analysis": "attention_ratio",
        "run": str(run.path),
        "samples": len(names),
        "model": run.config["model"]["name"],
        "draws": draws,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "n_without_regions": without,
    } | ({"note": note} if note else {})
    return out


def ratio_on(weights: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Mean of weights [..., visual] on each mask over the mean elsewhere: [..., mask]; NaN where there is none.

    Example:
        >>> ratio_on(np.array([3.0, 1.0, 1.0]), np.array([[True, False, False]])).tolist()
        [3.0]
    """
    inside = masks.T.astype(np.float64)
    size, total = inside.sum(0), weights.sum(-1, keepdims=True)
    on = weights @ inside
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((on / size) / ((total - on) / (weights.shape[-1] - size)))


def _of_sample(trace: Trace, draws: int, seed: int) -> dict[str, np.ndarray]:
    """A sample's numbers: by layer [layer], and head_ratio [layer, head]."""
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    patches = patches_of(trace)
    true = mask_of(patches, grids)[None]
    random = random_masks(patches, grids, draws, np.random.default_rng(seed))
    weights = trace.attention_visual.values.astype(np.float64).mean(0)  # [layer, visual]
    border = np.concatenate([_border(grid).ravel() for grid in grids])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {
            "ratio": ratio_on(weights, true)[:, 0],
            "ratio_random": ratio_on(weights, random).mean(-1),
            "border_share": weights[:, border].sum(1) / weights.sum(1),
        }
    found["border_area"] = np.array(border.mean())
    if "attention/leading" in trace.captured:
        found["leading_share"] = trace.attention_leading.values.astype(np.float64).mean((0, 2))
    if "attention/visual_head" in trace.captured:
        by_head = trace.attention_visual_head.mean("step", dtype=np.float64).values  # [layer, head, visual]
        found["head_ratio"] = ratio_on(by_head, true)[..., 0]
    return found


def _border(grid: tuple[int, int]) -> np.ndarray:
    cells = np.ones(grid, bool)
    cells[1:-1, 1:-1] = False
    return cells


def _ratios(
    out: xr.Dataset, rows: list[dict[str, np.ndarray]], members: dict[str, np.ndarray], minimum: int
) -> str:
    ratio, random = (np.array([row[name] for row in rows]) for name in ("ratio", "ratio_random"))
    out["ratio"], out["ratio_random"] = (("sample", "layer"), ratio), (("sample", "layer"), random)
    out["n_label"] = ("label", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n_label"][1])), ((), int(out["n_label"][2]))
    out.update(means_by_label("ratio_by_label", ratio, members, ("label", "layer")))
    out.update(means_by_label("random_by_label", random, members, ("label", "layer")))
    compared, note = unfaithful_minus_faithful(ratio, members, ("layer",), minimum)
    out.update(compared)
    return note


def _sinks(out: xr.Dataset, rows: list[dict[str, np.ndarray]]) -> None:
    for name in ("border_share", "leading_share"):
        if name in rows[0]:
            values = np.array([row[name] for row in rows])
            low, high = bootstrap_mean(values)
            for end, array in (("", values.mean(0)), ("_low", low), ("_high", high)):
                out[name + end] = ("layer", array)
    out["border_area"] = ((), float(np.mean([row["border_area"] for row in rows])))


def _heads(out: xr.Dataset, ratio: np.ndarray, pictures: np.ndarray) -> None:
    """Add the heads' ratios [sample, layer, head], their ranking, and how stable it is.

    Args:
        pictures: int [sample], the set of pictures that a sample is about.
    """
    low, high = bootstrap_mean(ratio)
    mean = ratio.mean(0)
    for end, values in (("", mean), ("_low", low), ("_high", high)):
        out[f"head_ratio{end}"] = (("layer", "head"), values)
    order = np.argsort(-mean.ravel(), kind="stable")
    layer, head = np.unravel_index(order, mean.shape)
    out["rank"] = ("rank", np.arange(len(order)) + 1)
    out["head_layer"] = ("rank", out["layer"].values[layer])
    out["head_number"] = ("rank", out["head"].values[head])
    found = _stability(ratio.reshape(len(ratio), -1), pictures)
    out["head_stability"] = ((), float(np.mean(found)) if found else np.nan)
    ends = np.percentile(found, [2.5, 97.5]) if found else (np.nan, np.nan)
    out["head_stability_low"], out["head_stability_high"] = ((), float(ends[0])), ((), float(ends[1]))


def _stability(ratio: np.ndarray, pictures: np.ndarray, halvings: int = 20) -> list[float]:
    """Rank correlations of mean ratios [sample, head] between halves of the sets of pictures [sample]."""
    known = int(pictures.max()) + 1
    if known < 2 or ratio.shape[1] < 2:
        return []
    rng, found = np.random.default_rng(0), []
    for _ in range(halvings):
        half = np.isin(pictures, rng.permutation(known)[: known // 2])
        ranks = [rankdata(ratio[mine].mean(0)) for mine in (half, ~half)]
        if min(ranks[0].std(), ranks[1].std()) > 0:
            found.append(float(np.corrcoef(*ranks)[0, 1]))
    return found
