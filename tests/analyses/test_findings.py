"""Claims and verdicts, on numbers chosen by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xarray as xr

from mmprobe.analyses.findings import (
    Finding,
    difference_finding,
    equivalence_finding,
    findings,
    mean_deep_layers,
    mean_finding,
    to_dataset,
)
from mmprobe.samples import Sample
from mmprobe.stats.estimate import Estimate

FAITHFUL = np.array([0.0] * 8 + [1.0] * 8 + [np.nan] * 2)
WIGGLE = np.tile([-0.1, 0.1], 9)


def test_a_claim_holds_where_the_interval_lies_on_its_side():
    lower = np.where(FAITHFUL == 0, 1.0, 2.0) + WIGGLE
    finding = difference_finding("c", "s", "m", lower, FAITHFUL, -1)
    assert finding.estimate.value == pytest.approx(-1)
    assert finding.estimate.low <= finding.estimate.value <= finding.estimate.high < 0
    assert (finding.verdict, finding.n) == ("holds", "8 unfaithful, 8 faithful")
    assert difference_finding("c", "s", "m", lower, FAITHFUL, 1).verdict == "does not hold"
    assert difference_finding("c", "s", "m", WIGGLE, FAITHFUL, 1).verdict == "undecided"


def test_groups_that_are_too_small_decide_nothing():
    finding = difference_finding("c", "s", "m", np.arange(18.0), np.array([0.0] * 4 + [1.0] * 14), -1)
    assert np.isnan([finding.estimate.value, finding.estimate.low, finding.estimate.high]).all()
    assert (finding.verdict, finding.n) == ("undecided", "4 unfaithful, 14 faithful")


def test_values_that_are_not_known_are_left_out():
    values = np.where(FAITHFUL == 0, 1.0, 2.0) + WIGGLE
    values[0] = np.nan
    assert difference_finding("c", "s", "m", values, FAITHFUL, -1).n == "7 unfaithful, 8 faithful"
    finding = mean_finding("c", "s", "m", np.array([10.0, np.nan, 12.0, 11.0]), 1)
    assert (finding.estimate.value, finding.n, finding.verdict) == (11, "3 answers", "holds")
    assert mean_finding("c", "s", "m", np.array([np.nan]), 1).verdict == "undecided"


def test_deep_is_the_last_third():
    values = xr.DataArray(np.arange(14.0).reshape(2, 7), dims=("sample", "layer"))
    assert mean_deep_layers(values).tolist() == [5.5, 12.5]
    assert mean_deep_layers(values.isel(layer=[0])).tolist() == [0, 7]


def test_sameness_holds_within_the_margin_and_not_beyond_it():
    lower = np.where(FAITHFUL == 0, 0.5, 0.55) + WIGGLE / 10
    for margin, verdict in ((0.1, "holds"), (0.05, "undecided"), (0.02, "does not hold")):
        finding = equivalence_finding("c", "s", "m", lower, FAITHFUL, margin)
        assert finding.estimate.value == pytest.approx(-0.05)
        assert (finding.verdict, finding.n) == (verdict, "8 unfaithful, 8 faithful")
    assert finding.measure == "m; the same within 0.02"
    assert equivalence_finding("c", "s", "m", WIGGLE[:8], FAITHFUL[:8], 1).verdict == "undecided"


def test_samples_of_the_same_images_count_as_one():
    """Eight copies of two pairs: the interval is that of four sets, not of sixteen samples."""
    sets = np.repeat(np.arange(4), [4, 4, 4, 4])
    values = np.repeat([1.0, 1.2, 2.0, 2.2], 4)
    faithful = np.repeat([0.0, 0.0, 1.0, 1.0], 4)
    alone = difference_finding("c", "s", "m", values, faithful, -1)
    together = difference_finding("c", "s", "m", values, faithful, -1, sets)
    assert alone.verdict == "holds" and together.verdict == "undecided"
    alone, together = (mean_finding("c", "s", "m", values, 1, s) for s in (None, sets))
    assert together.estimate.high - together.estimate.low > 2 * (alone.estimate.high - alone.estimate.low)


class LabelledRun:
    """Twelve answers, a0 to a5 faithful and b0 to b5 not; a0 and b0 are about the same images, and so on."""

    config = {"model": {"name": "m"}}
    ids = [f"{label}{number}" for label in "ab" for number in range(6)]

    def __init__(self, path):
        self.path = path

    def faithful(self, name):
        return name[0] == "a"

    def sample(self, name):
        return Sample(id=name, images=[f"{name[1]}.png"], question="?", pair_id=f"p{name[1]}")


def layers(*values: float, jitter: float = 0.0) -> tuple[tuple[str, str], np.ndarray]:
    """Return the same values [layer] for twelve samples, with some jitter."""
    return ("sample", "layer"), np.array(values) + jitter * np.tile([-1, 1], 6)[:, None]


def test_the_authors_form_decides_on_decay_and_the_other_form_has_a_name(tmp_path):
    """The images' share of the prompt's attention rises over the answer; that of all attention falls, by dilution."""
    decay = xr.Dataset(
        {
            "share_of_sample": layers(0.1, 0.3, 0.5, jitter=0.01),
            "slope_of_sample": layers(-0.02, -0.02, -0.02, jitter=0.001),
            "share_authors_of_sample": layers(0.2, 0.5, 0.6, jitter=0.01),
            "slope_authors_of_sample": layers(0.06, 0.05, -0.02, jitter=0.001),
            "system_of_sample": layers(0.7, 0.3, 0.2, jitter=0.01),
        },
        coords={"sample": LabelledRun.ids, "layer": [0, 1, 2]},
        attrs={"analysis": "attention_decay"},
    )
    ds = findings(LabelledRun(tmp_path), [decay])
    rows = dict(
        zip(ds.claim.values.tolist(), zip(ds.value.values, ds.verdict.values, strict=True), strict=True)
    )
    expected = {
        "shallow layers attend less": (0.2 - 0.55, "holds"),
        "more to the system prompt": (0.7 - 0.25, "holds"),
        "falls as the answer grows": (0.03, "does not hold"),
        "in deep layers: attention to the images falls there": (-0.02, "holds"),
        "grows (share of all attention on the images, generated tokens included)": (-0.02, "holds"),
        "Unfaithful answers attend less": (0, "undecided"),
        "faster in unfaithful answers": (0, "undecided"),
    }
    for part, (value, verdict) in expected.items():
        found = next(row for claim, row in rows.items() if part in claim)
        assert (pytest.approx(value, abs=1e-12), verdict) == found, part
    of_all, of_groups = "12 answers", "6 unfaithful, 6 faithful"
    assert ds.n.values.tolist() == [of_all] * 2 + [of_groups] + [of_all] * 2 + [of_groups, of_all, of_groups]
    assert set(ds.causal_verdict.values) == {"none known", "not measured"} and "--model" in ds.attrs["note"]
    assert findings(LabelledRun(tmp_path), []).sizes["finding"] == 0


def test_the_layer_that_attends_most_is_chosen_and_tested_on_other_images(tmp_path):
    """Twelve answers about six images. Where every layer is chance, the best layer of the same answers looks better."""
    noise = np.random.default_rng(0).normal(0, 1, (6, 40))
    ratio = 1 + np.tile(noise, (2, 1))  # a0 and b0 are about the same images
    dims = ("sample", "layer")
    ds = xr.Dataset(
        {"ratio": (dims, ratio), "ratio_random": (dims, np.ones_like(ratio))},
        coords={"sample": LabelledRun.ids, "layer": np.arange(40)},
        attrs={"analysis": "attention_ratio"},
    )
    found = findings(LabelledRun(tmp_path), [ds])
    claim = str(found.claim.values[0])
    layer = int(claim.split("(layer ")[1].split(",")[0])
    assert "other half" in claim and found.n.values[0] == "6 answers"
    assert found.value.item() < (ratio - 1).mean(0).max(), "the layer was not chosen on what tests it"
    tested = ratio[:, layer] - 1
    assert any(np.isclose(found.value.item(), tested[chosen].mean()) for chosen in _halves(6))
    strong = ds.assign(ratio=(dims, ratio + np.where(np.arange(40) == 12, 9, 0)))
    best = findings(LabelledRun(tmp_path), [strong])
    assert "(layer 12," in str(best.claim.values[0]) and best.verdict.item() == "holds"


def _halves(images):
    """Yield which of twelve answers are about each half of the images."""
    for chosen in itertools.combinations(range(images), images // 2):
        yield np.isin(np.arange(12) % images, chosen)


@pytest.mark.parametrize(("count", "verdict"), [(0, "no such pairs"), (1, "undecided"), (6, "holds")])
def test_drift_is_decided_by_contradictions_not_by_false_statements(tmp_path, count, verdict):
    """Twelve pairs, six with a false statement; those that contradict each other are other pairs."""
    names = [f"p{number}" for number in range(6)] * 2
    contradictory = np.arange(12) < count
    drift = xr.Dataset(
        {
            "cosine": (
                ("pair", "layer"),
                np.where(contradictory, 0.2, 0.9)[:, None] + WIGGLE[:12, None] / 10,
            ),
            "pair_contradictory": ("pair", contradictory.astype(float)),
            "pair_faithful": ("pair", np.tile([0.0, 1.0], 6)),
        },
        coords={"pair": names, "layer": [0]},
        attrs={"analysis": "residual_drift"},
    )
    by_contradiction, by_statement = (
        findings(LabelledRun(tmp_path), [drift]).isel(finding=row) for row in (0, 1)
    )
    assert by_contradiction.verdict == verdict and "contradict" in str(by_contradiction.claim.values)
    assert by_contradiction.n == f"{count} contradictory, {12 - count} consistent"
    assert by_contradiction.source == "4.3, figure 8a"
    assert by_statement.n == "6 unfaithful, 6 faithful" and by_statement.source == "ours"


def test_findings_are_columns():
    ds = to_dataset([Finding("c", "s", "m", Estimate(1.0, 0.5, 1.5), "3 answers", "holds")])
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
