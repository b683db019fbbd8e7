"""Claims and verdicts, on numbers chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from mmprobe.analyses.findings import (
    Finding,
    difference_finding,
    findings,
    mean_deep_layers,
    mean_finding,
    to_dataset,
)

FAITHFUL = np.array([0.0] * 8 + [1.0] * 8 + [np.nan] * 2)
WIGGLE = np.tile([-0.1, 0.1], 9)


def test_a_claim_holds_where_the_interval_lies_on_its_side():
    lower = np.where(FAITHFUL == 0, 1.0, 2.0) + WIGGLE
    finding = difference_finding("c", "s", "m", lower, FAITHFUL, -1)
    assert finding.value == pytest.approx(-1)
    assert finding.low <= finding.value <= finding.high < 0
    assert (finding.verdict, finding.n) == ("holds", "8 unfaithful, 8 faithful")
    assert difference_finding("c", "s", "m", lower, FAITHFUL, 1).verdict == "does not hold"
    assert difference_finding("c", "s", "m", WIGGLE, FAITHFUL, 1).verdict == "undecided"


def test_groups_that_are_too_small_decide_nothing():
    finding = difference_finding("c", "s", "m", np.arange(18.0), np.array([0.0] * 4 + [1.0] * 14), -1)
    assert np.isnan([finding.value, finding.low, finding.high]).all()
    assert (finding.verdict, finding.n) == ("undecided", "4 unfaithful, 14 faithful")


def test_values_that_are_not_known_are_left_out():
    values = np.where(FAITHFUL == 0, 1.0, 2.0) + WIGGLE
    values[0] = np.nan
    assert difference_finding("c", "s", "m", values, FAITHFUL, -1).n == "7 unfaithful, 8 faithful"
    finding = mean_finding("c", "s", "m", np.array([1.0, np.nan, 3.0, 2.0]), 1)
    assert (finding.value, finding.n, finding.verdict) == (2, "3 answers", "holds")
    assert mean_finding("c", "s", "m", np.array([np.nan]), 1).verdict == "undecided"


def test_deep_is_the_last_third():
    values = xr.DataArray(np.arange(14.0).reshape(2, 7), dims=("sample", "layer"))
    assert mean_deep_layers(values).tolist() == [5.5, 12.5]
    assert mean_deep_layers(values.isel(layer=[0])).tolist() == [0, 7]


def test_the_table_of_a_run(tmp_path):
    """Attention that rises over layers and falls over steps, the same in faithful and unfaithful answers."""

    class LabelledRun:
        path, config = tmp_path, {"model": {"name": "m"}}

        def faithful(self, name):
            return {"a": True, "b": False}.get(name[0])

    names = [f"{label}{number}" for label in "ab" for number in range(6)]
    wiggle = np.tile([-0.01, 0.01], 6)[:, None]
    decay = xr.Dataset(
        {
            "share_of_sample": (("sample", "layer"), np.array([0.1, 0.3, 0.5]) + wiggle),
            "slope_of_sample": (("sample", "layer"), np.full((12, 3), -0.02) + wiggle / 10),
        },
        coords={"sample": names, "layer": [0, 1, 2]},
        attrs={"analysis": "attention_decay"},
    )
    ds = findings(LabelledRun(), [decay])
    assert ds.verdict.values.tolist() == ["holds", "holds", "undecided", "undecided"]
    np.testing.assert_allclose(ds.value, [0.1 - 0.4, -0.02, 0, 0], atol=1e-12)
    assert ds.n.values.tolist() == ["12 answers"] * 2 + ["6 unfaithful, 6 faithful"] * 2
    assert findings(LabelledRun(), []).sizes["finding"] == 0


def test_findings_are_columns():
    ds = to_dataset([Finding("c", "s", "m", 1.0, 0.5, 1.5, "3 answers", 1)])
    assert {name: ds[name].item() for name in ds} == {
        "claim": "c",
        "source": "s",
        "measure": "m",
        "value": 1.0,
        "low": 0.5,
        "high": 1.5,
        "n": "3 answers",
        "verdict": "holds",
    }
