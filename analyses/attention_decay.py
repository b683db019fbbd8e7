"""Decay of attention to the images while the answer is written.

SPD-Faith Bench (arXiv:2602.07833), section 4.2.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import NotApplicable
from mmprobe.stats.compare import LABELS, label_masks
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import COSINE, FRACTION, QUANTITY

AUTHORS_GROUPS = ("system", "visual", "user")
SUMMARIES = ("share", "slope", "share_authors", "slope_authors", "system")  # of a sample
FORMS = ("", "_authors")  # ends of the variables' names: the share of all attention, and the authors' form
_VISUAL, _GENERATED = GROUP_NAMES.index("visual"), GROUP_NAMES.index("generated")


@analysis_of_run
def attention_decay(run: Run) -> xr.Dataset:
    """Return attention by token group, layer and step, averaged over samples, with intervals.

    A row is the softmax of the query that produced a step's token, summed over each token group. Answers
    differ in length: the mean at step t is over the samples that reach step t, and `n` is their number.

    There are two forms. The authors' form, as in figure 7 of the paper, has three groups: `system`
    (everything before the first image), `visual` and `user` (the rest of the prompt). It averages over heads,
    then divides by the sum of the three. So it leaves out the attention to generated tokens. The other form
    is the share of all attention. It tends to fall as the answer grows, since each generated token takes a
    part (dilution); in some answers it rises.

    Args:
        run: traces with `attention/mass`; `attention/leading` for the authors' form.

    Returns:
        A data set with dimensions `step`, `layer`, `group`, `label` (all, faithful, unfaithful):

        - mass (layer, step, group): attention summed over the group, mean over heads and samples; sums to 1
        - mass_per_token: the same, divided by the number of tokens in the group at that step
        - mass_authors (layer, step, authors_group): the authors' form
        - mass_head (layer, head, step, group): mass of each head
        - visual_share (layer), with _low, _high: share of attention on visual tokens, mean over steps, then
          samples
        - slope (layer), with _low, _high: least-squares slope of that share over steps, mean over samples
        - visual_by_label (label, layer, step), slope_by_label (label, layer) with _low, _high
        - decay (label), with _low, _high: that slope, mean over layers; below 0 if attention falls
        - early_suppression (label), with _low, _high: visual share in the first third of the layers minus the
          share in the other layers; below 0 if early layers attend less to the images
        - share_of_sample, slope_of_sample (sample, layer): share and slope of each sample. Both are NaN for
          samples without images, and the slope is NaN for fewer than two steps.
        - visual_share_authors, slope_authors, visual_authors_by_label, slope_authors_by_label, decay_authors,
          early_suppression_authors, share_authors_of_sample, slope_authors_of_sample: the same in the
          authors' form. They are NaN without `attention/leading`.
        - system_excess (label), with _low, _high: the authors' share of `system` in the first third of the
          layers minus the share in the other layers; above 0 if early layers attend more to the system
          prompt. system_of_sample (sample, layer): that share of each sample
        - n (step), n_label (label): numbers of samples. n_by_label (label, step) and n_share (label) count
          samples with images only, n_slope (label) those of two steps or more; n_share_authors and
          n_slope_authors count those that the authors' form has.

        Intervals are 95 %, over sets of images (`stats.intervals`), NaN for fewer than two sets;
        attrs["sets"] counts the sets. Samples with values that are not finite are left out: attrs["left_out"]
        names them and n_left_out counts them. A layer that did not run is NaN throughout and leaves no sample
        out.

    Raises:
        InputError: the run is empty.
        NotCaptured: attention/mass was not captured.
        NotApplicable: no sample has finite values.

    Example:
        >>> ds = attention_decay(run)                               # doctest: +SKIP
        >>> ds.slope_authors.sel(layer=3).item()                    # doctest: +SKIP
    """
    means = {name: StepMean() for name in ("mass", "mass_per_token", "mass_authors")}
    visual = {(label, form): StepMean() for label in LABELS for form in FORMS}
    measured = SampleRows("attention_decay", run)
    for name, trace in run.stream("attention_decay"):
        arrays = _measure_sample(trace)
        if arrays is None:
            measured.left_out.append(name)
            continue
        measured.add(trace, _summarise_sample(arrays))
        for kind, mean in means.items():
            mean.add(arrays[kind])
        for label, mask in label_masks(measured.faithful[-1:]).items():
            for form in FORMS if mask.item() else ():
                if not np.isnan(arrays[f"visual{form}"]).all():
                    visual[label, form].add(arrays[f"visual{form}"])
    if not len(measured):
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in attention/mass")
    out = _average_steps(means, run[measured.names[0]].attention_mass)
    steps, layers = out.sizes["step"], out.sizes["layer"]
    out["n"] = ("step", means["mass"].reached(steps))
    out["n_by_label"] = (("label", "step"), np.array([visual[label, ""].reached(steps) for label in LABELS]))
    for form in FORMS:
        by_label = [visual[label, form].mean(steps, (layers,)).T for label in LABELS]
        out[f"visual{form}_by_label"] = (("label", "layer", "step"), np.array(by_label))
    out.coords["sample"] = measured.names
    for kind in SUMMARIES:
        out[f"{kind}_of_sample"] = (("sample", "layer"), measured.rows[kind])
    _add_sample_means(out, measured)
    out.attrs = measured.describe()
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
        """Return the mean [step, ...], NaN for steps without values.

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
    dims = ("step", "layer", "head", "group")
    arrays = xr.Dataset(
        {name: (dims, means[name].mean(steps)) for name in ("mass", "mass_per_token")},
        coords={name: mass[name].values for name in ("layer", "head", "group")}
        | {"step": np.arange(steps), "authors_group": list(AUTHORS_GROUPS), "label": list(LABELS)},
    )
    out = arrays.mean("head").transpose("layer", "step", ...)
    authors = means["mass_authors"].mean(steps).swapaxes(0, 1)
    out["mass_authors"] = (("layer", "step", "authors_group"), authors)
    out["mass_head"] = arrays["mass"].transpose("layer", "head", "step", "group")
    return out


