"""Decay of attention to the images while the answer is written.

SPD-Faith Bench (arXiv:2602.07833), section 4.2.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import LABELS, bootstrap_mean, label_masks
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError, NotApplicable

AUTHORS_GROUPS = ("system", "visual", "user")


def attention_decay(run: Run) -> xr.Dataset:
    """Return attention by token group, layer and step, averaged over samples, with intervals.

    A row is the softmax of the query that produced a step's token, summed over each token group. Answers
    differ in length: the mean at step t is over the samples that reach step t, and `n` is their number.

    Args:
        run: traces with `attention/mass`; `attention/leading` for the authors' form.

    Returns:
        A data set with dimensions `step`, `layer`, `group`, `label` (all, faithful, unfaithful):

        - mass (layer, step, group): attention summed over the group, mean over heads and samples; sums to 1
        - mass_per_token: the same, divided by the number of tokens in the group at that step
        - mass_authors (layer, step, authors_group): the authors' form. `system` is everything before the
          first image, `user` the rest of the prompt; the three groups sum to 1, so generated tokens are left
          out. Only samples with an image; NaN without `attention/leading`
        - visual_share (layer), with _low, _high: share of attention on visual tokens, mean over steps, then
          samples
        - slope (layer), with _low, _high: least-squares slope of that share over steps, mean over samples
        - visual_by_label (label, layer, step), slope_by_label (label, layer) with _low, _high
        - decay (label), with _low, _high: that slope, mean over layers; below 0 if attention falls
        - early_suppression (label), with _low, _high: visual share in the first third of the layers minus the
          share in the other layers; below 0 if early layers attend less to the images
        - share_of_sample, slope_of_sample (sample, layer): share and slope of each sample. Both are NaN for
          samples without images, and the slope is NaN for fewer than two steps.
        - n (step), n_label (label): numbers of samples. n_by_label (label, step) and n_share (label) count
          samples with images only, n_slope (label) those of two steps or more.
        - mass_head (layer, head, step, group): mass of each head

        Intervals are 95 % percentile bootstraps over samples, NaN for fewer than two samples. Samples with
        values that are not finite are left out: attrs["left_out"] names them and n_left_out counts them. A
        layer that did not run is NaN throughout and leaves no sample out.

    Raises:
        InputError: the run is empty.
        NotCaptured: attention/mass was not captured.
        NotApplicable: no sample has finite values.

    Example:
        >>> ds = attention_decay(run)                               # doctest: +SKIP
        >>> ds.slope.sel(layer=3).item(), ds.slope_low.sel(layer=3).item()   # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    means = {name: StepMean() for name in ("mass", "mass_per_token", "mass_authors")}
    visual = {label: StepMean() for label in LABELS}
    labels, shares, slopes, names, left_out = [], [], [], [], []
    for name, trace in run.stream("attention_decay"):
        arrays = _measure_sample(trace)
        if arrays is None:
            left_out.append(name)
            continue
        names.append(name)
        labels.append(run.faithful(name))
        for kind, mean in means.items():
            mean.add(arrays[kind])
        for label, mask in label_masks(labels[-1:]).items():
            if mask.item() and not np.isnan(arrays["visual"]).all():
                visual[label].add(arrays["visual"])
        shares.append(arrays["visual"].mean(0))
        slopes.append(slope_over_steps(arrays["visual"]))
    if not names:
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in attention/mass")
    out = _average_steps(means, run[names[0]].attention_mass)
    steps = out.sizes["step"]
    out["n"] = ("step", means["mass"].reached(steps))
    out["n_by_label"] = (("label", "step"), np.array([visual[label].reached(steps) for label in LABELS]))
    layers = out.sizes["layer"]
    visual_means = [visual[label].mean(steps, (layers,)).T for label in LABELS]
    out["visual_by_label"] = (("label", "layer", "step"), np.array(visual_means))
    out.coords["sample"] = names
    for kind, values in (("share_of_sample", shares), ("slope_of_sample", slopes)):
        out[kind] = (("sample", "layer"), np.array(values))
    _add_sample_means(out, np.array(shares), np.array(slopes), label_masks(labels))
    out.attrs = {
        "analysis": "attention_decay",
        "run": str(run.path),
        "samples": len(names),
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    return out


class StepMean:
    """Running mean over samples of rows [step, ...] of different lengths; it keeps sums, not rows.

    Example:
        >>> mean = StepMean()
        >>> mean.add(np.array([1.0, 2.0]))
        >>> mean.add(np.array([3.0]))
        >>> mean.mean(2).tolist()
        [2.0, 2.0]
    """

    def __init__(self) -> None:
        self.total = self.count = np.zeros(0)
        self.lengths: list[int] = []

    def add(self, row: np.ndarray) -> None:
        """Add a sample's row; NaN is ignored."""
        if len(row) > len(self.total):
            longer = np.zeros((2, *row.shape))
            if self.lengths:
                longer[0, : len(self.total)], longer[1, : len(self.count)] = self.total, self.count
            self.total, self.count = longer
        known = ~np.isnan(row)
        self.total[: len(row)] += np.where(known, row, 0)
        self.count[: len(row)] += known
        self.lengths.append(len(row))

    def mean(self, steps: int, empty_shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return the mean [step, ...], NaN where there is no number.

        Args:
            empty_shape: shape of a step if no row was added.
        """
        shape = self.total.shape[1:] if self.lengths else empty_shape
        mean = np.full((steps, *shape), np.nan)
        if self.lengths:
            np.divide(self.total, self.count, out=mean[: len(self.total)], where=self.count > 0)
        return mean

    def reached(self, steps: int) -> np.ndarray:
        """Return the number of samples that reach each step, int64 [step]."""
        return (np.array(self.lengths, int)[:, None] > np.arange(steps)).sum(0)


def _average_steps(means: dict[str, StepMean], mass: xr.DataArray) -> xr.Dataset:
    """Return the means over samples by step, averaged over heads, and `mass_head` of each head."""
    steps = max(means["mass"].lengths)
    arrays = xr.Dataset(
        {
            name: (
                ("step", "layer", "head", "authors_group" if name == "mass_authors" else "group"),
                mean.mean(steps),
            )
            for name, mean in means.items()
        },
        coords={name: mass[name].values for name in ("layer", "head", "group")}
        | {"step": np.arange(steps), "authors_group": list(AUTHORS_GROUPS), "label": list(LABELS)},
    )
    out = arrays.mean("head").transpose("layer", "step", ...)
    out["mass_head"] = arrays["mass"].transpose("layer", "head", "step", "group")
    return out


def _measure_sample(trace: Trace) -> dict[str, np.ndarray] | None:
    """Return a sample's masses [step, layer, head, group] and its `visual` [step, layer].

    The masses are `mass`, `mass_per_token` and `mass_authors`. Return None if a value is not finite. A layer that did not run may be NaN throughout.
    """
    mass = trace.attention_mass.values.astype(float)
    if not (np.isfinite(mass) | np.isnan(mass).all((0, 2, 3))[:, None, None]).all():
        return None
    groups = trace.tokens["group"].values
    sizes = np.bincount(groups, minlength=mass.shape[-1]).astype(float)
    per_step = np.tile(sizes, (len(mass), 1))
    per_step[:, -1] = np.arange(len(mass))  # generated tokens up to and including the query of each step
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(per_step[:, None, None] > 0, mass / per_step[:, None, None], np.nan)
    visual_group = GROUP_NAMES.index("visual")
    visual = mass[..., visual_group]
    authors = np.full((*visual.shape, len(AUTHORS_GROUPS)), np.nan)
    if sizes[visual_group] and "attention/leading" in trace.captured:
        leading = trace.attention_leading.values.astype(float)
        three = np.stack([leading, visual, mass[..., :4].sum(-1) - leading - visual], -1)
        with np.errstate(invalid="ignore"):
            authors = three / three.sum(-1, keepdims=True)
    visual_mean = visual.mean(-1) if sizes[visual_group] else np.full(visual.shape[:2], np.nan)
    return {"mass": mass, "mass_per_token": per_token, "mass_authors": authors, "visual": visual_mean}


def slope_over_steps(values: np.ndarray) -> np.ndarray:
    """Return the least-squares slope per step of values [step, ...]; NaN for fewer than two steps.

    Example:
        >>> float(slope_over_steps(np.array([3.0, 2.0, 1.0])))
        -1.0
    """
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    step = np.arange(len(values)) - (len(values) - 1) / 2
    return np.tensordot(step, values, 1) / (step**2).sum()


def _add_sample_means(
    out: xr.Dataset, share: np.ndarray, slope: np.ndarray, masks: dict[str, np.ndarray]
) -> None:
    """Add the means of share and slope over all samples and by label, with intervals.

    Args:
        share, slope: [sample, layer], NaN where a sample has none.
        masks: as `label_masks` returns them.
    """
    third = max(1, round(share.shape[1] / 3))
    deep = share[:, third:].mean(1) if share.shape[1] > third else np.full(len(share), np.nan)
    early = share[:, :third].mean(1) - deep
    out["n_label"] = ("label", [int(masks[label].sum()) for label in LABELS])
    for name, values in (("n_share", share), ("n_slope", slope)):
        known = ~np.isnan(values).any(1)
        out[name] = ("label", [int((masks[label] & known).sum()) for label in LABELS])
    all_samples = {"all": masks["all"]}
    for name, values, name_masks, dims in (
        ("visual_share", share, all_samples, ("layer",)),
        ("slope", slope, all_samples, ("layer",)),
        ("slope_by_label", slope, masks, ("label", "layer")),
        ("decay", slope.mean(1), masks, ("label",)),
        ("early_suppression", early, masks, ("label",)),
    ):
        known = ~np.isnan(values.reshape(len(values), -1)).any(1)
        groups = [values[mask & known] for mask in name_masks.values()]
        intervals = [bootstrap_mean(group) for group in groups]
        for suffix, arrays in (
            ("", [_mean(group) for group in groups]),
            ("_low", [low for low, _ in intervals]),
            ("_high", [high for _, high in intervals]),
        ):
            out[name + suffix] = (dims, np.array(arrays if "label" in dims else arrays[0]))


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over samples; NaN, without a warning, if there are none."""
    return values.mean(0) if len(values) else np.full(values.shape[1:], np.nan)
