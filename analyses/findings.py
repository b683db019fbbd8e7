"""Claims of SPD-Faith Bench (arXiv:2602.07833), tested on a run by its analyses, and each claim's causal twin.

`findings` tests the claims. A verdict says on which side of 0 the interval of a measure lies. The twin of a claim is
what happens under the intervention that the claim implies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_decay import early_minus_later
from mmprobe.cache import Run
from mmprobe.samples import set_keys
from mmprobe.stats.compare import MINIMUM, compare_groups, estimate_difference
from mmprobe.stats.estimate import Estimate
from mmprobe.stats.intervals import Range, mean_interval, sums_interval
from mmprobe.stats.sets import Sets

_PROMPT = "the images' share of the attention to system prompt, images and question"
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
        yield _test_regions(answers, datasets["attention_ratio"])
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
    finding = difference_finding(claim, "ours", f"{_PROMPT}, all layers", share, faithful, -1, sets)
    yield replace(finding, twin="attention raised")
    for variable, note, what in (
        ("slope_authors_of_sample", "", _PROMPT),
        ("slope_of_sample", f" ({_ALL})", f"the {_ALL}"),
    ):
        slope, measure = ds[variable].mean("layer").values, f"slope per step of {what}, all layers"
        claim = f"Progressive decay: attention to the images falls as the answer grows{note}"
        finding = mean_finding(claim, "ours" if note else "4.2, figure 7", measure, slope, -1, sets)
        yield replace(finding, twin="decay")
        if not note:
            deep = mean_deep_layers(ds[variable])
            claim = (
                "Progressive decay in deep layers: attention to the images falls there as the answer grows"
            )
            measure_deep = f"slope per step of {what}, last third of the layers"
            yield mean_finding(claim, "D.2, figures 17 and 18", measure_deep, deep, -1, sets)
        claim = f"Attention to the images decays faster in unfaithful answers{note}"
        finding = difference_finding(claim, "ours", measure, slope, faithful, -1, sets)
        yield replace(finding, twin="faster decay")


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


def _test_regions(answers: RunAnswers, ds: xr.Dataset) -> Finding:
    """Test the claim on attention to the changed regions in one layer, on other images than those that chose it.

    The layer is the one with the largest mean ratio over half of the sets of images; the other half tests it.
    """
    sets = answers.sets(ds["sample"])
    chooses = np.isin(sets, np.random.default_rng(0).permutation(np.unique(sets))[::2])
    ratio, random = ds["ratio"].values, ds["ratio_random"].values
    means = [np.nan if np.isnan(column).all() else np.nanmean(column) for column in ratio[chooses].T]
    index = 0 if np.isnan(means).all() else int(np.nanargmax(means))
    layer = int(ds["layer"][index])
    finding = mean_finding(
        f"The changed regions get more attention than random regions (layer {layer}, the best for the other half of the images)",
        "ours",
        "ratio of mean attention on the regions to mean attention elsewhere, minus the ratio of random regions; half of the images",
        (ratio - random)[~chooses, index],
        1,
        sets[~chooses],
    )
    return replace(finding, twin="regions")


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
    yield replace(finding, verdict=NO_PAIRS) if none else finding
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
    yield replace(finding, twin="attention by mean")
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
        yield replace(finding, twin=twin)


NO_TWIN, NOT_MEASURED = "none known", "not measured"
MARGIN = 0.1  # nat a token; losses that count as the same; our choice
HOW = "mmprobe analyze RUN --only findings --model MODEL"

_EXCHANGED = "the images are exchanged for unrelated ones"
_FFN = "FFN updates of the last third of the layers are replaced by their mean"
_LOSS = "what the answer loses, nat a token"
_SLOPE = "what a token loses, nat: its slope per step"
_GROUPS = "unfaithful minus faithful"
_CHANGE = "share of faithful answers with the change, minus the share without it"


class Twin(NamedTuple):
    """An intervention that a claim implies, and how its effect is tested.

    Attributes:
        intervention: what is done.
        measure: what is measured.
        values: name of the measured variable, or of two, the second of which is subtracted.
        test: `mean` over answers, `difference` of unfaithful and faithful answers, `same` in both, or
            `change` of the share of faithful answers.
        expected: sign of the value if the claim holds, 1 or -1.
        setting: attribute of the data set that says how strong the intervention was, or "".
    """

    intervention: str
    measure: str
    values: tuple[str, ...]
    test: str
    expected: int
    setting: str = ""


TWINS = {
    "decay": Twin(_EXCHANGED, _SLOPE, ("interchange_slope",), "mean", -1),
    "faster decay": Twin(_EXCHANGED, f"{_SLOPE}, {_GROUPS}", ("interchange_slope",), "difference", -1),
    "regions": Twin(
        "only the changed regions are exchanged for those of unrelated images",
        "what the answer loses, nat, minus the loss with places beside the regions exchanged",
        ("regions", "elsewhere"),
        "mean",
        1,
    ),
    "attention raised": Twin(
        "attention to the images is raised at every step (SAGE's see)",
        _CHANGE,
        ("faithful_attention", "faithful_before"),
        "change",
        1,
        "alpha",
    ),
    "attention by mean": Twin(
        "attention updates of the last third of the layers are replaced by their mean",
        f"{_LOSS}, {_GROUPS}",
        ("attention",),
        "same",
        1,
    ),
    "FFN by mean": Twin(_FFN, f"{_LOSS}, {_GROUPS}", ("ffn",), "difference", 1),
    "FFN against attention": Twin(
        f"{_FFN}, or attention updates",
        f"{_LOSS}: with the first minus with the second, {_GROUPS}",
        ("ffn", "attention"),
        "difference",
        1,
    ),
    "FFN scaled": Twin(
        "FFN updates that conflict with attention are scaled down (SAGE's analyze)",
        _CHANGE,
        ("faithful_ffn", "faithful_before"),
        "change",
        1,
        "beta",
    ),
}
"""By the name that a `Finding` has for it."""


def add_twins(
    findings: Iterable[Finding], interventions: xr.Dataset | None, answers: RunAnswers
) -> xr.Dataset:
    """Return findings as a data set, with what happens under the intervention that each claim implies.

    Args:
        interventions: data set of `mmprobe.probes.claim_interventions`, or None if it was not computed.
        answers: of the same run.

    Returns:
        The columns of `to_dataset`, and for the intervention:

        - intervention: what is done; "" if none is known
        - causal_measure, causal_value, causal_low, causal_high, causal_n: what is measured
        - causal_verdict: `holds`, `does not hold`, `undecided`, `none known` or `not measured`
        - agree: `yes` or `no` if both verdicts are decided, `open` if one is not, `–` without a causal verdict
    """
    findings = list(findings)
    out = to_dataset(findings)
    twins = [_find_twin(finding.twin, interventions, answers) for finding in findings]
    done = [TWINS[finding.twin].intervention if finding.twin else "" for finding in findings]
    out["intervention"] = ("finding", np.array(done, str))
    columns = to_dataset(twins)
    for name in ("measure", "value", "low", "high", "n", "verdict"):
        out[f"causal_{name}"] = columns[name]
    pairs = zip(out["verdict"].values, out["causal_verdict"].values, strict=True)
    out["agree"] = ("finding", np.array([compare_verdicts(*pair) for pair in pairs], str))
    return out


def compare_verdicts(correlational: str, causal: str) -> str:
    """Return whether two verdicts agree: `yes`, `no`, `open`, or `–` without a causal one.

    Example:
        >>> compare_verdicts("holds", "does not hold"), compare_verdicts("holds", "undecided")
        ('no', 'open')
    """
    if causal in (NO_TWIN, NOT_MEASURED):
        return "–"
    if {correlational, causal} <= {"holds", "does not hold"}:
        return "yes" if correlational == causal else "no"
    return "open"


def _find_twin(name: str, interventions: xr.Dataset | None, answers: RunAnswers) -> Finding:
    """Return what an intervention does, as a finding without a claim and a source."""
    if not name:
        return _no_numbers("", NO_TWIN)
    twin = TWINS[name]
    if interventions is None:
        return _no_numbers(f"{twin.measure}; {HOW} measures it", NOT_MEASURED)
    if not set(twin.values) <= set(interventions):
        return _no_numbers(f"{twin.measure}; {interventions.attrs['note']}", NOT_MEASURED)
    if twin.setting:
        measure = f"{twin.measure}; {twin.setting} = {interventions.attrs[twin.setting]:g}"
        twin = twin._replace(measure=measure)
    return _TESTS[twin.test](twin, interventions, answers)


def _no_numbers(measure: str, verdict: str) -> Finding:
    return Finding("", "", measure, Estimate(np.nan, np.nan, np.nan), "", verdict)


def _values(twin: Twin, ds: xr.Dataset) -> np.ndarray:
    values = ds[twin.values[0]].values
    return values if len(twin.values) == 1 else values - ds[twin.values[1]].values


def _test_mean(twin: Twin, ds: xr.Dataset, answers: RunAnswers) -> Finding:
    return mean_finding(
        "",
        "",
        twin.measure,
        _values(twin, ds),
        twin.expected,
        answers.sets(ds["sample"]),
        ds["weight"].values,
    )


def _test_difference(twin: Twin, ds: xr.Dataset, answers: RunAnswers) -> Finding:
    faithful, sets = answers.faithful(ds["sample"]), answers.sets(ds["sample"])
    return difference_finding("", "", twin.measure, _values(twin, ds), faithful, twin.expected, sets)


def _test_same(twin: Twin, ds: xr.Dataset, answers: RunAnswers) -> Finding:
    faithful, sets = answers.faithful(ds["sample"]), answers.sets(ds["sample"])
    return equivalence_finding("", "", twin.measure, _values(twin, ds), faithful, MARGIN, sets)


def _test_change(twin: Twin, ds: xr.Dataset, answers: RunAnswers) -> Finding:
    """Test the change of the share of faithful answers, over all answers of the run.

    The mean over unfaithful answers alone would be above 0 for any change that changes answers.
    """
    finding = mean_finding(
        "", "", twin.measure, _values(twin, ds), twin.expected, answers.sets(ds["sample"]), ds["weight"].values,
        range=(-1.0, 1.0),
    )  # fmt: skip
    after, before = (ds[name].values for name in twin.values)
    known = np.isfinite(after) & np.isfinite(before)
    bad, good = known & (before == 0), known & (before == 1)
    n = (
        f"{int(after[bad].sum())} of {bad.sum()} unfaithful answers become faithful, "
        f"{int((1 - after[good]).sum())} of {good.sum()} faithful ones unfaithful"
    )
    return replace(finding, n=n)


_TESTS: Mapping[str, Callable[[Twin, xr.Dataset, RunAnswers], Finding]] = {
    "mean": _test_mean,
    "difference": _test_difference,
    "same": _test_same,
    "change": _test_change,
}


NO_PAIRS = "no such pairs"


@dataclass(frozen=True)
class Finding:
    """One claim, its measure, and what was measured.

    Attributes:
        source: section, figure or equation of the paper.
        estimate: the measured value with its interval.
        n: number of answers, in words.
        verdict: `holds`, `does not hold`, `undecided`, or `no such pairs`.
        twin: name of the intervention that the claim implies (`TWINS`), or "" if none is known.
    """

    claim: str
    source: str
    measure: str
    estimate: Estimate[float]
    n: str
    verdict: str
    twin: str = ""


def to_dataset(rows: Iterable[Finding]) -> xr.Dataset:
    """Return findings as a data set over the dimension `finding`."""
    rows = list(rows)
    variables = {}
    for name in ("claim", "source", "measure", "value", "low", "high", "n", "verdict"):
        is_number = name in ("value", "low", "high")
        values = [getattr(row.estimate if is_number else row, name) for row in rows]
        variables[name] = ("finding", np.array(values, float if is_number else str))
    return xr.Dataset(variables)


def decide(estimate: Estimate[float], expected: int) -> str:
    """Return the verdict of a claim that a value is above 0 (expected 1) or below 0 (-1), from its interval.

    Example:
        >>> surely, perhaps = Estimate(0.2, 0.1, 0.3), Estimate(0.1, -0.1, 0.3)
        >>> decide(surely, 1), decide(surely, -1), decide(perhaps, 1)
        ('holds', 'does not hold', 'undecided')
    """
    verdicts = {0: "undecided", expected: "holds", -expected: "does not hold"}
    return verdicts[estimate.sign]


def mean_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    expected: int,
    sets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    range: Range = (None, None),
) -> Finding:
    """Test the mean over samples.

    Args:
        values: [sample]; NaN is left out.
        expected: sign of the mean if the claim holds, 1 or -1.
        sets: int [sample], the set of images of each sample; None: each sample is its own.
        weights: [sample], of each sample in the mean; None for equal weights.
        range: smallest and largest possible value.
    """
    known = np.isfinite(values)
    values, sets = values[known], None if sets is None else sets[known]
    if weights is None:
        ends, weights = mean_interval(values, sets, range), np.ones(len(values))
    else:
        weights = weights[known]
        ends = sums_interval(_ratio, np.stack([weights * values, weights], 1), sets, range)
    low, high = (float(end) for end in ends)
    value = float(np.average(values, weights=weights)) if known.any() else np.nan
    estimate = Estimate(value, low, high, len(values))
    return Finding(claim, source, measure, estimate, f"{len(values)} answers", decide(estimate, expected))


def _ratio(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def difference_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    faithful: np.ndarray,
    expected: int,
    sets: np.ndarray | None = None,
    names: tuple[str, str] = ("unfaithful", "faithful"),
) -> Finding:
    """Test the mean of unfaithful minus faithful samples, or of two other groups.

    Args:
        values: [sample]; NaN is left out.
        faithful: [sample], 0 in the first group and 1 in the second; NaN is left out.
        expected: sign of the difference if the claim holds, 1 or -1.
        sets: int [sample], the set of images of each sample; None: each sample is its own.
        names: of the two groups.
    """
    known = np.isfinite(values)
    first, second = known & (faithful == 0), known & (faithful == 1)
    comparison = compare_groups(values, first, second, sets=sets)
    n = f"{first.sum()} {names[0]}, {second.sum()} {names[1]}"
    return Finding(claim, source, measure, comparison[()], n, decide(comparison[()], expected))


def equivalence_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    faithful: np.ndarray,
    margin: float,
    sets: np.ndarray | None = None,
) -> Finding:
    """Test that unfaithful and faithful samples have the same mean, within a margin.

    The 95 % interval lies within the margin if both one-sided tests reject at 2.5 % (`p_equivalent`).

    Args:
        values, faithful, sets: as in `difference_finding`.
        margin: above 0, in the unit of the values.
    """
    known = np.isfinite(values)
    first, second = known & (faithful == 0), known & (faithful == 1)
    sets = np.arange(len(values)) if sets is None else sets
    estimate = estimate_difference(values, first, second, sets, MINIMUM)[()]
    verdict = "holds" if -margin < estimate.low and estimate.high < margin else "undecided"
    if estimate.low >= margin or estimate.high <= -margin:
        verdict = "does not hold"
    n = f"{first.sum()} unfaithful, {second.sum()} faithful"
    return Finding(claim, source, f"{measure}; the same within {margin:g}", estimate, n, verdict)


class RunAnswers:
    """The labels of a run's answers, and the number of the set of images of each sample and pair.

    Example:
        >>> RunAnswers(run).sets(dataset["sample"])                 # doctest: +SKIP
        array([0, 0, 1, 1])
    """

    def __init__(self, run: Run) -> None:
        groups, pairs = Sets(), []
        self.label_of_sample: dict[str, bool | None] = {}
        for name in run.ids:
            sample = run.sample(name)
            groups.add(name, set_keys(sample))
            pairs.append(sample.pair_id)
            self.label_of_sample[name] = run.faithful(name)
        numbers = groups.number().tolist() if pairs else []
        self.set_of_sample = dict(zip(run.ids, numbers, strict=True))
        self.set_of_pair = {pair: number for pair, number in zip(pairs, numbers, strict=True) if pair}

    def sets(self, names: xr.DataArray) -> np.ndarray:
        """Return the number of the set of images of each sample, int [sample]."""
        return np.array([self.set_of_sample[str(name)] for name in names.values], int)

    def faithful(self, names: xr.DataArray) -> np.ndarray:
        """Return 1 for faithful, 0 for unfaithful and NaN for unlabelled samples, [sample]."""
        numbers = {True: 1.0, False: 0.0, None: np.nan}
        return np.array([numbers[self.label_of_sample[str(name)]] for name in names.values])
