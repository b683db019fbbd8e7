"""Claims of SPD-Faith Bench (arXiv:2602.07833), tested on a run by its analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_decay import early_minus_later
from mmprobe.analyses.held_out import image_groups
from mmprobe.analyses.verdicts import (
    NO_PAIRS,
    Finding,
    difference_finding,
    equivalence_finding,
    mean_finding,
    to_dataset,
)
from mmprobe.cache import Run

_PROMPT = "the images' part in the attention to system prompt, images and question"
_ALL = "share of all attention on the images, generated tokens included"


def findings(run: Run, datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """Test the paper's claims on a run by its analyses.

    A claim holds if the 95 % interval of its measure lies on the side of 0 that the claim predicts. It does
    not hold if the interval lies on the other side. It is undecided if the interval includes 0 or if there
    are too few answers for an interval. The claim that something stays the same holds if the whole interval
    lies within a margin of 0, and does not hold if the whole interval lies beyond it. A claim about a kind of
    pairs that the run does not have gets `no such pairs`.

    Each claim is tested on its own, without correction for their number. Differences are unfaithful minus
    faithful answers over all types of questions. If the types differ in how often their answers are
    unfaithful, the differences may be due to the types.

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
        array(['no such pairs', 'undecided'], dtype='<U13')
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    out = to_dataset(_test_claims(run, by_name))
    out.attrs = {"analysis": "findings", "run": str(run.path), "model": run.config["model"]["name"]}
    return out


def _test_claims(run: Run, datasets: Mapping[str, xr.Dataset]) -> Iterator[Finding]:
    """Test every claim whose data set is there, in the order of the paper."""
    answers = _Answers(run)
    if "attention_decay" in datasets:
        yield from _test_attention(answers, datasets["attention_decay"])
    if "attention_vs_activation" in datasets:
        yield from _test_overlap(answers, datasets["attention_vs_activation"])
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
            *answers.labels(neurons["sample"], 1),
        )


class _Answers:
    """The labels of a run's answers, and the sets of images that they are about."""

    def __init__(self, run: Run) -> None:
        self.run = run
        samples = [run.sample(name) for name in run.ids]
        numbers = image_groups(samples).tolist() if samples else []
        self.set_of_sample = dict(zip(run.ids, numbers, strict=True))
        self.set_of_pair = {
            sample.pair_id: number for sample, number in zip(samples, numbers, strict=True) if sample.pair_id
        }

    def sets(self, names: xr.DataArray) -> np.ndarray:
        """Return the number of the set of images of each sample, int [sample]."""
        return np.array([self.set_of_sample[str(name)] for name in names.values], int)

    def labels(self, names: xr.DataArray, expected: int) -> tuple[np.ndarray, int, np.ndarray]:
        """Return the last arguments of `difference_finding`: labels, the expected sign, and sets of images.

        Labels are 1 for faithful, 0 for unfaithful and NaN for unlabelled samples.
        """
        numbers = {True: 1.0, False: 0.0, None: np.nan}
        faithful = np.array([numbers[self.run.faithful(str(name))] for name in names.values])
        return faithful, expected, self.sets(names)


def mean_deep_layers(values: xr.DataArray) -> np.ndarray:
    """Return the mean over the last third of the layers, from [..., layer] to [...]."""
    layers = values.sizes["layer"]
    return values.isel(layer=slice(layers - max(1, round(layers / 3)), None)).mean("layer").values


def _test_attention(answers: _Answers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention to the images: in the authors' form, and decay also in the other form."""
    sets = answers.sets(ds["sample"])
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
    slopes = (("slope_authors_of_sample", "", _PROMPT), ("slope_of_sample", f" ({_ALL})", f"the {_ALL}"))
    for values, note, what in slopes:
        yield mean_finding(
            f"Progressive decay: attention to the images falls as the answer grows{note}",
            "ours" if note else "4.2, figure 7",
            f"slope per step of {what}, all layers",
            ds[values].mean("layer").values,
            -1,
            sets,
        )
    yield difference_finding(
        "Unfaithful answers attend less to the images",
        "4.2",
        f"{_PROMPT}, all layers",
        ds["share_authors_of_sample"].mean("layer").values,
        *answers.labels(ds["sample"], -1),
    )
    for values, note, what in slopes:
        yield difference_finding(
            f"Attention to the images decays faster in unfaithful answers{note}",
            "ours" if note else "4.2",
            f"slope per step of {what}, all layers",
            ds[values].mean("layer").values,
            *answers.labels(ds["sample"], -1),
        )


def _test_overlap(answers: _Answers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claim on the overlap of attention and token activation."""
    top = f"top {ds.attrs['top']:.0%} of the cells"
    measures = {"iou": f"overlap (IoU) of their {top}", "rank_correlation": "their rank correlation"}
    for name, measure in measures.items():
        yield difference_finding(
            "Attention and token activation agree less in unfaithful answers",
            "D.1, figure 14",
            measure,
            ds[name].mean("step").values,
            *answers.labels(ds["sample"], -1),
        )


def _test_drift(answers: _Answers, ds: xr.Dataset) -> Iterator[Finding]:
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


def _test_sublayers(answers: _Answers, ds: xr.Dataset) -> Iterator[Finding]:
    """Test the claims on attention and FFN updates."""
    ffn, attention = mean_deep_layers(ds["cos_ffn"]), mean_deep_layers(ds["cos_mha"])
    layers = "last third of the layers"
    faithful, _, sets = answers.labels(ds["sample"], 1)
    yield equivalence_finding(
        "MHA transitions stay the same in unfaithful answers",
        "4.3, figure 8b",
        f"cosine before and after attention, {layers}",
        attention,
        faithful,
        ds.attrs["margin"],
        sets,
    )
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
        yield difference_finding(claim, source, measure, values, faithful, expected, sets)
