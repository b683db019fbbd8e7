"""Agreement of attention maps with token activation maps, and of both with the sample's regions.

SPD-Faith Bench (arXiv:2602.07833), section 4.1.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from mmprobe.analyses.regions import find_patches, mask_patches, random_masks
from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable, NotCaptured
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel, holm
from mmprobe.stats.intervals import COSINE, FRACTION

TOP = 0.2
DRAWS = 200
AGREEMENT = ("iou", "rank_correlation")
REGION_MEASURES = tuple(
    f"{measure}_{map_name}"
    for map_name in ("attention", "activation")
    for measure in ("region_mass", "random_mass", "region_mass_lift", "pointing", "random_pointing")
)
MEASURES = (*AGREEMENT, *REGION_MEASURES)


@analysis_of_run
def attention_vs_activation(
    run: Run,
    layers: list[int] | None = None,
    top: float = TOP,
    draws: int = DRAWS,
    seed: int = 0,
    minimum: int = MINIMUM,
    by_step: bool = True,
) -> xr.Dataset:
    """Return the overlap of each step's attention map and token activation map, and of both with the regions.

    The attention map is the attention on the visual tokens, mean over heads and layers. The activation map is
    the full map of `token_activation`. The maps are compared over all cells of all views of a sample
    together.

    Args:
        run: traces with `attention/visual`, `tam/logit` and `tam/prompt`.
        layers: layers of the attention; the default, all captured layers, is our choice.
        top: share of the cells that count as a map's top; the default 0.2 is our choice.
        draws: random places of the regions, each of its size on its view; the default 200 is our choice.
        seed: of the draws.
        minimum: samples that each group of a comparison needs; the default 5 is our choice.
        by_step: whether to return the variables by sample and step, which take 96 bytes a step.

    Returns:
        A data set with dimensions `sample`, `step`, `measure`, `label`. These variables are by sample and
        step, NaN beyond an answer's end and where a map is 0 everywhere:

        - iou: intersection over union of the two maps' top cells. Top cells are above 0 and not below the
          k-th largest cell.
        - rank_correlation: Spearman's, over all cells; NaN where a map is constant
        - region_mass_attention, region_mass_activation: share of the map's sum inside the regions; NaN
          for samples without regions
        - random_mass_…: mean share on random places of the same size; region_mass_lift_…: region_mass minus
          random_mass
        - pointing_attention, pointing_activation: 1 if the largest cell is in a region, else 0. If several
          cells are largest, it is the share of them on a region. random_pointing_…: the same on random places

        These variables are of each measure's mean over an answer's steps, without those that are NaN:

        - iou_of_sample, rank_correlation_of_sample, … of all measures (sample)
        - mean (measure, label), with _low, _high; n (measure, label)
        - difference (measure): unfaithful minus faithful, with _low, _high, effect, p, p_holm over measures
          (`compare_groups`). They are NaN if a group is too small, and attrs["note"] says so.

        Samples with values that are not finite are left out: attrs["left_out"] names them and n_left_out
        counts them. n_imageless counts the samples without images.

    Raises:
        NotApplicable: no sample has images with one token per patch.
        NotCaptured: attention/visual or the logits were not captured.
        InputError: an argument is out of range.

    Example:
        >>> ds = attention_vs_activation(run)                       # doctest: +SKIP
        >>> ds["mean"].sel(measure="iou", label="all").item()       # doctest: +SKIP
        0.31
    """
    if not 0 < top < 1:
        raise InputError(f"top {top}: must be between 0 and 1")
    if draws < 1:
        raise InputError(f"draws {draws}: must be 1 or more")
    measured = SampleRows("attention_vs_activation", run)
    steps: list[np.ndarray] = []
    n_imageless = 0
    for name, trace in run.stream("attention_vs_activation"):
        if not trace.images.sizes.get("image", 0):
            n_imageless += 1
            continue
        try:
            attention, activation = read_maps(trace, layers)
        except NotApplicable:
            raise
        except InputError:
            measured.left_out.append(name)
            continue
        measures = _measure_sample(trace, attention, activation, top, draws, seed)
        measured.add(trace, {"means": [_mean(measures[measure]) for measure in MEASURES]})
        if by_step:
            steps.append(np.array([measures[measure] for measure in MEASURES]))
    if not len(measured):
        raise NotApplicable(f"{run.path}: no sample has images and finite values")
    out = _join_steps(steps) if by_step else xr.Dataset()
    out = out.assign_coords(sample=measured.names, measure=list(MEASURES), label=list(LABELS))
    note = _add_means(out, measured.rows["means"], measured.labels, minimum)
    out.attrs = measured.describe(note, {"n_imageless": n_imageless}, top=top, draws=draws)
    return out


def read_maps(trace: Trace, layers: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the attention map and the full activation map of each step, float64 [step, visual].

    Raises:
        NotApplicable: the trace has images, but none of its tokens represents a patch.
        NotCaptured: a layer, attention/visual or the logits were not captured.
        InputError: values are not finite.

    Example:
        >>> attention, activation = read_maps(run["0001"])          # doctest: +SKIP
    """
    weights = trace.attention_visual
    if layers is not None:
        missing = set(layers) - set(weights["layer"].values.tolist())
        if missing:
            raise NotCaptured(f"trace {trace.id}: layer {min(missing)} was not captured")
        weights = weights.sel(layer=layers)
    attention = weights.values.astype(np.float64).mean(1)
    if not np.isfinite(attention).all():
        raise InputError(f"trace {trace.id}: attention/visual contains values that are not finite")
    views = visual_positions(trace)
    return attention, activation_maps(read_logits(trace, views.positions), views.grids)[0]