def _measure_sample(trace: Trace) -> dict[str, np.ndarray] | None:
    """Return a sample's masses [step, layer, head, group] and its visual shares [step, layer] by form.

    `mass_authors` is [step, layer, authors_group]. Return None if a value is not finite. A layer that did not
    run may be NaN throughout.
    """
    mass = trace.attention_mass.values.astype(float)
    if not (np.isfinite(mass) | np.isnan(mass).all((0, 2, 3))[:, None, None]).all():
        return None
    sizes = np.bincount(trace.tokens["group"].values, minlength=mass.shape[-1]).astype(float)
    per_step = np.tile(sizes, (len(mass), 1))
    steps = np.arange(len(mass)) if trace.kept_steps is None else trace.kept_steps
    per_step[:, _GENERATED] = steps  # generated tokens up to and including the query of each step
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(per_step[:, None, None] > 0, mass / per_step[:, None, None], np.nan)
    has_images = sizes[_VISUAL] > 0
    authors = np.full((*mass.shape[:2], len(AUTHORS_GROUPS)), np.nan)
    if has_images and "attention/leading" in trace.captured:
        authors = _group_as_authors(mass, trace.attention_leading.values.astype(float))
    visual = mass[..., _VISUAL].mean(-1) if has_images else np.full(mass.shape[:2], np.nan)
    return {
        "mass": mass,
        "mass_per_token": per_token,
        "mass_authors": authors,
        "visual": visual,
        "visual_authors": authors[..., AUTHORS_GROUPS.index("visual")],
    }


def _group_as_authors(mass: np.ndarray, leading: np.ndarray) -> np.ndarray:
    """Return attention in the authors' three groups, which sum to 1, [step, layer, authors_group].

    The mean over heads comes first, then the division by the sum of the groups.

    Args:
        mass: [step, layer, head, group].
        leading: attention on everything before the first image, [step, layer, head].

    Example:
        >>> mass = np.array([[[[0.1, 0.1, 0.2, 0.1, 0.5], [0.2, 0.2, 0.6, 0.0, 0.0]]]])
        >>> _group_as_authors(mass, np.array([[[0.1, 0.3]]])).round(3).tolist()
        [[[0.267, 0.533, 0.2]]]
    """
    prompt = mass[..., :_GENERATED].sum(-1).mean(-1)
    visual, system = mass[..., _VISUAL].mean(-1), leading.mean(-1)
    three = np.stack([system, visual, prompt - system - visual], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(three / prompt[..., None])


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


def _summarise_sample(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the `SUMMARIES` of a sample, [layer] each."""
    means = {f"share{form}": arrays[f"visual{form}"].mean(0) for form in FORMS}
    slopes = {f"slope{form}": slope_over_steps(arrays[f"visual{form}"]) for form in FORMS}
    return means | slopes | {"system": arrays["mass_authors"][..., AUTHORS_GROUPS.index("system")].mean(0)}


def early_minus_later(values: np.ndarray) -> np.ndarray:
    """Return the mean of the first third of the layers minus the mean of the others, [sample].

    It is NaN for a single layer.

    Example:
        >>> early_minus_later(np.array([[3.0, 1.0, 1.0]])).tolist()
        [2.0]
    """
    third = max(1, round(values.shape[1] / 3))
    if values.shape[1] <= third:
        return np.full(len(values), np.nan)
    return np.asarray(values[:, :third].mean(1) - values[:, third:].mean(1))


def _add_sample_means(out: xr.Dataset, measured: SampleRows) -> None:
    """Add the means of shares and slopes over all samples and by label, with intervals."""
    labels = measured.labels
    out["n_label"] = labels.counts()["n_label"]
    for form in FORMS:
        share, slope = (out[f"{kind}{form}_of_sample"].values for kind in ("share", "slope"))
        for kind, values in (("share", share), ("slope", slope)):
            known = ~np.isnan(values).any(1)
            out[f"n_{kind}{form}"] = ("label", [int((labels.masks[label] & known).sum()) for label in LABELS])
        for name, values, range in (("visual_share", share, FRACTION), ("slope", slope, QUANTITY)):
            known = ~np.isnan(values).any(1)
            mean = estimate_mean(values[known], measured.sets[known], range)
            out.update(mean.variables(f"{name}{form}", "layer"))
        out.update(labels.means(f"slope{form}_by_label", slope, QUANTITY))
        out.update(labels.means(f"decay{form}", slope.mean(1), QUANTITY, ("label",)))
        early = early_minus_later(share)
        out.update(labels.means(f"early_suppression{form}", early, COSINE, ("label",)))
    excess = early_minus_later(out["system_of_sample"].values)
    out.update(labels.means("system_excess", excess, COSINE, ("label",)))
