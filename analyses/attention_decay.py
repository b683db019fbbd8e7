"""How attention to the image decays while the answer is written (paper 003, section 4.2)."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import LABELS, bootstrap_mean
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable

AUTHORS_GROUPS = ("system", "visual", "user")


def attention_decay(run: Run) -> xr.Dataset:
    """Attention by token group, layer and step, averaged over samples, with intervals.

    A row is the softmax of the query that produced a step's token, summed over each token group.
    Answers differ in length: the mean at step t is over the samples that got that far, and `n` says
    how many those are.

    Args:
        run: traces with `attention/mass`; `attention/leading` for the authors' form.

    Returns:
        A data set with dimensions `step`, `layer`, `group`, `label` (all, faithful, unfaithful):

        - mass (layer, step, group): attention summed over the group, mean over heads and samples; rows sum to 1
        - mass_per_token: the same, divided by the number of tokens in the group at that step
        - mass_authors (layer, step, authors_group): the authors' form: system is all before the first image, user
          the rest of the prompt, renormalised over the three so that generated tokens are left out; samples with an image only;
          NaN without `attention/leading`
        - visual_share (layer), with _low, _high: share of attention on visual tokens, over each sample's steps
        - slope (layer), with _low, _high: least-squares slope of that share over steps, mean over samples
        - visual_by_label (label, layer, step), slope_by_label (label, layer) with _low, _high
        - decay (label), with _low, _high: that slope, mean over layers; below 0 where the pictures are looked at
          less and less
        - early_suppression (label), with _low, _high: visual share in the first third of the layers minus
          in the others; below 0 where early layers look less
        - share_of_sample, slope_of_sample (sample, layer): that share and slope of each sample, NaN for samples
          without pictures, and the slope of fewer than two steps
        - n (step), n_label (label): numbers of samples; with pictures alone n_by_label (label, step), n_share (label),
          and of two steps or more n_slope (label)
        - mass_head (layer, head, step, group): mass with the heads apart

        Intervals are 95 % percentile bootstraps over samples, NaN where fewer than two samples carry the number.
        attrs["left_out"] names samples with values that are not finite, but for layers that did not run;
        n_left_out counts them, and nothing holds them.

    Raises:
        InputError: the run is empty.
        NotCaptured: it was traced without attention mass.
        NotApplicable: no sample has finite values.

    Example:
        >>> ds = attention_decay(run)                               # doctest: +SKIP
        >>> ds.slope.sel(layer=3).item(), ds.slope_low.sel(layer=3).item()   # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    means = {name: StepMean() for name in ("mass", "mass_per_token", "mass_authors")}
    visual = {label: StepMean() for label in LABELS}
    members: dict[str, list[bool]] = {label: [] for label in LABELS}
    shares, slopes, names, left_out = [], [], [], []
    for name, trace in run.stream("attention_decay"):
        faithful = run.faithful(name)
        arrays = _of_sample(trace)
        if arrays is None:
            left_out.append(name)
            continue
        names.append(name)
        for kind, mean in means.items():
            mean.add(arrays[kind])
        for label, member in zip(LABELS, (True, faithful is True, faithful is False), strict=True):
            members[label].append(member)
            if member and not np.isnan(arrays["visual"]).all():
                visual[label].add(arrays["visual"])
        shares.append(arrays["visual"].mean(0))
        slopes.append(slope_over_steps(arrays["visual"]))
    if not names:
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in attention/mass")
    out = _over_steps(means, run[names[0]].attention_mass)
    steps = out.sizes["step"]
    out["n"] = ("step", means["mass"].reached(steps))
    out["n_by_label"] = (("label", "step"), np.array([visual[label].reached(steps) for label in LABELS]))
    layers = out.sizes["layer"]
    by_label = [visual[label].mean(steps, (layers,)).T for label in LABELS]
    out["visual_by_label"] = (("label", "layer", "step"), np.array(by_label))
    out.coords["sample"] = names
    for kind, values in (("share_of_sample", shares), ("slope_of_sample", slopes)):
        out[kind] = (("sample", "layer"), np.array(values))
    _add_per_sample(out, np.array(shares), np.array(slopes), {k: np.array(v) for k, v in members.items()})
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
    """Mean over samples of rows [step, ...] of different lengths; keeps sums, never the rows.

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
        """Add a sample's row; NaN is left out."""
        if len(row) > len(self.total):
            longer = np.zeros((2, *row.shape))
            if self.lengths:
                longer[0, : len(self.total)], longer[1, : len(self.count)] = self.total, self.count
            self.total, self.count = longer
        known = ~np.isnan(row)
        self.total[: len(row)] += np.where(known, row, 0)
        self.count[: len(row)] += known
        self.lengths.append(len(row))

    def mean(self, steps: int, rest: tuple[int, ...] = ()) -> np.ndarray:
        """[step, ...]; NaN where there is no number. `rest` is the shape of a step if nothing was added."""
        shape = self.total.shape[1:] if self.lengths else rest
        mean = np.full((steps, *shape), np.nan)
        if self.lengths:
            np.divide(self.total, self.count, out=mean[: len(self.total)], where=self.count > 0)
        return mean

    def reached(self, steps: int) -> np.ndarray:
        """Number of samples that are longer than each step: int64 [step]."""
        return (np.array(self.lengths, int)[:, None] > np.arange(steps)).sum(0)