def _measure_sample(
    trace: Trace, attention: np.ndarray, activation: np.ndarray, top: float, draws: int, seed: int
) -> dict[str, np.ndarray]:
    """Return every measure [step] of one sample."""
    measures = {
        "iou": top_iou(attention, activation, top),
        "rank_correlation": rank_correlation(attention, activation),
    }
    unknown = np.full(len(attention), np.nan)
    measures |= dict.fromkeys(REGION_MEASURES, unknown)
    patches = find_patches(trace)
    if patches:
        grids = visual_positions(trace).grids
        mask = mask_patches(patches, grids)
        random = random_masks(patches, grids, draws, np.random.default_rng(seed))
        for map_name, maps in (("attention", attention), ("activation", activation)):
            for name, values in _measure_regions(maps, mask, random).items():
                measures[f"{name}_{map_name}"] = values
    return measures


def _measure_regions(maps: np.ndarray, mask: np.ndarray, random: np.ndarray) -> dict[str, np.ndarray]:
    """Return the region measures [step] of maps [step, visual].

    Args:
        mask: bool [visual], the regions.
        random: bool [draw, visual], random places of the regions.
    """
    mass, chance = mask_share(maps, mask[None])[:, 0], mask_share(maps, random).mean(1)
    peaks = (maps == maps.max(1, keepdims=True)) & (maps > 0)
    return {
        "region_mass": mass,
        "random_mass": chance,
        "region_mass_lift": mass - chance,
        "pointing": mask_share(peaks, mask[None])[:, 0],
        "random_pointing": mask_share(peaks, random).mean(1),
    }


