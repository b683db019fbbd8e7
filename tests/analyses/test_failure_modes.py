"""Planted failure modes are detected, and unrelated maps give modes by chance."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planted import SIDE, peak, planted_run, region

from mmprobe.analyses import failure_modes
from mmprobe.errors import InputError, NotApplicable
from mmprobe.viz import figures

ON, OFF = peak(1, 2), peak(3, 0)
READ = sum(
    peak(row, column, floor=0) for row in range(3) for column in range(1, 4)
)  # the filter leaves its inner four
UNREAD = peak(3, 0) + peak(2, 0)
PLANTED = {
    "perceptual_blindness": (OFF, UNREAD),
    "dissociation": (ON, UNREAD),
    "grounded": (ON, READ),
    "undecided": (OFF, READ),
}


def sample(attention: np.ndarray, raw: np.ndarray, faithful: bool | None = False) -> dict:
    """Return a sample whose answer names its one thing, by three tokens."""
    return {
        "attention": attention,
        "raw": raw,
        "cell": (1, 2),
        "faithful": faithful,
        "metadata": {"differences": [{"object": "t18 t19 t20"}]},
    }


def test_each_mode_is_found(tmp_path):
    samples = [sample(*maps) for maps in PLANTED.values()] + [sample(ON, READ, True), sample(ON, READ, None)]
    ds = failure_modes(planted_run(tmp_path / "r", samples), alpha=0.3, draws=1000)
    assert ds.mode.values.tolist() == list(PLANTED)
    assert ds["count"].values.tolist() == [1, 1, 1, 1] and ds.share.values.tolist() == [0.25] * 4
    assert ds.share_faithful.sel(kind="grounded") == 1
    assert (int(ds.n_unfaithful), int(ds.n_faithful)) == (4, 1)
    assert (int(ds.n_claims_unfaithful), int(ds.n_claims_faithful)) == (4, 1)
    assert ds.attrs["sets"] == 4 and 0 < ds.share_low[0] < 0.25 < ds.share_high[0] < 1
    assert ds.n_tokens.values.tolist() == [3] * 4


def test_evidence_by_hand(tmp_path):
    ds = failure_modes(planted_run(tmp_path / "r", [sample(ON, OFF)]), draws=4000)
    evidence = ds.evidence.isel(claim=0)
    share = 1 / (1 + 15 * 0.01)
    assert evidence.sel(name="attention_mass").item() == pytest.approx(share, abs=1e-3)
    assert evidence.sel(name="attention_random").item() == pytest.approx(1 / 16, abs=0.01)
    assert evidence.sel(name="attention_p").item() == pytest.approx(
        1 / 16, abs=0.015
    )  # only its own place is as good
    assert evidence.sel(name="activation_p").item() > 0.3


def test_each_thing_is_tested_by_its_own_tokens_on_its_own_regions(tmp_path):
    """An answer about a ring, then a star, on two images.

    At `ring`, both maps lie on the ring. At `star`, they lie on the ring again, and never on the star. Over
    all tokens and the union of the regions, both maps would be on.
    """
    things = {
        "ring": [region(1, 2, image) for image in (0, 1)],
        "star": [region(3, 0, image) for image in (0, 1)],
    }
    on_ring = np.tile(READ[0], 2)
    maps = np.stack([np.ones(32), on_ring, np.ones(32), on_ring])
    trace = {
        "attention": maps,
        "raw": maps,
        "regions": things["ring"] + things["star"],
        "metadata": {
            "differences": [{"shape": name, "regions": regions} for name, regions in things.items()]
        },
        "tokens/text": [*["x"] * 34, "The", " ring", " or", " star"],
    }
    ds = failure_modes(
        planted_run(tmp_path / "r", [trace | {"faithful": label} for label in (False, True)]), 0.3
    )
    assert ds.claim.values.tolist() == ["s000:ring", "s000:star"]
    assert ds.mode.values.tolist() == ["grounded", "perceptual_blindness"]
    assert ds.thing.values.tolist() == ["ring", "star"] and set(ds["sample"].values) == {"s000"}
    mass = ds.evidence.sel(name="attention_mass")
    np.testing.assert_allclose(mass, [2 / on_ring.sum(), 0], atol=1e-3)
    assert ds.count_faithful.values.tolist() == [1, 0, 1, 0]
    assert ds.false_alarm_rate.item() == 0.5
    assert "50%" in ds.attrs["false_alarms"] and "2 claims of 1 faithful" in ds.attrs["false_alarms"]
    shares, evidence = figures(ds)
    assert all(ds.attrs["false_alarms"] in panel.caption for panel in (shares, evidence))
    assert "<br>1 unfaithful, faithful: 50%" in shares.figure.data[0].x[0]
    assert (int(ds.n_claims_unfaithful), int(ds.n_unfaithful)) == (2, 1)


def test_an_answer_that_names_nothing_has_no_claim(tmp_path):
    silent = sample(ON, READ) | {"metadata": {"differences": [{"object": "t17"}]}}
    ds = failure_modes(planted_run(tmp_path / "r", [sample(ON, READ), silent]))
    assert (int(ds.n_without_claims), int(ds.n_without_regions), int(ds.n_unfaithful)) == (1, 0, 1)
    assert np.isnan(ds.false_alarm_rate), "no faithful answer"
    with pytest.raises(NotApplicable, match="names a thing"):
        failure_modes(planted_run(tmp_path / "s", [silent]))


@pytest.mark.exhaustive
def test_maps_that_know_nothing_are_on_the_region_in_alpha_of_samples(tmp_path):
    rng = np.random.default_rng(0)
    samples = [
        sample(*rng.random((2, 3, SIDE * SIDE))) | {"cell": tuple(map(int, rng.integers(0, SIDE, 2)))}
        for _ in range(400)
    ]
    ds = failure_modes(planted_run(tmp_path / "r", samples), alpha=0.2)
    for name in ("attention_p", "activation_p"):
        on = float((ds.evidence.sel(name=name) <= 0.2).mean())
        assert 0.12 < on < 0.24, name
    assert ds.share.sel(kind="perceptual_blindness") == pytest.approx(0.8**2, abs=0.1)


def test_what_cannot_be_diagnosed_is_counted_or_refused(tmp_path):
    lost = sample(np.full_like(ON, np.inf), ON)
    nowhere = {key: value for key, value in sample(ON, ON).items() if key != "cell"}
    dark = sample(np.zeros_like(ON), READ)
    ds = failure_modes(planted_run(tmp_path / "r", [lost, nowhere, dark]), alpha=0.3)
    assert ds.claim.values.tolist() == ["s002:t18 t19 t20"] and ds.mode.item() == "undecided"
    assert ds.attrs["left_out"] == "s000" and int(ds.n_without_regions) == 1
    with pytest.raises(NotApplicable, match="labelled unfaithful"):
        failure_modes(planted_run(tmp_path / "f", [sample(ON, ON, True)]))
    with pytest.raises(NotApplicable, match="regions"):
        failure_modes(planted_run(tmp_path / "n", [nowhere]))
    with pytest.raises(InputError, match="alpha 2"):
        failure_modes(planted_run(tmp_path / "a", [sample(ON, ON)]), alpha=2)
