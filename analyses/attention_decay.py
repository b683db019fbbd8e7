"""How attention to the image decays while the answer is written (paper 003, section 4.2)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.statistics import bootstrap_mean
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError

LABELS = ("all", "faithful", "unfaithful")
AUTHORS_GROUPS = ("system", "visual", "user")


def attention_decay(run: Run) -> xr.Dataset:
    """Attention by token group, layer and step, averaged over samples, with intervals.

    A row is the softmax of the query that produced a step's token, summed over each token group.
    Answers differ in length: the mean at step t is over the samples that got that far, and `n` says
    how many those are.

    Args:
        run: traces with `attention/mass`.

    Returns:
        A data set with dimensions `step`, `layer`, `group`, `label` (all, faithful, unfaithful):

        - mass (layer, step, group): attention summed over the group, mean over heads and samples; rows sum to 1
        - mass_per_token: the same, divided by the number of tokens in the group at that step
        - mass_authors (layer, step, authors_group): the authors' form: system is all before the first image, user
          the rest of the prompt, renormalised over the three so that generated tokens are left out; samples with an image only
        - visual_share (layer), with _low, _high: share of attention on visual tokens, over each sample's steps
        - slope (layer), with _low, _high: least-squares slope of that share over steps, mean over samples
        - visual_by_label (label, layer, step), slope_by_label (label, layer) with _low, _high
        - early_suppression (label), with _low, _high: visual share in the first third of the layers minus
          in the others; below 0 where early layers look less
        - n (step), n_by_label (label, step), n_label (label), n_slope (label): numbers of samples
        - mass_head (layer, head, step, group): mass with the heads apart

        Intervals are 95 % percentile bootstraps over samples, NaN where fewer than two samples carry the number.

    Raises:
        InputError: the run is empty or was traced without attention mass.

    Example:
        >>> ds = attention_decay(run)                               # doctest: +SKIP
        >>> ds.slope.sel(layer=3).item(), ds.slope_low.sel(layer=3).item()   # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    rows = [
        _of_sample(run[name]) for name in tqdm(run.ids, desc="attention_decay", unit="trace", disable=None)
    ]
    steps = max(len(row["mass"]) for row in rows)
    mean = {
        name: _mean_over_samples([row[name] for row in rows], steps)
        for name in ("mass", "mass_per_token", "mass_authors")
    }
    first = run[run.ids[0]].attention_mass
    coordinates = {name: first[name].values for name in ("layer", "head", "group")}
    arrays = xr.Dataset(
        {
            name: (("step", "layer", "head", "authors_group" if name == "mass_authors" else "group"), values)
            for name, values in mean.items()
        },
        coords=coordinates
        | {"step": np.arange(steps), "authors_group": list(AUTHORS_GROUPS), "label": list(LABELS)},
    )
    out = arrays.mean("head").transpose("layer", "step", ...)
    out["mass_head"] = arrays["mass"].transpose("layer", "head", "step", "group")
    lengths = np.array([len(row["mass"]) for row in rows])
    out["n"] = ("step", (lengths[:, None] > np.arange(steps)).sum(0))
    _add_labelled(out, rows, [run.faithful(name) for name in run.ids], steps)
    out.attrs = {
        "analysis": "attention_decay",
        "run": str(run.path),
        "samples": len(rows),
        "model": run.config["model"]["name"],
    }
    return out


def _of_sample(trace: Trace) -> dict[str, np.ndarray]:
    """A sample's numbers: mass, mass_per_token, mass_authors [step, layer, head, group], visual [step, layer]."""
    mass = trace.attention_mass.values.astype(float)
    groups = trace.tokens["group"].values
    sizes = np.bincount(groups, minlength=mass.shape[-1]).astype(float)
    per_step = np.tile(sizes, (len(mass), 1))
    per_step[:, -1] = np.arange(len(mass))  # tokens generated before the query of each step, itself included
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(per_step[:, None, None] > 0, mass / per_step[:, None, None], np.nan)
    visual = mass[..., 2]
    leading = trace.attention_leading.values.astype(float)
    rest = mass[..., :4].sum(-1) - leading - visual
    authors = np.stack([leading, visual, rest], -1)
    with np.errstate(invalid="ignore"):
        authors = authors / authors.sum(-1, keepdims=True) if sizes[2] else np.full_like(authors, np.nan)
    seen = visual.mean(-1) if sizes[2] else np.full(visual.shape[:2], np.nan)
    return {"mass": mass, "mass_per_token": per_token, "mass_authors": authors, "visual": seen}


def _mean_over_samples(rows: list[np.ndarray], steps: int) -> np.ndarray:
    """Mean over the samples that reach each step, without ever holding all of them padded: [step, ...]."""
    total = np.zeros((steps, *rows[0].shape[1:]))
    count = np.zeros_like(total)
    for row in rows:
        known = ~np.isnan(row)
        total[: len(row)] += np.where(known, row, 0)
        count[: len(row)] += known
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, total / count, np.nan)


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


def _add_labelled(
    out: xr.Dataset, rows: list[dict[str, np.ndarray]], faithful: list[bool | None], steps: int
) -> None:
    """Add the shares, slopes and early suppression, for all samples and by label, with their intervals."""
    share = np.array([row["visual"].mean(0) for row in rows])  # [sample, layer]
    slope = np.array([slope_over_steps(row["visual"]) for row in rows])
    third = max(1, round(share.shape[1] / 3))
    deep = share[:, third:].mean(1) if share.shape[1] > third else np.full(len(share), np.nan)
    early = share[:, :third].mean(1) - deep
    members = {
        "all": np.ones(len(rows), bool),
        "faithful": np.array([value is True for value in faithful]),
        "unfaithful": np.array([value is False for value in faithful]),
    }
    for name, values in (("visual_share", share), ("slope", slope)):
        out[name] = ("layer", _mean(values))
        low, high = bootstrap_mean(values[~np.isnan(values).any(1)])
        out[f"{name}_low"], out[f"{name}_high"] = ("layer", low), ("layer", high)
    by_label: dict[str, list[np.ndarray]] = {"visual_by_label": [], "n_by_label": []}
    for label in LABELS:
        chosen = [row["visual"] for row, member in zip(rows, members[label], strict=True) if member]
        empty = np.full((steps, share.shape[1]), np.nan)
        by_label["visual_by_label"].append((_mean_over_samples(chosen, steps) if chosen else empty).T)
        by_label["n_by_label"].append(
            sum((np.arange(steps) < len(row) for row in chosen), np.zeros(steps, int))
        )
    out["visual_by_label"] = (("label", "layer", "step"), np.array(by_label["visual_by_label"]))
    out["n_by_label"] = (("label", "step"), np.array(by_label["n_by_label"]))
    out["n_label"] = ("label", [int(members[label].sum()) for label in LABELS])
    out["n_slope"] = ("label", [int((members[label] & ~np.isnan(slope).any(1)).sum()) for label in LABELS])
    for name, values, dims in (
        ("slope_by_label", slope, ("label", "layer")),
        ("early_suppression", early, ("label",)),
    ):
        parts = [
            values[members[label] & ~np.isnan(values.reshape(len(values), -1)).any(1)] for label in LABELS
        ]
        out[name] = (dims, np.array([_mean(part) for part in parts]))
        intervals = [bootstrap_mean(part) for part in parts]
        out[f"{name}_low"] = (dims, np.array([low for low, _ in intervals]))
        out[f"{name}_high"] = (dims, np.array([high for _, high in intervals]))


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over samples, NaN (without a warning) where there is none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)
