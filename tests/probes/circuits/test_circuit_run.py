"""The circuit of a run: halves of the sets of images, other images, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr
from helpers.causal_toy import COLOURS, draw_sample

import mmprobe as mp
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes import circuit_run, run_probes
from mmprobe.probes.circuits.passes import NodePair
from mmprobe.viz.figures import figures


@pytest.fixture(scope="module")
def run(toy, tmp_path_factory) -> mp.Run:
    """Six answers of the toy about different images, and one without an image."""
    folder = tmp_path_factory.mktemp("run")
    cells = [(0, 1), (1, 2), (2, 1), (3, 3), (1, 0), (2, 2)]
    samples = [draw_sample(folder, colour, cell) for colour, cell in zip([*COLOURS] * 2, cells, strict=True)]
    blind = samples[0].model_copy(update={"id": "blind", "images": [], "regions": []})
    return mp.trace(toy, [*samples, blind], folder / "run", max_new_tokens=1)


@pytest.mark.slow
def test_the_circuit_is_found_on_one_half_and_judged_on_the_other(toy, run):
    ds = run_probes(toy, slow=True)["circuit"](run)
    assert ds.attrs["analysis"] == "circuit" and ds.attrs["kind"] == "unrelated"
    assert (ds.attrs["n"], ds.attrs["n_held_out"], ds.attrs["n_checked"]) == (3, 3, 3)
    assert ds.attrs["left_out"] == "blind"
    best = ds.score.to_series().sort_values(ascending=False).index[:3]
    route = {("head 0.0", "ffn 1"), ("ffn 1", "logits")}
    assert set(best) in (
        {*route, ("image 0", "v 0.0")},
        {*route, ("image 0", "k 0.0")},
    )  # the place differs, too
    assert (ds.score.sel(source="head 0.1").fillna(0) == 0).all()
    assert ds.cpr > 0.8 > ds.cpr_random and ds.cmd < 0.2 < ds.cmd_random
    assert ds.cpr_low <= ds.cpr <= ds.cpr_high and -1 <= ds.edge_agreement <= 1
    used = set(ds.attrs["samples_found"].split(", ")), set(ds.attrs["samples_held_out"].split(", "))
    assert len(used[0]) == len(used[1]) == 3 and not used[0] & used[1]
    assert len(figures(ds)) == 2


@pytest.mark.slow
def test_pairs_that_are_finished_are_not_measured_again(toy, run, tmp_path: Path, monkeypatch):
    whole = circuit_run(toy, run, pairs=4, steps=1)
    counted: list[int] = []
    measure = NodePair.measure
    monkeypatch.setattr(
        NodePair, "measure", lambda nodes, removed: counted.append(1) or measure(nodes, removed)
    )
    first = circuit_run(toy, run, pairs=4, steps=1, finished=tmp_path)
    all_passes = len(counted)
    xr.testing.assert_equal(first, whole)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert [file.parent.name for file in files] == ["checked"] * 2 + ["found"] * 2 + ["judged"] * 2
    files[1].unlink()  # as if the run was cut off before the second pair was checked
    counted.clear()
    xr.testing.assert_equal(circuit_run(toy, run, pairs=4, steps=1, finished=tmp_path), whole)
    assert 0 < len(counted) < all_passes / 2
    with pytest.raises(InputError, match="other settings"):
        circuit_run(toy, run, pairs=4, steps=2, finished=tmp_path)


def test_what_a_run_cannot_show_is_refused(toy, run, tmp_path: Path):
    with pytest.raises(InputError, match="pairs 1"):
        circuit_run(toy, run, pairs=1)
    one = mp.trace(toy, [run.sample(run.ids[0])], tmp_path / "one", max_new_tokens=1)
    with pytest.raises(NotApplicable, match="two sets"):
        circuit_run(toy, one)
