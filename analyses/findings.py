"""Claims of SPD-Faith Bench (arXiv:2602.07833), tested on a run by its analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import bootstrap_mean, compare_groups
from mmprobe.cache import Run


class Finding(NamedTuple):
    """One claim, its measure, and the measured value with its interval.

    Attributes:
        source: section, figure or equation of the paper.
        n: number of answers, in words.
        expected: sign of the value if the claim holds, 1 or -1.
    """

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
        """`holds` or `does not hold` if the interval lies on one side of 0, else `undecided`."""
        if not self.low > 0 and not self.high < 0:
            return "undecided"
        return "holds" if np.sign(self.value) == self.expected else "does not hold"


def findings(run: Run, datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """Test the paper's claims on a run by its analyses.

    A claim holds if the 95 % interval of its measure lies on the side of 0 that the claim predicts. It does
    not hold if the interval lies on the other side. It is undecided if the interval includes 0 or if there
    are too few answers for an interval. Each claim is tested on its own, without correction for their number.
    Differences are unfaithful minus faithful answers over all types of questions. If the types differ in how
    often their answers are unfaithful, the differences may be due to the types.

    Args:
        run: with labels, for the claims on unfaithful answers.
        datasets: of `attention_decay`, `residual_drift`, `sublayer_transitions`, `neuron_activation` and
            `attention_vs_activation`. Claims without their data set are left out.

    Returns:
        A data set with dimension `finding`: claim, source (in the paper), measure, value, low, high, n (in
        words), verdict. The numbers of a claim are NaN if a group is too small.

    Example:
        >>> ds = findings(run, [mp.analyses.residual_drift(run)])              # doctest: +SKIP
        >>> ds.verdict.values                                                  # doctest: +SKIP
        array(['undecided'], dtype='<U13')
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    out = to_dataset(_test_claims(run, by_name))
    out.attrs = {"analysis": "findings", "run": str(run.path), "model": run.config["model"]["name"]}
    return out


def to_dataset(rows: Iterable[Finding]) -> xr.Dataset:
    """Return findings as a data set over the dimension `finding`."""
    rows = list(rows)
    names = ("claim", "source", "measure", "value", "low", "high", "n", "verdict")
    dtypes = {"value": float, "low": float, "high": float}
    return xr.Dataset(
        {
            name: ("finding", np.array([getattr(row, name) for row in rows], dtypes.get(name, str)))
            for name in names
        }
    )


def mean_deep_layers(values: xr.DataArray) -> np.ndarray:
    """Return the mean over the last third of the layers, from [..., layer] to [...]."""
    layers = values.sizes["layer"]
    return values.isel(layer=slice(layers - max(1, round(layers / 3)), None)).mean("layer").values


def difference_finding(
    claim: str, source: str, measure: str, values: np.ndarray, faithful: np.ndarray, expected: int
) -> Finding:
    """Test the mean of unfaithful minus faithful samples.

    Args:
        values: [sample]; NaN is left out.
        faithful: [sample], 1 or 0; NaN is left out.
    """
    known = np.isfinite(values)
    comparison = compare_groups(values, known & (faithful == 0), known & (faithful == 1))
    n = f"{comparison.n_first} unfaithful, {comparison.n_second} faithful"
    value, low, high = (float(x) for x in (comparison.difference, comparison.low, comparison.high))
    return Finding(claim, source, measure, value, low, high, n, expected)


def mean_finding(claim: str, source: str, measure: str, values: np.ndarray, expected: int) -> Finding:
    """Test the mean over samples of values [sample]; NaN is left out."""
    values = values[np.isfinite(values)]
    low, high = bootstrap_mean(values)
    value = float(values.mean()) if len(values) else np.nan
    return Finding(claim, source, measure, value, float(low), float(high), f"{len(values)} answers", expected)


def _read_labels(run: Run, names: xr.DataArray) -> np.ndarray:
    """Return 1 for faithful, 0 for unfaithful and NaN for unlabelled samples."""
    numbers = {True: 1.0, False: 0.0, None: np.nan}
    return np.array([numbers[run.faithful(str(name))] for name in names.values])


