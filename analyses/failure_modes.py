"""Failure modes of the claims of unfaithful answers: perceptual blindness and dissociation.

SPD-Faith Bench (arXiv:2602.07833), section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

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
from mmprobe.analyses.regions import find_mentions, find_patches, image_sizes, mask_patches, random_masks
from mmprobe.analyses.source import analysis_of_run, describe
from mmprobe.analyses.token_activation import visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.contents import named_things
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import set_keys
from mmprobe.stats.estimate import estimate_mean, read_estimate
from mmprobe.stats.sets import Sets

MODES = ("perceptual_blindness", "dissociation", "grounded", "undecided")
FAILURES = MODES[:2]
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


class _NamedThing(NamedTuple):
    """A thing that an answer names, with the evidence in the order of `EVIDENCE`."""

    sample: str
    thing: str
    n_tokens: int
    evidence: np.ndarray


@analysis_of_run
def failure_modes(
    run: Run,
    alpha: float = 0.1,
    layers: list[int] | None = None,
    top: float = TOP,
    draws: int = DRAWS,
    seed: int = 0,
) -> xr.Dataset:
    """Return the failure mode of each claim of the unfaithful answers, with the evidence and its false alarms.

    A claim is a changed thing, or where nothing is declared to differ a thing in the images, that an answer names, by all tokens of its name (`find_mentions`). Its maps of
    attention and token activation are tested against that thing's own regions (`contents.named_things`). A map is *on*
    the regions if its share there, mean over the claim's tokens, is larger than on all but a share `alpha` of
    random places of the same size. So a map that is unrelated to the regions is on them in at most a share
    `alpha` of the claims.

    | attention | activation | mode |
    |---|---|---|
    | off | off | perceptual_blindness: the model did not see the difference |
    | on | off | dissociation: the model attended to the difference, but its words come from elsewhere |
    | on | on | grounded: the words come from the difference, but describe it wrongly |
    | off | on | undecided |

    The paper shows the first two modes by example and gives no rule. This rule is our own, and it is wrong at
    times: a mode of unfaithful answers means something only if it is rarer in faithful answers. It correlates
    and changes nothing; docs/diagnosis.md scores it on models with known causes, and `mmprobe diagnose` names
    causes from interventions: use that where the model can be run. The label is
    the whole answer's, so an unfaithful answer may also contain true claims. An answer that names none of the
    things, such as "Nothing changed.", has no claim and no mode.

    Args:
        run: traces with `attention/visual`, `tam/logit` and `tam/prompt`; samples with labels, and with
            `metadata.differences` or `metadata.objects`, which name the things and their places.
        alpha: the default 0.1 is our choice. With few places for a region, p cannot be small: one region of
            one cell on a grid of 16 cells has p = 1/16 at best.
        layers: layers of the attention; the default, all captured layers, is our choice.
        top: share of cells that `iou` compares; the default 0.2 is our choice.
        draws, seed: of the random places; the defaults 200 and 0 are our choice.

    Returns:
        A data set with dimensions `claim` (of unfaithful answers), `kind`, `name`:

        - mode (claim): one of `MODES`; sample, thing (claim): the sample's id and the thing's name; n_tokens
          (claim): number of the tokens that name it
        - evidence (claim, name): attention_mass and activation_mass, the share on the regions; …_random, the
          mean share on random places; …_p, the share of places with at least that share, the true place
          counted; iou and rank_correlation of the two maps; all but p are means over the claim's tokens
        - count (kind), share (kind) with _low, _high: number and share of the claims with each mode
        - count_faithful, share_faithful (kind) with _low, _high: the same for the claims of faithful answers:
          how often each mode is a false alarm
        - false_alarm_rate, with _low, _high: share of the faithful answers' claims that are called
          perceptual_blindness or dissociation
        - n_claims_unfaithful, n_claims_faithful: numbers of claims; n_unfaithful, n_faithful: numbers of
          samples with a claim
        - n_without_regions: unfaithful samples without regions of a named thing; n_without_claims: others
          whose answer names none of them

        Intervals are 95 %, over sets of images (`stats.intervals`); attrs["sets"] counts the sets of the
        unfaithful answers. Samples with values that are not finite are left out: attrs["left_out"] names them
        and n_left_out counts them. attrs["false_alarms"] says the rate of false alarms in a sentence.

    Raises:
        NotApplicable: no sample is labelled unfaithful, or none of them names a thing with regions.
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
    by_label: dict[bool, list[_NamedThing]] = {True: [], False: []}
    groups = Sets()
    left_out = []
    n_without_regions = n_without_claims = 0
    for name, trace in run.stream("failure_modes", labels):
        try:
            claims = _measure_claims(trace, layers, top, draws, seed)
        except NotApplicable:
            raise
        except InputError:
            left_out.append(name)
            continue
        by_label[labels[name]] += claims or []
        if claims:
            groups.add(trace.sample.id, set_keys(trace.sample))
        if not labels[name]:
            n_without_regions += claims is None
            n_without_claims += claims == []
    if not by_label[False]:
        raise NotApplicable(
            f"{run.path}: no unfaithful answer names a thing with `regions` and finite values; "
            "things are named in `metadata.differences`"
        )
    out = _make_dataset(by_label, groups, alpha)
    out["n_without_regions"] = ((), n_without_regions)
    out["n_without_claims"] = ((), n_without_claims)
    out.attrs = describe(
        "failure_modes",
        run,
        int(out["n_unfaithful"]),
        _number_sets(groups, by_label[False]),
        left_out,
        alpha=alpha,
        layers="all" if layers is None else ", ".join(map(str, layers)),
        draws=draws,
        false_alarms=_describe_false_alarms(out),
    )
    return out