def mask_share(maps: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the share of each map's sum inside each mask, [step, mask]; NaN if the sum is 0.

    Args:
        maps: [step, visual], 0 or more.
        masks: bool [mask, visual].

    Example:
        >>> mask_share(np.array([[1.0, 3.0]]), np.array([[True, False]])).tolist()
        [[0.25]]
    """
    maps = maps.astype(np.float64)
    total = maps.sum(1, keepdims=True)
    share = np.full((len(maps), len(masks)), np.nan)
    np.divide(maps @ masks.T.astype(np.float64), total, out=share, where=total > 0)
    return share


def top_cells(maps: np.ndarray, share: float) -> np.ndarray:
    """Return a mask bool [step, visual] of each map's top cells.

    Top cells are above 0 and not below the k-th largest cell, where k is `share` of all cells, at least 1.

    Example:
        >>> top_cells(np.array([[0.1, 0.4, 0.0, 0.3]]), 0.5).tolist()
        [[False, True, False, True]]
    """
    k = max(1, round(share * maps.shape[1]))
    least = np.partition(maps, -k, axis=1)[:, -k, None]
    return (maps >= least) & (maps > 0)


def top_iou(one: np.ndarray, two: np.ndarray, share: float) -> np.ndarray:
    """Return the intersection over union [step] of the top cells of two maps [step, visual].

    It is NaN where a map is 0 everywhere.

    Example:
        >>> top_iou(np.array([[0.1, 0.4, 0.0, 0.3]]), np.array([[0.0, 1.0, 0.0, 0.0]]), 0.5).tolist()
        [0.5]
    """
    first, second = top_cells(one, share), top_cells(two, share)
    iou = np.full(len(one), np.nan)
    np.divide((first & second).sum(1), (first | second).sum(1), out=iou, where=first.any(1) & second.any(1))
    return iou


def rank_correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation [step] of maps [step, visual]; NaN where a map is constant.

    Example:
        >>> rank_correlation(np.array([[1.0, 2.0, 3.0]]), np.array([[3.0, 2.0, 0.0]])).tolist()
        [-1.0]
    """
    ranks = [rankdata(maps, axis=1) - (maps.shape[1] + 1) / 2 for maps in (one, two)]
    product = (ranks[0] * ranks[1]).sum(1)
    squares = (ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1)
    correlation = np.full(len(one), np.nan)
    np.divide(product, np.sqrt(squares), out=correlation, where=squares > 0)
    return correlation


def _join_steps(steps: list[np.ndarray]) -> xr.Dataset:
    """Return the measures (sample, step) of all samples' [measure, step], NaN beyond an answer's end."""
    longest = max(values.shape[1] for values in steps)
    joined = np.full((len(MEASURES), len(steps), longest), np.nan)
    for number, values in enumerate(steps):
        joined[:, number, : values.shape[1]] = values
    variables = {name: (("sample", "step"), joined[place]) for place, name in enumerate(MEASURES)}
    return xr.Dataset(variables, {"step": np.arange(longest)})


def _add_means(out: xr.Dataset, of_samples: np.ndarray, labels: ByLabel, minimum: int) -> str:
    """Add the means by sample and by label, and the differences; return the note of the comparison.

    Args:
        of_samples: means over steps [sample, measure].
    """
    columns: dict[str, list[np.ndarray]] = {}
    counts, notes = [], []
    for measure, means in zip(MEASURES, of_samples.T, strict=True):
        out[f"{measure}_of_sample"] = ("sample", means)
        counts.append([int((mask & np.isfinite(means)).sum()) for mask in labels.masks.values()])
        range = COSINE if measure == "rank_correlation" or "_lift_" in measure else FRACTION
        label_means = labels.means("mean", means, range, ("label",))
        differences, note = labels.compare(means, (), minimum)
        notes.append(note)
        for name, (_, values) in (label_means | differences).items():
            columns.setdefault(name, []).append(np.asarray(values))
    for name, values in columns.items():
        dims = ("measure", "label") if name.startswith("mean") else ("measure",)
        out[name] = (dims, np.array(values))
    tested = np.isfinite(out["p"].values)
    adjusted = np.full(len(MEASURES), np.nan)
    adjusted[tested] = holm(out["p"].values[tested])
    out["p_holm"] = ("measure", adjusted)
    out["n"] = (("measure", "label"), np.array(counts))
    return notes[0]


def _mean(values: np.ndarray) -> float:
    """Return the mean of the finite values; NaN, without a warning, if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
