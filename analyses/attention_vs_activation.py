"""Do the model's attention and the source of its words agree, and on the right place? (paper 003, section 4.1)"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from mmprobe.analyses.regions import mask_of, patches_of, random_masks
from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    by_label,
    holm,
    means_by_label,
    unfaithful_minus_faithful,
)
from mmprobe.analyses.token_activation import activation_maps, logits_of, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable, NotCaptured

TOP = 0.2
DRAWS = 200
AGREEMENT = ("iou", "rank_correlation")
ON_REGION = tuple(
    f"{what}_{of}"
    for of in ("attention", "activation")
    for what in ("region_mass", "random_mass", "region_mass_lift", "pointing", "random_pointing")
)
MEASURES = (*AGREEMENT, *ON_REGION)


def attention_vs_activation(
    run: Run,
    layers: list[int] | None = None,
    top: float = TOP,
    draws: int = DRAWS,
    seed: int = 0,
    minimum: int = MINIMUM,
) -> xr.Dataset:
    """Overlap of each step's attention map and token activation map, and of both with the sample's regions.

    Attention is that on the visual tokens, mean over heads and layers; activation the full map of
    `token_activation`. Both are compared over all cells of all views of a sample together.

    Args:
        run: traces with `attention/visual`, `tam/logit` and `tam/prompt`.
        layers: whose attention; ours, the default is all captured ones.
        top: share of the cells that count as a map's top; ours, the default is 0.2.
        draws: random places of regions, each of its size on its view; ours, the default is 200.
        seed: of the draws.
        minimum: samples that both groups of a comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample`, `step`, `measure`, `label`. By sample and step, NaN beyond an
        answer's end and where a map is 0 everywhere:

        - iou: intersection over union of the two maps' top cells: those above 0 and not below the k-th largest
        - rank_correlation: Spearman's, over all cells; NaN where a map is constant
        - region_mass_attention, region_mass_activation: share of the map's sum that lies on the regions; NaN
          for samples without; random_mass_…: the mean share on random places of the same size, and
          region_mass_lift_…: the share less that mean
        - pointing_attention, pointing_activation: whether the largest cell lies on a region (the share of the
          largest, of several), random_pointing_…: the same of random places

        And of each measure's mean over an answer's steps:

        - mean (measure, label), with _low, _high; n (measure, label)
        - difference (measure): unfaithful minus faithful, with _low, _high, effect, p, p_holm over measures
          (`compare_groups`); NaN where a group is too small; attrs["note"] says so

        attrs["left_out"] names samples with values that are not finite; n_left_out counts them. Samples
        without pictures are counted in n_imageless.

    Raises:
        NotApplicable: no sample has pictures whose tokens stand for patches.
        NotCaptured: attention/visual or the logits were not captured.
        InputError: an argument is out of range.

    Example:
        >>> ds = attention_vs_activation(run)                       # doctest: +SKIP
        >>> ds["mean"].sel(measure="iou", label="all").item()       # doctest: +SKIP
        0.31
    """
    if not 0 < top < 1 or draws < 1:
        raise InputError(f"top {top} must be between 0 and 1, and draws {draws} 1 or more")
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    names, labels, rows, left_out, imageless = [], [], [], [], 0
    for name, trace in run.stream("attention_vs_activation"):
        if not trace.images.sizes.get("image", 0):
            imageless += 1
            continue
        try:
            attention, activation = maps_of(trace, layers)
        except NotApplicable:
            raise
        except InputError:
            left_out.append(name)
            continue
        names.append(name)
        labels.append(run.faithful(name))
        rows.append(_measured(trace, attention, activation, top, draws, seed))
    if not rows:
        raise NotApplicable(f"{run.path}: no sample has pictures and finite values")
    out = _by_step(names, rows)
    note = _summarised(out, rows, labels, minimum)
    out.attrs = {
        "analysis": "attention_vs_activation",
        "run": str(run.path),
        "samples": len(names),
        "model": run.config["model"]["name"],
        "top": top,
        "draws": draws,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "n_imageless": imageless,
    } | ({"note": note} if note else {})
    return out


def maps_of(trace: Trace, layers: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Attention and full activation map of each step, float64 [step, visual].

    Raises:
        NotApplicable, NotCaptured: as `token_activation` and the reader say.
        InputError: values are not finite.

    Example:
        >>> attention, activation = maps_of(run["0001"])            # doctest: +SKIP
    """
    weights = trace.attention_visual
    if layers is not None:
        missing = set(layers) - set(weights["layer"].values.tolist())
        if missing:
            raise NotCaptured(f"trace {trace.id}: layer {min(missing)} was not captured")
        weights = weights.sel(layer=layers)
    attention = weights.values.astype(np.float64).mean(1)
    if not np.isfinite(attention).all():
        raise InputError(f"trace {trace.id}: attention/visual holds values that are not finite")
    views = visual_positions(trace)
    return attention, activation_maps(logits_of(trace, views.positions), views.grids)[0]


def _measured(
    trace: Trace, attention: np.ndarray, activation: np.ndarray, top: float, draws: int, seed: int
) -> dict[str, np.ndarray]:
    """Every measure of one sample: [step]."""
    first, second = top_cells(attention, top), top_cells(activation, top)
    either = (first | second).sum(1)
    with np.errstate(invalid="ignore"):
        found = {"iou": np.where(first.any(1) & second.any(1), (first & second).sum(1) / either, np.nan)}
    found["rank_correlation"] = rank_correlation(attention, activation)
    views, patches = visual_positions(trace), patches_of(trace)
    for of, maps in (("attention", attention), ("activation", activation)):
        nothing = np.full(len(maps), np.nan)
        found |= {name: nothing for name in ON_REGION if name.endswith(f"_{of}")}
        if patches:
            mask = mask_of(patches, views.grids)
            random = random_masks(patches, views.grids, draws, np.random.default_rng(seed))
            found |= {f"{name}_{of}": values for name, values in _on_region(maps, mask, random).items()}
    return found


def _on_region(maps: np.ndarray, mask: np.ndarray, random: np.ndarray) -> dict[str, np.ndarray]:
    """Measures [step] of maps [step, visual] on a mask [visual] and on random ones [draw, visual]."""
    mass, chance = mass_on(maps, mask[None])[:, 0], mass_on(maps, random).mean(1)
    peaks = (maps == maps.max(1, keepdims=True)) & (maps > 0)
    return {
        "region_mass": mass,
        "random_mass": chance,
        "region_mass_lift": mass - chance,
        "pointing": mass_on(peaks, mask[None])[:, 0],
        "random_pointing": mass_on(peaks, random).mean(1),
    }


def mass_on(maps: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Share [step, mask] of the sum of each map [step, visual] that lies on each mask [mask, visual]; NaN of nothing.

    Example:
        >>> mass_on(np.array([[1.0, 3.0]]), np.array([[True, False]])).tolist()
        [[0.25]]
    """
    maps = maps.astype(np.float64)
    total = maps.sum(1, keepdims=True)
    share = np.full((len(maps), len(masks)), np.nan)
    np.divide(maps @ masks.T.astype(np.float64), total, out=share, where=total > 0)
    return share


def top_cells(maps: np.ndarray, share: float) -> np.ndarray:
    """bool [step, visual]: the cells above 0 that are not below the k-th largest, k a share of all, at least 1.

    Example:
        >>> top_cells(np.array([[0.1, 0.4, 0.0, 0.3]]), 0.5).tolist()
        [[False, True, False, True]]
    """
    k = max(1, round(share * maps.shape[1]))
    least = np.partition(maps, -k, axis=1)[:, -k, None]
    return (maps >= least) & (maps > 0)


def rank_correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation [step] of maps [step, visual]; NaN where one is constant.

    Example:
        >>> rank_correlation(np.array([[1.0, 2.0, 3.0]]), np.array([[3.0, 2.0, 0.0]])).tolist()
        [-1.0]
    """
    ranks = [rankdata(maps, axis=1) - (maps.shape[1] + 1) / 2 for maps in (one, two)]
    product, squares = (ranks[0] * ranks[1]).sum(1), (ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1)
    found = np.full(len(one), np.nan)
    np.divide(product, np.sqrt(squares), out=found, where=squares > 0)
    return found


def _by_step(names: list[str], rows: list[dict[str, np.ndarray]]) -> xr.Dataset:
    """The measures of all samples (sample, step), NaN beyond an answer's end."""
    steps = max(len(row["iou"]) for row in rows)
    out = xr.Dataset(
        coords={
            "sample": names,
            "step": np.arange(steps),
            "measure": list(MEASURES),
            "label": list(LABELS),
        }
    )
    for measure in MEASURES:
        values = np.full((len(rows), steps), np.nan)
        for number, row in enumerate(rows):
            values[number, : len(row[measure])] = row[measure]
        out[measure] = (("sample", "step"), values)
    return out


def _summarised(
    out: xr.Dataset, rows: list[dict[str, np.ndarray]], labels: list[bool | None], minimum: int
) -> str:
    """Add means by label and differences of each measure; says why if labels are not compared."""
    parts: dict[str, list[np.ndarray]] = {}
    counts, notes = [], []
    for measure in MEASURES:
        means = np.array([_mean(row[measure]) for row in rows])
        known = np.isfinite(means)
        members = {label: mine & known for label, mine in by_label(labels).items()}
        counts.append([int(mine.sum()) for mine in members.values()])
        filled = np.where(known, means, 0.0)
        found = means_by_label("mean", filled, members, ("label",))
        compared, note = unfaithful_minus_faithful(filled, members, (), minimum)
        notes.append(note)
        for name, (_, values) in (found | compared).items():
            parts.setdefault(name, []).append(np.asarray(values))
    for name, values in parts.items():
        dims = ("measure", "label") if name.startswith("mean") else ("measure",)
        out[name] = (dims, np.array(values))
    tested = np.isfinite(out["p"].values)
    adjusted = np.full(len(MEASURES), np.nan)
    adjusted[tested] = holm(out["p"].values[tested])
    out["p_holm"] = ("measure", adjusted)
    out["n"] = (("measure", "label"), np.array(counts))
    return notes[0]


def _mean(values: np.ndarray) -> float:
    """Mean of what is known; NaN, without a warning, of nothing."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