def _measure_claims(
    trace: Trace, layers: list[int] | None, top: float, draws: int, seed: int
) -> list[_NamedThing] | None:
    """Return the claims of an answer; None if no thing of its sample has a region on an image."""
    if not trace.images.sizes.get("image", 0):
        return None
    things = named_things(trace.sample, image_sizes(trace))
    patches = {name: find_patches(trace, regions) for name, regions in things.items()}
    patches = {name: cells for name, cells in patches.items() if cells}
    if not patches:
        return None
    claims = []
    mentions = find_mentions(trace, list(patches))
    maps = read_maps(trace, layers) if mentions else ()
    for name, tokens in mentions.items():
        steps = sorted({step for mention in tokens for step in mention})
        grids, rng = visual_positions(trace).grids, np.random.default_rng(seed)
        true_mask = mask_patches(patches[name], grids)
        masks = np.concatenate([true_mask[None], random_masks(patches[name], grids, draws, rng)])
        first, second = (step_maps[steps] for step_maps in maps)
        values = [
            number
            for claim_map in (first, second)
            for number in _test_mass(_mean(mask_share(claim_map, masks)))
        ]
        values += [float(_mean(top_iou(first, second, top))), float(_mean(rank_correlation(first, second)))]
        claims.append(_NamedThing(trace.sample.id, name, len(steps), np.array(values)))
    return claims


def _test_mass(mass: np.ndarray) -> tuple[float, float, float]:
    """Return the mass on the true regions, its mean on random ones, and p.

    Args:
        mass: [mask], the true regions first.
    """
    if not np.isfinite(mass).all():
        return float(mass[0]), np.nan, 1.0  # a map that is 0 everywhere is not on the regions
    as_large = mass >= mass[0] - 1e-12
    return float(mass[0]), float(mass[1:].mean()), float(as_large.mean())


def _classify_mode(evidence: np.ndarray, alpha: float) -> str:
    """Return the failure mode of a claim from its evidence, in the order of `EVIDENCE`.

    Example:
        >>> _classify_mode(np.array([0.5, 0.1, 0.01, 0.1, 0.1, 0.6, 0.0, 0.0]), alpha=0.1)
        'dissociation'
    """
    attention_on = evidence[EVIDENCE.index("attention_p")] <= alpha
    activation_on = evidence[EVIDENCE.index("activation_p")] <= alpha
    if attention_on:
        return "grounded" if activation_on else "dissociation"
    return "undecided" if activation_on else "perceptual_blindness"


def _number_sets(groups: Sets, claims: Iterable[_NamedThing]) -> np.ndarray:
    """Return the set of images of each claim, int [claim]."""
    places = {name: place for place, name in enumerate(groups.names)}
    return groups.number([places[claim.sample] for claim in claims])


def _make_dataset(by_label: dict[bool, list[_NamedThing]], groups: Sets, alpha: float) -> xr.Dataset:
    """Return the modes of the claims of faithful (True) and unfaithful (False) answers, and their shares."""
    claims = by_label[False]
    names = [f"{claim.sample}:{claim.thing}" for claim in claims]
    out = xr.Dataset(coords={"claim": names, "name": list(EVIDENCE), "kind": list(MODES)})
    out.coords["sample"] = ("claim", [claim.sample for claim in claims])
    out.coords["thing"] = ("claim", [claim.thing for claim in claims])
    modes = {
        label: [_classify_mode(claim.evidence, alpha) for claim in members]
        for label, members in by_label.items()
    }
    out["mode"] = ("claim", modes[False])
    out["n_tokens"] = ("claim", [claim.n_tokens for claim in claims])
    out["evidence"] = (("claim", "name"), np.array([claim.evidence for claim in claims]))
    numbers = _number_sets(groups, chain.from_iterable(by_label.values()))
    sets = dict(zip(by_label, np.split(numbers, [len(by_label[True])]), strict=True))
    for suffix, faithful in (("", False), ("_faithful", True)):
        has_mode = np.array([[mode == kind for kind in MODES] for mode in modes[faithful]], float)
        has_mode = has_mode.reshape(-1, len(MODES))
        out.update(estimate_mean(has_mode, sets[faithful]).variables(f"share{suffix}", "kind"))
        out[f"count{suffix}"] = ("kind", has_mode.sum(0).astype(int))
    called = np.asarray(has_mode[:, : len(FAILURES)].any(1))
    out.update(estimate_mean(called, sets[True]).variables("false_alarm_rate"))
    for label, faithful in (("unfaithful", False), ("faithful", True)):
        out[f"n_claims_{label}"] = ((), len(by_label[faithful]))
        out[f"n_{label}"] = ((), len({claim.sample for claim in by_label[faithful]}))
    return out


def _describe_false_alarms(ds: xr.Dataset) -> str:
    """Return in a sentence how often the rule finds a failure in faithful answers.

    Example:
        >>> ds = failure_modes(run)                                 # doctest: +SKIP
        >>> _describe_false_alarms(ds)                               # doctest: +SKIP
        'False alarms: 12% [8%, 17%] of the 60 claims of 40 faithful answers are called blind or dissociated.'
    """
    n_claims, n_samples = int(ds["n_claims_faithful"]), int(ds["n_faithful"])
    if not n_claims:
        return "False alarms: unknown, since no faithful answer names a thing with regions."
    rate = read_estimate(ds, "false_alarm_rate")
    return (
        f"False alarms: {rate:.0%} of the {n_claims} claims of {n_samples} faithful answers are called blind "
        "or dissociated."
    )


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over steps of the finite values; NaN, without a warning, if there are none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(0)
    return np.divide(total, known.sum(0), out=np.full(total.shape, np.nan), where=known.any(0))
