"""The causal twin of each claim of `findings`: what happens under the intervention that the claim implies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.run_answers import RunAnswers
from mmprobe.analyses.verdicts import (
    Finding,
    difference_finding,
    equivalence_finding,
    mean_finding,
    to_dataset,
)

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
    return Finding("", "", measure, np.nan, np.nan, np.nan, "", verdict)


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
    return finding._replace(n=n)


_TESTS: Mapping[str, Callable[[Twin, xr.Dataset, RunAnswers], Finding]] = {
    "mean": _test_mean,
    "difference": _test_difference,
    "same": _test_same,
    "change": _test_change,
}
