"""Claims of SPD-Faith Bench (arXiv:2602.07833), tested on a run by its analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_decay import early_minus_later
from mmprobe.analyses.causal_findings import HOW, add_twins
from mmprobe.analyses.run_answers import RunAnswers
from mmprobe.analyses.verdicts import (
    NO_PAIRS,
    Finding,
    decide,
    difference_finding,
    equivalence_finding,
    mean_finding,
)
from mmprobe.cache import Run

_PROMPT = "the images' part in the attention to system prompt, images and question"
_ALL = "share of all attention on the images, generated tokens included"

CLAIMED = (
    "attention_decay",
    "attention_vs_activation",
    "attention_ratio",
    "residual_drift",
    "sublayer_transitions",
    "neuron_activation",
)
"""Analyses that a claim is tested by."""


def findings(run: Run, datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """Test the paper's claims on a run by its analyses.

    A claim holds if the 95 % interval of its measure lies on the side of 0 that the claim predicts. It does
    not hold if the interval lies on the other side. It is undecided if the interval includes 0 or if there
    are too few answers for an interval. The claim that something stays the same holds if the whole interval
    lies within a margin of 0, and does not hold if the whole interval lies beyond it. A claim about a kind of
    pairs that the run does not have gets `no such pairs`.

    What correlates need not be the cause. So a claim has a second verdict: on what happens under the intervention
    that the claim implies (`add_twins`).

    Each claim is tested on its own, without correction for their number. Differences are unfaithful minus
    faithful answers over all types of questions. If the types differ in how often their answers are
    unfaithful, the differences may be due to the types.

    Args:
        run: with labels, for the claims on unfaithful answers.
        datasets: of the analyses in `CLAIMED`; claims without their data set are left out. And of
            `mmprobe.probes.claim_interventions`, for the second verdicts.

    Returns:
        A data set with dimension `finding`: claim, source (in the paper), measure, value, low, high, n (in
        words), verdict; intervention, causal_measure, causal_value, causal_low, causal_high, causal_n,
        causal_verdict, agree. The numbers of a claim are NaN if a group is too small.

    Example:
        >>> ds = findings(run, [mp.analyses.residual_drift(run)])              # doctest: +SKIP
        >>> ds.verdict.values                                                  # doctest: +SKIP
        array(['no such pairs', 'undecided'], dtype='<U13')
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    answers, interventions = RunAnswers(run), by_name.get("claim_interventions")
    out = add_twins(_test_claims(answers, by_name), interventions, answers)
    out.attrs = {"analysis": "findings", "run": str(run.path), "model": run.config["model"]["name"]}
    if interventions is None:
        out.attrs["note"] = f"no intervention was measured; {HOW} does it"
    return out


def _test_claims(answers: RunAnswers, datasets: Mapping[str, xr.Dataset]) -> Iterator[Finding]:
    """Test every claim whose data set is there, in the order of the paper."""
    if "attention_decay" in datasets:
        yield from _test_attention(answers, datasets["attention_decay"])
    if "attention_vs_activation" in datasets:
        yield from _test_overlap(answers, datasets["attention_vs_activation"])
    if "attention_ratio" in datasets:
        yield _test_regions(datasets["attention_ratio"])
    if "residual_drift" in datasets:
        yield from _test_drift(answers, datasets["residual_drift"])
    if "sublayer_transitions" in datasets:
        yield from _test_sublayers(answers, datasets["sublayer_transitions"])
    if "neuron_activation" in datasets:
        neurons = datasets["neuron_activation"]
        yield difference_finding(
            "Unfaithful answers activate more neurons",
            "D.4, equation 22",
            "share of active neurons, all layers",
            neurons["ratio"].mean("layer").values,
            answers.faithful(neurons["sample"]),
            1,
            answers.sets(neurons["sample"]),
        )


def first_deep_layer(layers: int) -> int:
    """Return the first layer of the last third.

    Example:
        >>> first_deep_layer(7), first_deep_layer(1)
        (5, 0)
    """
    return layers - max(1, round(layers / 3))


def mean_deep_layers(values: xr.DataArray) -> np.ndarray:
    """Return the mean over the last third of the layers, from [..., layer] to [...]."""
    return values.isel(layer=slice(first_deep_layer(values.sizes["layer"]), None)).mean("layer").values


