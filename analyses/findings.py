"""Which of paper 003's claims hold for a run: what the analyses found, told as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import bootstrap_mean, compare_groups
from mmprobe.cache import Run


class Finding(NamedTuple):
    """A claim, what was measured for it, and what came out; `expected` is the sign that the claim says."""

    claim: str
    source: str
    measure: str
    value: float
    low: float
    high: float
    n: str
    expected: int

    @property
    def verdict(self) -> str:
        """`holds` or `does not hold` where the interval lies on one side of 0, else `undecided`."""
        if not self.low > 0 and not self.high < 0:
            return "undecided"
        return "holds" if np.sign(self.value) == self.expected else "does not hold"


def findings(run: Run, datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """What a run says of the paper's claims, from the analyses that were made of it.

    A claim holds if the 95 % interval of what was measured lies on the side of 0 that it says, and does not if
    it lies on the other; it is undecided if the interval holds 0 or there are too few answers for one. The
    claims are many and each is tested for itself. Differences are unfaithful minus faithful answers, of all
    kinds of questions together: where kinds differ in how often they go wrong, they differ for that reason, too.

    Args:
        run: with labels, for the claims on unfaithful answers.
        datasets: of `attention_decay`, `residual_drift`, `sublayer_transitions`, `neuron_activation` and
            `attention_vs_activation`; claims of those that are missing are left out.

    Returns:
        A data set with dimension `finding`: claim, source (in the paper), measure, value, low, high, n (in
        words), verdict. A claim whose groups are too small has NaN for its numbers.

    Example:
        >>> found = findings(run, [mp.analyses.residual_drift(run)])           # doctest: +SKIP
        >>> found.verdict.values                                               # doctest: +SKIP
        array(['undecided'], dtype='<U13')
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    rows = list(_claims(run, by_name))
    out = as_dataset(rows)
    out.attrs = {"analysis": "findings", "run": str(run.path), "model": run.config["model"]["name"]}
    return out


def as_dataset(rows: Iterable[Finding]) -> xr.Dataset:
    """Findings as variables over the dimension `finding`."""
    rows = list(rows)
    kept = ("claim", "source", "measure", "value", "low", "high", "n", "verdict")
    kinds = {"value": float, "low": float, "high": float}
    return xr.Dataset(
        {
            name: ("finding", np.array([getattr(row, name) for row in rows], kinds.get(name, str)))
            for name in kept
        }
    )


def deep(values: xr.DataArray) -> np.ndarray:
    """Mean over the last third of the layers: [..., layer] -> [...]."""
    layers = values.sizes["layer"]
    return values.isel(layer=slice(layers - max(1, round(layers / 3)), None)).mean("layer").values


def difference(
    claim: str, source: str, measure: str, values: np.ndarray, faithful: np.ndarray, expected: int
) -> Finding:
    """Unfaithful minus faithful of one number a sample; `faithful` is 1, 0 or NaN, as values may be."""
    known = np.isfinite(values)
    found = compare_groups(values, known & (faithful == 0), known & (faithful == 1))
    n = f"{found.n_first} unfaithful, {found.n_second} faithful"
    return Finding(
        claim, source, measure, float(found.difference), float(found.low), float(found.high), n, expected
    )


def mean(claim: str, source: str, measure: str, values: np.ndarray, expected: int) -> Finding:
    """The mean over samples of one number a sample, NaN left out."""
    values = values[np.isfinite(values)]
    low, high = bootstrap_mean(values)
    value = float(values.mean()) if len(values) else np.nan
    return Finding(claim, source, measure, value, float(low), float(high), f"{len(values)} answers", expected)


def _faithful(run: Run, names: xr.DataArray) -> np.ndarray:
    known = {True: 1.0, False: 0.0, None: np.nan}
    return np.array([known[run.faithful(str(name))] for name in names.values])


def _claims(run: Run, found: Mapping[str, xr.Dataset]) -> Iterator[Finding]:
    """Every claim whose analysis is there, in the order of the paper."""
    if "attention_decay" in found:
        yield from _of_attention(run, found["attention_decay"])
    if "attention_vs_activation" in found:
        yield from _of_overlap(run, found["attention_vs_activation"])
    if "residual_drift" in found:
        drift = found["residual_drift"]
        yield difference(
            "The answers to opposite questions part in deep layers where they are unfaithful",
            "4.3, figure 8a",
            "cosine of their residual streams, last third of the layers",
            deep(drift["cosine"]),
            drift["pair_faithful"].values,
            -1,
        )
    if "sublayer_transitions" in found:
        yield from _of_sublayers(run, found["sublayer_transitions"])
    if "neuron_activation" in found:
        neurons = found["neuron_activation"]
        yield difference(
            "Unfaithful answers activate more neurons",
            "D.4, equation 22",
            "share of active neurons, all layers",
            neurons["ratio"].mean("layer").values,
            _faithful(run, neurons["sample"]),
            1,
        )


def _of_attention(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    share, slope = ds["share_of_sample"], ds["slope_of_sample"]
    third = max(1, round(share.sizes["layer"] / 3))
    early, rest = (share.isel(layer=part).mean("layer") for part in (slice(third), slice(third, None)))
    what = "share of attention on visual tokens"
    yield mean(
        "Early suppression: shallow layers attend less to the pictures",
        "4.2, figure 7",
        f"{what}, first third of the layers minus the others",
        (early - rest).values,
        -1,
    )
    yield mean(
        "Progressive decay: attention to the pictures falls as the answer grows",
        "4.2, figure 7",
        f"slope of the {what} per step, all layers",
        slope.mean("layer").values,
        -1,
    )
    faithful = _faithful(run, ds["sample"])
    yield difference(
        "Unfaithful answers attend less to the pictures",
        "4.2",
        f"{what}, all layers",
        share.mean("layer").values,
        faithful,
        -1,
    )
    yield difference(
        "Attention to the pictures decays faster in unfaithful answers",
        "4.2",
        f"slope of the {what} per step, all layers",
        slope.mean("layer").values,
        faithful,
        -1,
    )


def _of_overlap(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    top = f"top {ds.attrs['top']:.0%} of the cells"
    measures = {"iou": f"overlap (IoU) of their {top}", "rank_correlation": "their rank correlation"}
    for name, measure in measures.items():
        yield difference(
            "Attention and token activation part in unfaithful answers",
            "D.1, figure 14",
            measure,
            ds[name].mean("step").values,
            _faithful(run, ds["sample"]),
            -1,
        )


def _of_sublayers(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    faithful = _faithful(run, ds["sample"])
    ffn, attention = deep(ds["cos_ffn"]), deep(ds["cos_mha"])
    where = "last third of the layers"
    for claim, source, measure, values, expected in (
        (
            "FFN transitions drop in unfaithful answers",
            "4.3, figure 8b",
            f"cosine before and after the FFN, {where}",
            ffn,
            -1,
        ),
        (
            "They drop more than MHA transitions, which stay as they are",
            "4.3, figure 8b",
            f"that cosine minus the one before and after attention, {where}",
            ffn - attention,
            -1,
        ),
        (
            "Attention and FFN conflict more in unfaithful answers",
            "5, equation 5",
            f"KL of their updates in nat, {where}",
            deep(ds["kl"]),
            1,
        ),
    ):
        yield difference(claim, source, measure, values, faithful, expected)
