"""Why an answer is unfaithful: it did not look, or it looked and said otherwise (paper 003, section 4.1)."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_vs_activation import (
    DRAWS,
    TOP,
    maps_of,
    mass_on,
    rank_correlation,
    top_cells,
)
from mmprobe.analyses.regions import mask_of, patches_of, random_masks
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
    """The failure mode of each unfaithful sample, with the numbers behind it.

    A map is *on* the sample's regions if the share of it that lies there, mean over the answer's steps, is
    larger than on all but a share `alpha` of random places of the same size. That is calibrated by itself: a
    map that has nothing to do with the regions is on them in at most `alpha` of all samples.

    | attention | activation | mode |
    |---|---|---|
    | off | off | perceptual_blindness: the difference was not seen |
    | on | off | dissociation: it was looked at, the words come from elsewhere |
    | on | on | grounded: looked at and read from, and yet described wrongly |
    | off | on | undecided |

    The paper shows the first two by example and gives no rule; this one is ours.

    Args:
        run: traces with `attention/visual`, `tam/logit` and `tam/prompt`; samples with regions and labels.
        alpha: ours, the default is 0.1. With few places for a region to be in, p cannot become small: on a
            grid of 16 cells one region of one cell has p = 1/16 at best.
        layers: whose attention; ours, the default is all captured ones.
        top: share of cells that `iou` compares; ours, the default is 0.2.
        draws, seed: of the random places; ours, the defaults are 200 and 0.

    Returns:
        A data set with dimensions `sample` (unfaithful ones with regions), `kind`, `name`:

        - mode (sample): one of `MODES`
        - evidence (sample, name): attention_mass and activation_mass, the share on the regions; …_random, its
          mean on random places; …_p, the share of places, the true one counted, where it is as large; iou and
          rank_correlation of the two maps, mean over steps
        - share (kind), with _low, _high: how many samples have each mode; count (kind)
        - share_faithful (kind), with _low, _high: the same for the run's faithful samples with regions, for
          comparison; n_unfaithful, n_faithful: samples of both kinds; n_without_regions: unfaithful ones
          that say nothing of where to look

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples with values
        that are not finite; n_left_out counts them.

    Raises:
        NotApplicable: no sample is labelled unfaithful, or none of them has regions.
        NotCaptured: attention/visual or the logits were not captured.
        InputError: an argument is out of range.

    Example:
        >>> failure_modes(run).mode.to_series().value_counts()      # doctest: +SKIP
    """
    if not 0 < alpha < 1 or not 0 < top < 1 or draws < 1:
        raise InputError(f"alpha {alpha} and top {top} must be between 0 and 1, and draws {draws} 1 or more")
    wanted = {name: bool(run.faithful(name)) for name in run.ids if run.faithful(name) is not None}
    if all(wanted.values()):
        raise NotApplicable(f"{run.path}: no sample is labelled unfaithful, in labels.jsonl or `faithful`")
    found: dict[bool, dict[str, np.ndarray]] = {True: {}, False: {}}
    left_out, without = [], 0
    for name, trace in run.stream("failure_modes", wanted):
        try:
            evidence = _evidence(trace, layers, top, draws, seed)
        except NotApplicable:
            raise
        except InputError:
            left_out.append(name)
            continue
        if evidence is not None:
            found[wanted[name]][name] = evidence
        elif not wanted[name]:
            without += 1
    if not found[False]:
        raise NotApplicable(
            f"{run.path}: no unfaithful sample has `regions` and finite values, so there is nothing to look for"
        )
    out = _dataset(found, alpha)
    out["n_without_regions"] = ((), without)
    out.attrs = {
        "analysis": "failure_modes",
        "run": str(run.path),
        "samples": len(found[False]),
        "model": run.config["model"]["name"],
        "alpha": alpha,
        "draws": draws,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    return out


def _evidence(trace: Trace, layers: list[int] | None, top: float, draws: int, seed: int) -> np.ndarray | None:
    """The numbers of one sample, in the order of `EVIDENCE`; None without a region on a picture."""
    if not trace.images.sizes.get("image", 0):
        return None
    patches = patches_of(trace)
    if not patches:
        return None
    grids = visual_positions(trace).grids
    maps = maps_of(trace, layers)
    masks = np.concatenate(
        [mask_of(patches, grids)[None], random_masks(patches, grids, draws, np.random.default_rng(seed))]
    )
    values = [number for of in maps for number in _against_chance(_mean(mass_on(of, masks)))]
    first, second = (top_cells(of, top) for of in maps)
    either = (first | second).sum(1)
    overlap = np.full(len(either), np.nan)
    np.divide((first & second).sum(1), either, out=overlap, where=first.any(1) & second.any(1))
    return np.array([*values, _mean(overlap), _mean(rank_correlation(*maps))])


def _against_chance(mass: np.ndarray) -> tuple[float, float, float]:
    """The mass on the true regions, its mean on random ones, and p, from [mask], the true one first."""
    if not np.isfinite(mass).all():
        return float(mass[0]), np.nan, 1.0  # a map that is 0 everywhere is nowhere
    as_large = mass >= mass[0] - 1e-12
    return float(mass[0]), float(mass[1:].mean()), float(as_large.mean())


def mode_of(evidence: np.ndarray, alpha: float) -> str:
    """The failure mode that a sample's numbers, in the order of `EVIDENCE`, speak for.

    Example:
        >>> mode_of(np.array([0.5, 0.1, 0.01, 0.1, 0.1, 0.6, 0.0, 0.0]), alpha=0.1)
        'dissociation'
    """
    attended, activated = evidence[EVIDENCE.index("attention_p")], evidence[EVIDENCE.index("activation_p")]
    if attended <= alpha:
        return "grounded" if activated <= alpha else "dissociation"
    return "undecided" if activated <= alpha else "perceptual_blindness"


def _dataset(found: dict[bool, dict[str, np.ndarray]], alpha: float) -> xr.Dataset:
    out = xr.Dataset(coords={"sample": list(found[False]), "name": list(EVIDENCE), "kind": list(MODES)})
    modes = {faithful: [mode_of(numbers, alpha) for numbers in of.values()] for faithful, of in found.items()}
    out["mode"] = ("sample", modes[False])
    out["evidence"] = (("sample", "name"), np.array(list(found[False].values())))
    for suffix, faithful in (("", False), ("_faithful", True)):
        member = np.array([[mode == kind for kind in MODES] for mode in modes[faithful]], float)
        member = member.reshape(-1, len(MODES))
        low, high = bootstrap_mean(member)
        share = member.mean(0) if len(member) else np.full(len(MODES), np.nan)
        out[f"share{suffix}"] = ("kind", share)
        out[f"share{suffix}_low"], out[f"share{suffix}_high"] = ("kind", low), ("kind", high)
    out["count"] = ("kind", [modes[False].count(kind) for kind in MODES])
    out["n_unfaithful"], out["n_faithful"] = ((), len(modes[False])), ((), len(modes[True]))
    return out


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over steps of what is known; NaN, without a warning, of nothing."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(0)
    return np.divide(total, known.sum(0), out=np.full(total.shape, np.nan), where=known.any(0))
