"""Failure modes of unfaithful answers: perceptual blindness and dissociation.

SPD-Faith Bench (arXiv:2602.07833), section 4.1.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_vs_activation import (
    DRAWS,
    TOP,
    mask_share,
    rank_correlation,
    read_maps,
    top_iou,
)
from mmprobe.analyses.regions import find_patches, mask_patches, random_masks
from mmprobe.analyses.statistics import bootstrap_mean
from mmprobe.analyses.token_activation import visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable

MODES = ("perceptual_blindness", "dissociation", "grounded", "undecided")
EVIDENCE = (
    "attention_mass",
    "attention_random",
    "attention_p",
    "activation_mass",
    "activation_random",
    "activation_p",
    "iou",
    "rank_correlation",
)


def failure_modes(
    run: Run,
    alpha: float = 0.1,
    layers: list[int] | None = None,
    top: float = TOP,
    draws: int = DRAWS,
    seed: int = 0,
) -> xr.Dataset:
    """Return the failure mode of each unfaithful sample, with the evidence.

    A map is *on* the sample's regions if its share there, mean over the answer's steps, is larger than on all
    but a share `alpha` of random places of the same size. So a map that is unrelated to the regions is on
    them in at most a share `alpha` of the samples.

    | attention | activation | mode |
    |---|---|---|
    | off | off | perceptual_blindness: the model did not see the difference |
    | on | off | dissociation: the model attended to the difference, but its words come from elsewhere |
    | on | on | grounded: the words come from the difference, but describe it wrongly |
    | off | on | undecided |

    The paper shows the first two modes by example and gives no rule. This rule is our own.

    Args:
        run: traces with `attention/visual`, `tam/logit` and `tam/prompt`; samples with regions and labels.
        alpha: the default 0.1 is our choice. With few places for a region, p cannot be small: one region of
            one cell on a grid of 16 cells has p = 1/16 at best.
        layers: layers of the attention; the default, all captured layers, is our choice.
        top: share of cells that `iou` compares; the default 0.2 is our choice.
        draws, seed: of the random places; the defaults 200 and 0 are our choice.

    Returns:
        A data set with dimensions `sample` (unfaithful samples with regions), `kind`, `name`:

        - mode (sample): one of `MODES`
        - evidence (sample, name): attention_mass and activation_mass, the share on the regions; …_random, the
          mean share on random places; …_p, the share of places with at least that share, the true place
          counted; iou and rank_correlation of the two maps, mean over steps
        - share (kind), with _low, _high: share of the samples with each mode; count (kind)
        - share_faithful (kind), with _low, _high: the same for the run's faithful samples with regions
        - n_unfaithful, n_faithful: numbers of samples; n_without_regions: unfaithful samples without regions

        Intervals are 95 % percentile bootstraps over samples. Samples with values that are not finite are
        left out: attrs["left_out"] names them and n_left_out counts them.

    Raises:
        NotApplicable: no sample is labelled unfaithful, or none of them has regions.
        NotCaptured: attention/visual or the logits were not captured.
        InputError: an argument is out of range.

    Example:
        >>> failure_modes(run).mode.to_series().value_counts()      # doctest: +SKIP
    """
    for name, share in (("alpha", alpha), ("top", top)):
        if not 0 < share < 1:
            raise InputError(f"{name} {share}: must be between 0 and 1")
    if draws < 1:
        raise InputError(f"draws {draws}: must be 1 or more")
    labels = {name: bool(run.faithful(name)) for name in run.ids if run.faithful(name) is not None}
    if all(labels.values()):
        raise NotApplicable(f"{run.path}: no sample is labelled unfaithful, in labels.jsonl or `faithful`")
    by_label: dict[bool, dict[str, np.ndarray]] = {True: {}, False: {}}
    left_out = []
    n_without_regions = 0
    for name, trace in run.stream("failure_modes", labels):
        try:
            evidence = _measure_evidence(trace, layers, top, draws, seed)
        except NotApplicable:
            raise
        except InputError:
            left_out.append(name)
            continue
        if evidence is not None:
            by_label[labels[name]][name] = evidence
        elif not labels[name]:
            n_without_regions += 1
    if not by_label[False]:
        raise NotApplicable(f"{run.path}: no unfaithful sample has `regions` and finite values")
    out = _make_dataset(by_label, alpha)
    out["n_without_regions"] = ((), n_without_regions)
    out.attrs = {
        "analysis": "failure_modes",
        "run": str(run.path),
        "samples": len(by_label[False]),
        "model": run.config["model"]["name"],
        "alpha": alpha,
        "draws": draws,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    return out


def _measure_evidence(
    trace: Trace, layers: list[int] | None, top: float, draws: int, seed: int
) -> np.ndarray | None:
    """Return the evidence of one sample in the order of `EVIDENCE`; None without a region on an image."""
    if not trace.images.sizes.get("image", 0):
        return None
    patches = find_patches(trace)
    if not patches:
        return None
    grids = visual_positions(trace).grids
    maps = read_maps(trace, layers)
    masks = np.concatenate(
        [mask_patches(patches, grids)[None], random_masks(patches, grids, draws, np.random.default_rng(seed))]
    )
    values = [number for step_maps in maps for number in _test_mass(_mean(mask_share(step_maps, masks)))]
    return np.array([*values, _mean(top_iou(*maps, top)), _mean(rank_correlation(*maps))])


def _test_mass(mass: np.ndarray) -> tuple[float, float, float]:
    """Return the mass on the true regions, its mean on random ones, and p.

    Args:
        mass: [mask], the true regions first.
    """
    if not np.isfinite(mass).all():
        return float(mass[0]), np.nan, 1.0  # a map that is 0 everywhere is not on the regions
    as_large = mass >= mass[0] - 1e-12
    return float(mass[0]), float(mass[1:].mean()), float(as_large.mean())


def classify_mode(evidence: np.ndarray, alpha: float) -> str:
    """Return the failure mode of a sample from its evidence, in the order of `EVIDENCE`.

    Example:
        >>> classify_mode(np.array([0.5, 0.1, 0.01, 0.1, 0.1, 0.6, 0.0, 0.0]), alpha=0.1)
        'dissociation'
    """
    attention_on = evidence[EVIDENCE.index("attention_p")] <= alpha
    activation_on = evidence[EVIDENCE.index("activation_p")] <= alpha
    if attention_on:
        return "grounded" if activation_on else "dissociation"
    return "undecided" if activation_on else "perceptual_blindness"


def _make_dataset(by_label: dict[bool, dict[str, np.ndarray]], alpha: float) -> xr.Dataset:
    """Return the modes and their shares.

    Args:
        by_label: evidence of the faithful (True) and unfaithful (False) samples by id.
    """
    names = list(by_label[False])
    out = xr.Dataset(coords={"sample": names, "name": list(EVIDENCE), "kind": list(MODES)})
    modes = {
        label: [classify_mode(evidence, alpha) for evidence in samples.values()]
        for label, samples in by_label.items()
    }
    out["mode"] = ("sample", modes[False])
    out["evidence"] = (("sample", "name"), np.array(list(by_label[False].values())))
    for suffix, faithful in (("", False), ("_faithful", True)):
        has_mode = np.array([[mode == kind for kind in MODES] for mode in modes[faithful]], float)
        has_mode = has_mode.reshape(-1, len(MODES))
        low, high = bootstrap_mean(has_mode)
        share = has_mode.mean(0) if len(has_mode) else np.full(len(MODES), np.nan)
        out[f"share{suffix}"] = ("kind", share)
        out[f"share{suffix}_low"] = ("kind", low)
        out[f"share{suffix}_high"] = ("kind", high)
    out["count"] = ("kind", [modes[False].count(kind) for kind in MODES])
    out["n_unfaithful"] = ((), len(modes[False]))
    out["n_faithful"] = ((), len(modes[True]))
    return out


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over steps of the finite values; NaN, without a warning, if there are none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(0)
    return np.divide(total, known.sum(0), out=np.full(total.shape, np.nan), where=known.any(0))
