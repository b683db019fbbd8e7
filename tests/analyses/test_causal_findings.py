"""The causal twins of findings, on numbers chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from mmprobe.analyses.findings import TWINS, Finding, RunAnswers, add_twins, compare_verdicts, mean_finding
from mmprobe.samples import Sample
from mmprobe.stats.estimate import Estimate

WIGGLE = np.tile([-0.01, 0.01], 8)


class LabelledRun:
    """Sixteen answers, each about its own images: a0 to a7 are faithful, b0 to b7 are not."""

    ids = [f"{label}{number}" for label in "ab" for number in range(8)]

    def faithful(self, name):
        return name[0] == "a"

    def sample(self, name):
        return Sample(id=name, images=[f"{name}.png"], question="?")


def interventions(**variables: np.ndarray) -> xr.Dataset:
    values = {"weight": np.ones(16), **variables}
    return xr.Dataset(
        {name: ("sample", np.asarray(array, float)) for name, array in values.items()},
        coords={"sample": LabelledRun.ids},
        attrs={"analysis": "claim_interventions", "alpha": 0.1, "beta": 0.9, "note": "no rule reads them"},
    )


def twin_of(name: str, ds: xr.Dataset | None, verdict: str = "holds") -> xr.Dataset:
    finding = Finding("c", "s", "m", Estimate(1.0, 0.5, 1.5), "16 answers", verdict, name)
    return add_twins([finding], ds, RunAnswers(LabelledRun())).isel(finding=0)


def by_label(faithful: float, unfaithful: float) -> np.ndarray:
    return np.repeat([faithful, unfaithful], 8) + WIGGLE


@pytest.mark.parametrize(
    ("name", "variables", "value", "verdict"),
    [
        ("decay", {"interchange_slope": -0.2 + WIGGLE}, -0.2, "holds"),
        ("decay", {"interchange_slope": 0.2 + WIGGLE}, 0.2, "does not hold"),
        ("faster decay", {"interchange_slope": by_label(-0.1, -0.3)}, -0.2, "holds"),
        ("regions", {"regions": 3 + WIGGLE, "elsewhere": np.ones(16)}, 2, "holds"),
        ("attention by mean", {"attention": by_label(1.0, 1.05)}, 0.05, "holds"),
        ("attention by mean", {"attention": by_label(1.0, 2.0)}, 1, "does not hold"),
        ("FFN by mean", {"ffn": by_label(1, 2)}, 1, "holds"),
        ("FFN against attention", {"ffn": by_label(1, 2), "attention": by_label(1, 4)}, -2, "does not hold"),
    ],
)
def test_each_intervention_has_its_test(name, variables, value, verdict):
    twin = twin_of(name, interventions(**variables))
    assert twin.causal_value.item() == pytest.approx(value)
    assert twin.causal_low <= twin.causal_value <= twin.causal_high
    assert twin.causal_verdict == verdict and twin.agree == ("yes" if verdict == "holds" else "no")
    assert twin.intervention == TWINS[name].intervention
    assert twin.verdict == "holds" and twin.value == 1  # the correlation stays as it is


def test_a_change_counts_all_answers_of_the_run_and_not_only_the_unfaithful():
    """Seven of eight unfaithful answers become faithful, but the faithful ones that break have large weights."""
    before = np.repeat([1.0, 0.0], 8)
    after = np.array([0.0] * 2 + [1.0] * 6 + [1.0] * 7 + [0.0])
    weight = np.repeat([30.0, 1.0], 8)
    ds = interventions(faithful_before=before, faithful_attention=after, weight=weight)
    twin = twin_of("attention raised", ds)
    assert twin.causal_value.item() == pytest.approx((7 - 2 * 30) / (8 * 31))
    assert twin.causal_n == "7 of 8 unfaithful answers become faithful, 2 of 8 faithful ones unfaithful"
    assert str(twin.causal_measure.values).endswith("; alpha = 0.1")
    assert twin.causal_verdict != "holds"
    ds["faithful_attention"] = ("sample", before)
    nothing = twin_of("attention raised", ds)
    assert nothing.causal_value == 0 and nothing.causal_low < 0 < nothing.causal_high
    ds["faithful_attention"] = ("sample", np.where(np.arange(16) == 8, np.nan, after))
    assert str(twin_of("attention raised", ds).causal_n.values).startswith("6 of 7 unfaithful")


def test_without_numbers_a_twin_says_why():
    assert twin_of("", interventions()).causal_verdict == "none known"
    unmeasured = twin_of("decay", None)
    assert unmeasured.causal_verdict == "not measured" and unmeasured.agree == "–"
    assert "analyze RUN --only findings --model MODEL" in str(unmeasured.causal_measure.values)
    unread = twin_of("FFN scaled", interventions())
    assert unread.causal_verdict == "not measured" and "no rule reads them" in str(
        unread.causal_measure.values
    )
    assert np.isnan([unread.causal_value, unread.causal_low, unread.causal_high]).all()


def test_an_undecided_verdict_is_open():
    undecided = twin_of("decay", interventions(interchange_slope=np.tile([-1.0, 1.0], 8)))
    assert undecided.causal_verdict == "undecided" and undecided.agree == "open"
    assert twin_of("decay", interventions(interchange_slope=1 + WIGGLE), "undecided").agree == "open"
    assert compare_verdicts("does not hold", "does not hold") == "yes"
    assert compare_verdicts("no such pairs", "holds") == "open"


def test_equal_weights_change_no_mean():
    values, sets = np.random.default_rng(0).normal(size=12), np.repeat(np.arange(6), 2)
    plain, weighted = (
        mean_finding("", "", "", values, 1, sets, weights) for weights in (None, np.full(12, 3.0))
    )
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(getattr(plain.estimate, name), getattr(weighted.estimate, name))