def _test_attention(answers: RunAnswers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention to the images: in the authors' form, and decay also in the other form."""
    sets, faithful = answers.sets(ds["sample"]), answers.faithful(ds["sample"])
    for claim, what, values, expected in (
        (
            "Early suppression: shallow layers attend less to the images",
            _PROMPT,
            "share_authors_of_sample",
            -1,
        ),
        (
            "Early suppression: shallow layers attend more to the system prompt",
            "the part of everything before the first image in the attention to the prompt",
            "system_of_sample",
            1,
        ),
    ):
        measure = f"{what}, first third of the layers minus the others"
        early = early_minus_later(ds[values].values)
        yield mean_finding(claim, "4.2, figure 7", measure, early, expected, sets)
    share = ds["share_authors_of_sample"].mean("layer").values
    claim = "Unfaithful answers attend less to the images"
    finding = difference_finding(claim, "4.2", f"{_PROMPT}, all layers", share, faithful, -1, sets)
    yield finding._replace(twin="attention raised")
    for variable, note, what in (
        ("slope_authors_of_sample", "", _PROMPT),
        ("slope_of_sample", f" ({_ALL})", f"the {_ALL}"),
    ):
        slope, measure = ds[variable].mean("layer").values, f"slope per step of {what}, all layers"
        claim = f"Progressive decay: attention to the images falls as the answer grows{note}"
        finding = mean_finding(claim, "ours" if note else "4.2, figure 7", measure, slope, -1, sets)
        yield finding._replace(twin="decay")
        claim = f"Attention to the images decays faster in unfaithful answers{note}"
        finding = difference_finding(claim, "ours" if note else "4.2", measure, slope, faithful, -1, sets)
        yield finding._replace(twin="faster decay")


def _test_overlap(answers: RunAnswers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claim on the overlap of attention and token activation."""
    top = f"top {ds.attrs['top']:.0%} of the cells"
    measures = {"iou": f"overlap (IoU) of their {top}", "rank_correlation": "their rank correlation"}
    for name, measure in measures.items():
        yield difference_finding(
            "Attention and token activation agree less in unfaithful answers",
            "D.1, figure 14",
            measure,
            ds[f"{name}_of_sample"].values,
            answers.faithful(ds["sample"]),
            -1,
            answers.sets(ds["sample"]),
        )


def _test_regions(ds: xr.Dataset) -> Finding:
    """Test the claim on attention to the changed regions, in the layer that attends to them most."""
    layer = int(ds["ratio_by_label"].sel(label="all").idxmax("layer"))
    best = ds.sel(label="all", layer=layer)
    value, low, high = (
        float(best[f"ratio_by_label{end}"] - best["random_by_label"]) for end in ("", "_low", "_high")
    )
    return Finding(
        f"The changed regions get more attention than random regions (layer {layer}, the best of all)",
        "ours",
        "ratio of mean attention on the regions to mean attention elsewhere, minus the ratio of random regions",
        value,
        low,
        high,
        f"{int(best['n_label'])} answers",
        decide(low, high, 1),
        "regions",
    )


def _test_drift(answers: RunAnswers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claim on the answers to opposite questions: by contradiction, as the paper, and by statements."""
    sets = np.array([answers.set_of_pair[str(pair)] for pair in ds["pair"].values], int)
    cosine, measure = (
        mean_deep_layers(ds["cosine"]),
        "cosine of their residual streams, last third of the layers",
    )
    finding = difference_finding(
        "The answers to opposite questions differ more in deep layers if they contradict each other",
        "4.3, figure 8a",
        measure,
        cosine,
        1 - ds["pair_contradictory"].values,
        -1,
        sets,
        ("contradictory", "consistent"),
    )
    none = not (ds["pair_contradictory"] == 1).any()
    yield finding._replace(verdict=NO_PAIRS) if none else finding
    yield difference_finding(
        "The answers to opposite questions differ more in deep layers if either makes a false statement",
        "ours",
        measure,
        cosine,
        ds["pair_faithful"].values,
        -1,
        sets,
    )


def _test_sublayers(answers: RunAnswers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention and FFN updates."""
    ffn, attention = mean_deep_layers(ds["cos_ffn"]), mean_deep_layers(ds["cos_mha"])
    layers = "last third of the layers"
    faithful, sets = answers.faithful(ds["sample"]), answers.sets(ds["sample"])
    finding = equivalence_finding(
        "MHA transitions stay the same in unfaithful answers",
        "4.3, figure 8b",
        f"cosine before and after attention, {layers}",
        attention,
        faithful,
        ds.attrs["margin"],
        sets,
    )
    yield finding._replace(twin="attention by mean")
    for claim, source, measure, values, expected, twin in (
        (
            "FFN transitions drop in unfaithful answers",
            "4.3, figure 8b",
            f"cosine before and after the FFN, {layers}",
            ffn,
            -1,
            "FFN by mean",
        ),
        (
            "FFN transitions drop more than MHA transitions",
            "4.3, figure 8b",
            f"that cosine minus the cosine before and after attention, {layers}",
            ffn - attention,
            -1,
            "FFN against attention",
        ),
        (
            "Attention and FFN conflict more in unfaithful answers",
            "5, equation 5",
            f"KL of their updates in nat, {layers}",
            mean_deep_layers(ds["kl"]),
            1,
            "FFN scaled",
        ),
    ):
        finding = difference_finding(claim, source, measure, values, faithful, expected, sets)
        yield finding._replace(twin=twin)