def _test_claims(run: Run, datasets: Mapping[str, xr.Dataset]) -> Iterator[Finding]:
    """Test every claim whose data set is there, in the order of the paper."""
    if "attention_decay" in datasets:
        yield from _test_attention(run, datasets["attention_decay"])
    if "attention_vs_activation" in datasets:
        yield from _test_overlap(run, datasets["attention_vs_activation"])
    if "residual_drift" in datasets:
        drift = datasets["residual_drift"]
        yield difference_finding(
            "The answers to opposite questions differ more in deep layers if they are unfaithful",
            "4.3, figure 8a",
            "cosine of their residual streams, last third of the layers",
            mean_deep_layers(drift["cosine"]),
            drift["pair_faithful"].values,
            -1,
        )
    if "sublayer_transitions" in datasets:
        yield from _test_sublayers(run, datasets["sublayer_transitions"])
    if "neuron_activation" in datasets:
        neurons = datasets["neuron_activation"]
        yield difference_finding(
            "Unfaithful answers activate more neurons",
            "D.4, equation 22",
            "share of active neurons, all layers",
            neurons["ratio"].mean("layer").values,
            _read_labels(run, neurons["sample"]),
            1,
        )


def _test_attention(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention to the images."""
    share, slope = ds["share_of_sample"], ds["slope_of_sample"]
    third = max(1, round(share.sizes["layer"] / 3))
    early = share.isel(layer=slice(third)).mean("layer")
    later = share.isel(layer=slice(third, None)).mean("layer")
    measure = "share of attention on visual tokens"
    yield mean_finding(
        "Early suppression: shallow layers attend less to the images",
        "4.2, figure 7",
        f"{measure}, first third of the layers minus the others",
        (early - later).values,
        -1,
    )
    yield mean_finding(
        "Progressive decay: attention to the images falls as the answer grows",
        "4.2, figure 7",
        f"slope of the {measure} per step, all layers",
        slope.mean("layer").values,
        -1,
    )
    faithful = _read_labels(run, ds["sample"])
    yield difference_finding(
        "Unfaithful answers attend less to the images",
        "4.2",
        f"{measure}, all layers",
        share.mean("layer").values,
        faithful,
        -1,
    )
    yield difference_finding(
        "Attention to the images decays faster in unfaithful answers",
        "4.2",
        f"slope of the {measure} per step, all layers",
        slope.mean("layer").values,
        faithful,
        -1,
    )


def _test_overlap(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claim on the overlap of attention and token activation."""
    top = f"top {ds.attrs['top']:.0%} of the cells"
    measures = {"iou": f"overlap (IoU) of their {top}", "rank_correlation": "their rank correlation"}
    for name, measure in measures.items():
        yield difference_finding(
            "Attention and token activation agree less in unfaithful answers",
            "D.1, figure 14",
            measure,
            ds[name].mean("step").values,
            _read_labels(run, ds["sample"]),
            -1,
        )


def _test_sublayers(run: Run, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention and FFN updates."""
    faithful = _read_labels(run, ds["sample"])
    ffn, attention = mean_deep_layers(ds["cos_ffn"]), mean_deep_layers(ds["cos_mha"])
    layers = "last third of the layers"
    for claim, source, measure, values, expected in (
        (
            "FFN transitions drop in unfaithful answers",
            "4.3, figure 8b",
            f"cosine before and after the FFN, {layers}",
            ffn,
            -1,
        ),
        (
            "FFN transitions drop more than MHA transitions",
            "4.3, figure 8b",
            f"that cosine minus the cosine before and after attention, {layers}",
            ffn - attention,
            -1,
        ),
        (
            "Attention and FFN conflict more in unfaithful answers",
            "5, equation 5",
            f"KL of their updates in nat, {layers}",
            mean_deep_layers(ds["kl"]),
            1,
        ),
    ):
        yield difference_finding(claim, source, measure, values, faithful, expected)