def _over_steps(means: dict[str, StepMean], mass: xr.DataArray) -> xr.Dataset:
    """The arrays over steps, with heads averaged, and `mass_head` with heads apart."""
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


def _of_sample(trace: Trace) -> dict[str, np.ndarray] | None:
    """A sample's numbers: mass, mass_per_token, mass_authors [step, layer, head, group], visual [step, layer].

    None if they are not finite, but for layers that did not run, which are NaN throughout.
    """
    mass = trace.attention_mass.values.astype(float)
    if not (np.isfinite(mass) | np.isnan(mass).all((0, 2, 3))[:, None, None]).all():
        return None
    groups = trace.tokens["group"].values
    sizes = np.bincount(groups, minlength=mass.shape[-1]).astype(float)
    per_step = np.tile(sizes, (len(mass), 1))
    per_step[:, -1] = np.arange(len(mass))  # tokens generated before the query of each step, itself included
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(per_step[:, None, None] > 0, mass / per_step[:, None, None], np.nan)
    visual = mass[..., 2]
    authors = np.full((*visual.shape, len(AUTHORS_GROUPS)), np.nan)
    if sizes[2] and "attention/leading" in trace.captured:
        leading = trace.attention_leading.values.astype(float)
        three = np.stack([leading, visual, mass[..., :4].sum(-1) - leading - visual], -1)
        with np.errstate(invalid="ignore"):
            authors = three / three.sum(-1, keepdims=True)
    seen = visual.mean(-1) if sizes[2] else np.full(visual.shape[:2], np.nan)
    return {"mass": mass, "mass_per_token": per_token, "mass_authors": authors, "visual": seen}


def slope_over_steps(values: np.ndarray) -> np.ndarray:
    """Least-squares slope per step of [step, ...]; NaN for fewer than two steps.

    Example:
        >>> float(slope_over_steps(np.array([3.0, 2.0, 1.0])))
        -1.0
    """
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    step = np.arange(len(values)) - (len(values) - 1) / 2
    return np.tensordot(step, values, 1) / (step**2).sum()


def _add_per_sample(
    out: xr.Dataset, share: np.ndarray, slope: np.ndarray, members: dict[str, np.ndarray]
) -> None:
    """Add what is one number a sample and layer, and its means over all samples and by label, with intervals.

    Args:
        share, slope: [sample, layer], NaN where a sample has none.
        members: by label, bool [sample].
    """
    third = max(1, round(share.shape[1] / 3))
    deep = share[:, third:].mean(1) if share.shape[1] > third else np.full(len(share), np.nan)
    early = share[:, :third].mean(1) - deep
    out["n_label"] = ("label", [int(members[label].sum()) for label in LABELS])
    for name, values in (("n_share", share), ("n_slope", slope)):
        known = ~np.isnan(values).any(1)
        out[name] = ("label", [int((members[label] & known).sum()) for label in LABELS])
    everyone = {"all": members["all"]}
    for name, values, chosen, dims in (
        ("visual_share", share, everyone, ("layer",)),
        ("slope", slope, everyone, ("layer",)),
        ("slope_by_label", slope, members, ("label", "layer")),
        ("decay", slope.mean(1), members, ("label",)),
        ("early_suppression", early, members, ("label",)),
    ):
        known = ~np.isnan(values.reshape(len(values), -1)).any(1)
        parts = [values[mine & known] for mine in chosen.values()]
        intervals = [bootstrap_mean(part) for part in parts]
        for end, ends in (
            ("", [_mean(part) for part in parts]),
            ("_low", [low for low, _ in intervals]),
            ("_high", [high for _, high in intervals]),
        ):
            out[name + end] = (dims, np.array(ends if "label" in dims else ends[0]))


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over samples, NaN (without a warning) of none."""
    return values.mean(0) if len(values) else np.full(values.shape[1:], np.nan)
