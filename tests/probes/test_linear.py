"""Linear probes on residual streams of made-up numbers: a planted direction, noise, leaks, against scikit-learn."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mmprobe as mp
import mmprobe.probes.linear as module
from mmprobe.analyses import export
from mmprobe.analyses.held_out import assign_folds
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import BLOCK_STEPS, FORMAT_VERSION
from mmprobe.errors import NotApplicable, NotCaptured
from mmprobe.probes import cross_validation
from mmprobe.probes.linear import linear_probe, linear_probe_by_step
from mmprobe.probes.targets import presence_of
from mmprobe.samples import Sample
from mmprobe.viz.figures.linear_probe import panels

warnings.simplefilter("error")
HIDDEN = 12


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(module, "SHUFFLES", 19)


def write_run(folder: Path, streams: Mapping[str, np.ndarray], **about) -> mp.Run:
    """A run of residual/post [step, layer, hidden]; `about` gives fields of each sample by id."""
    (folder / "samples").mkdir(parents=True)
    config = {"format": FORMAT_VERSION, "order": list(streams), "model": {"name": "hand"}}
    (folder / "run.json").write_text(json.dumps(config))
    for name, values in streams.items():
        fields = {field: of[name] for field, of in about.items()}
        sample = Sample(id=name, question="?", **fields)
        header = {"sample": sample.model_dump_json(), "answer": ""}
        with TraceWriter(
            folder / "samples" / f"{name}.h5", {"layer": 2 * np.arange(values.shape[1])}, header
        ) as writer:
            writer.write("residual/post", values.astype("f2"))
    return mp.open_run(folder)


def noise(count: int, steps: int = 3, layers: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"s{i:03}": rng.normal(size=(steps, layers, HIDDEN)) for i in range(count)}


def in_turn(streams: Mapping[str, np.ndarray], a_pair: int = 2) -> dict[str, dict]:
    """Every other sample unfaithful, `a_pair` in turn over the same picture."""
    return {
        "faithful": {name: i % 2 == 0 for i, name in enumerate(streams)},
        "images": {name: [f"{i // a_pair}.png"] for i, name in enumerate(streams)},
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> mp.Run:
    """48 samples; in the second of three layers (number 2), unfaithful ones lie further along two axes."""
    streams = noise(48)
    for i, values in enumerate(streams.values()):
        values[:, 1, :2] += 2 * (i % 2)
    return write_run(tmp_path_factory.mktemp("planted") / "run", streams, **in_turn(streams))


@pytest.fixture(scope="module")
def found(planted) -> xr.Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHUFFLES", 19)
        return linear_probe(planted)


def test_a_planted_direction_is_found_in_its_layer_alone(found):
    assert found.layer.values.tolist() == [0, 2, 4]
    assert found.auc.sel(layer=2) > 0.95
    assert found.accuracy_low.sel(layer=2) > found.majority
    for name in ("accuracy", "balanced_accuracy", "auc"):
        assert found[f"{name}_p"].sel(layer=2).item() == pytest.approx(1 / 20)
        assert (found[f"{name}_low"] <= found[name]).all() and (found[name] <= found[f"{name}_high"]).all()
        np.testing.assert_allclose(found[f"{name}_shuffled"], 0.5, atol=0.15)
    assert found.auc_p_max.sel(layer=2).item() == pytest.approx(1 / 20)
    for layer in (0, 4):
        assert found.auc.sel(layer=layer) < 0.75
        assert found.auc_p_max.sel(layer=layer) > 0.05
    assert (found.auc_p_max >= found.auc_p).all()
    assert (found.n, found.n_pictures, found.majority) == (48, 24, 0.5)
    assert found["class"].values.tolist() == ["faithful", "unfaithful"]
    assert found.n_class.values.tolist() == [24, 24]


def vectors(run: mp.Run, layer: int) -> np.ndarray:
    return np.array(
        [run[name].residual_post.sel(layer=layer).values.mean(0, dtype=float) for name in sorted(run.ids)]
    )


def test_numbers_are_those_of_scikit_learn(planted, found):
    truth = np.arange(48) % 2
    fold = assign_folds(truth, np.arange(48) // 2, 5, 0, "")
    for layer in found.layer.values:
        x, score = vectors(planted, layer), np.empty(48)
        for number in range(5):
            train = fold != number
            model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced"))
            score[~train] = model.fit(x[train], truth[train]).predict_proba(x[~train])[:, 1]
        at = found.sel(layer=layer)
        assert at.auc.item() == pytest.approx(roc_auc_score(truth, score), abs=0.01)
        assert at.accuracy.item() == pytest.approx(accuracy_score(truth, score > 0.5))
        assert at.balanced_accuracy.item() == pytest.approx(balanced_accuracy_score(truth, score > 0.5))


def test_the_rotated_fit_is_the_same_fit():
    """40 numbers of 20 training samples: fitted in 20 dimensions or in 40, the probabilities are the same."""
    rng = np.random.default_rng(0)
    x, truth, fold = rng.normal(size=(30, 40)), np.arange(30) % 3, np.repeat([0, 1, 2], 10)
    (found,) = cross_validation.held_out(x.astype("f4"), [truth], fold)
    for number in range(3):
        train = fold != number
        model = make_pipeline(
            StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", tol=1e-8, max_iter=1000)
        )
        wanted = model.fit(x[train], truth[train]).predict_proba(x[~train])
        np.testing.assert_allclose(found[~train], wanted, atol=1e-3)


def test_measures_of_several_classes_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    odds = rng.random((60, 3)).round(1) + 0.1
    odds, truth = odds / odds.sum(1, keepdims=True), rng.integers(0, 3, 60)
    counts = rng.integers(0, 3, (5, 60))
    for draw, (accuracy, balanced, auc) in zip(
        counts, cross_validation.measures_of(odds, truth, counts).T, strict=True
    ):
        rows = np.repeat(np.arange(60), draw)
        assert accuracy == pytest.approx(accuracy_score(truth[rows], odds[rows].argmax(1)))
        assert balanced == pytest.approx(balanced_accuracy_score(truth[rows], odds[rows].argmax(1)))
        assert auc == pytest.approx(roc_auc_score(truth[rows], odds[rows], multi_class="ovr"))
    with_none = np.where(truth == 2, 0, 1)[None]
    assert np.isnan(cross_validation.measures_of(odds, truth, with_none)[1:]).all(), (
        "a class that is not there"
    )


def test_pictures_that_give_the_label_away_do_not_help(tmp_path):
    """Four samples a picture, all of one label and nearly the same vector."""
    rng = np.random.default_rng(3)
    steady = rng.normal(size=(14, 1, 1, 40))
    streams = {f"s{i:03}": steady[i // 4] + 0.01 * rng.normal(size=(1, 1, 40)) for i in range(56)}
    about = {
        "faithful": {name: (i // 4) % 2 == 0 for i, name in enumerate(streams)},
        "images": {name: [f"{i // 4}.png"] for i, name in enumerate(streams)},
    }
    grouped = linear_probe(write_run(tmp_path / "grouped", streams, **about))
    assert grouped.auc_low < 0.5 < grouped.auc_high
    assert grouped.auc_p > 0.05
    about["images"] = {name: [f"{name}.png"] for name in streams}
    assert linear_probe(write_run(tmp_path / "apart", streams, **about)).auc > 0.99


@pytest.mark.parametrize("reduce, step", [("first", 0), ("last", -1), ("mean", None)])
def test_how_steps_become_one_vector(tmp_path, reduce, step):
    """The label is in the first, the last or (half of it) in every step; more steps than a block."""
    streams = noise(24, steps=BLOCK_STEPS + 3, layers=1)
    for i, values in enumerate(streams.values()):
        values[slice(None) if step is None else step, 0, 0] += (4 if step is not None else 1) * (i % 2)
    run = write_run(tmp_path / "run", streams, **in_turn(streams))
    auc = {how: linear_probe(run, reduce=how, minimum=10).auc.item() for how in ("first", "last", "mean")}
    assert max(auc, key=auc.get) == reduce
    assert auc[reduce] > 0.9
    collected = module._collect(run, run.ids, "residual/post", module._REDUCTIONS[reduce])
    wanted = np.array([values.astype("f2").astype(float) for values in streams.values()])
    np.testing.assert_allclose(
        collected.vectors, wanted.mean(1) if step is None else wanted[:, step], atol=1e-5
    )


def test_by_step(tmp_path):
    """The label comes with step 2; a third of the answers ends before step 4, most before step 8."""
    streams = {}
    for i, (name, values) in enumerate(noise(60, steps=10, layers=2).items()):
        values[2:, 1, 0] += 6 * (i % 2)
        streams[name] = values[: 10 if i < 10 else 6 if i < 40 else 4]
    run = write_run(tmp_path / "run", streams, **in_turn(streams))
    ds = linear_probe_by_step(run, layers=[2], minimum=15)
    assert ds.auc.dims == ("layer", "step")
    assert ds.step.values.tolist() == [0, 1, 2, 4, 8]
    assert ds.n.values.tolist() == [60, 60, 60, 40, 10]
    assert ds.n_class.values.tolist() == [[30, 30], [30, 30], [30, 30], [20, 20], [5, 5]]
    low, high = ds.auc_low.sel(layer=2).values, ds.auc_high.sel(layer=2).values
    assert (low[:2] < 0.5).all() and (high[:2] > 0.5).all()
    assert (ds.auc.sel(layer=2, step=[2, 4]) > 0.95).all()
    assert np.isnan(ds.auc.sel(step=8)).all()
    alone = linear_probe(run, reduce="first")
    at_first = linear_probe_by_step(run, steps=[0])
    np.testing.assert_allclose(at_first.auc.sel(step=0), alone.auc)
    np.testing.assert_allclose(at_first.auc_low.sel(step=0), alone.auc_low)
    for panel in panels(ds):
        assert "60 at 0, 60 at 1, 60 at 2, 40 at 4, 10 at 8" in panel.caption
    with pytest.raises(mp.InputError, match=r"layers \[1\]: residual/post has layers \[0, 2\]"):
        linear_probe_by_step(run, layers=[1])


def test_the_presence_of_an_object(tmp_path):
    """Stars in every other sample, in the second picture; one sample asks about the first alone, one tells nothing."""
    streams = noise(50, layers=1)
    for i, values in enumerate(streams.values()):
        values[:, 0, 3] += 6 * (i % 2)
    pictures = {name: [f"{i}a.png", f"{i}b.png"][: 1 if i == 1 else 2] for i, name in enumerate(streams)}
    objects = {
        name: {} if i == 0 else {"objects": [["red starfish A1"], ["blue star B2"] if i % 2 else []]}
        for i, name in enumerate(streams)
    }
    run = write_run(tmp_path / "run", streams, images=pictures, metadata=objects)
    ds = linear_probe(run, presence_of("star"))
    assert dict(zip(ds["class"].values.tolist(), ds.n_class.values.tolist(), strict=True)) == {
        "absent": 25,
        "present": 24,
    }
    assert ds.auc.item() > 0.9
    assert ds.attrs["target"] == "presence of star"


def test_the_type_of_the_differences(tmp_path):
    """One type, none, several types (not used), one picture (not used), nothing known (not used)."""
    kinds = [["color"], [], ["color", "remove"], ["remove", "remove"], ["remove"], None]
    streams = noise(60, layers=1)
    pictures = {name: [f"{i}a.png", f"{i}b.png"][: 1 if i % 6 == 4 else 2] for i, name in enumerate(streams)}
    metadata = {
        name: {} if kinds[i % 6] is None else {"differences": [{"type": kind} for kind in kinds[i % 6]]}
        for i, name in enumerate(streams)
    }
    for i, values in enumerate(streams.values()):
        values[:, 0, i % 6] += 4
    run = write_run(tmp_path / "run", streams, metadata=metadata, images=pictures)
    ds = linear_probe(run, "difference_type", minimum=10)
    assert ds["class"].values.tolist() == ["color", "none", "remove"]
    assert ds.n_class.values.tolist() == [10, 10, 10]
    assert ds.auc.item() > 0.95
    with pytest.raises(
        NotApplicable, match="difference_type gives 10 color, 10 none, 10 remove; .* 11 samples"
    ):
        linear_probe(run, "difference_type", minimum=11)


def test_differences_of_another_form_have_no_type(tmp_path):
    """A number of them, none, words, an object without a type; one in six has the form that is read."""
    forms = [[{"type": "color"}], 2, None, ["color"], [{"category": "cat"}], []]
    streams = noise(60, layers=1)
    metadata = {name: {"differences": forms[i % 6]} for i, name in enumerate(streams)}
    pictures = {name: [f"{i}a.png", f"{i}b.png"] for i, name in enumerate(streams)}
    ds = linear_probe(
        write_run(tmp_path / "run", streams, metadata=metadata, images=pictures),
        "difference_type",
        minimum=10,
    )
    assert ds["class"].values.tolist() == ["color", "none"]
    assert ds.n_class.values.tolist() == [10, 10]


def test_any_function_and_small_classes(planted):
    """Two large classes, a small one and samples without a label."""

    def by_number(trace) -> int | None:
        number = int(trace.id[1:])
        return None if number < 4 else 7 if number < 8 else number % 2

    ds = linear_probe(planted, by_number, minimum=20)
    assert ds["class"].values.tolist() == ["0", "1"]
    assert (ds.n, ds.attrs["classes_left_out"], ds.attrs["target"]) == (40, "7", "by_number")
    assert ds.auc.sel(layer=2) > 0.9


def test_a_step_that_few_pictures_reach_has_no_number(tmp_path):
    """Ten pictures at the first step, four at the second: enough samples, too few pictures for five folds."""
    streams = {name: values[: 2 if i < 24 else 1] for i, (name, values) in enumerate(noise(60).items())}
    run = write_run(tmp_path / "run", streams, **in_turn(streams, a_pair=6))
    ds = linear_probe_by_step(run, minimum=10)
    assert ds.n.values.tolist() == [60, 24]
    assert np.isfinite(ds.auc.sel(step=0)).all()
    assert np.isnan(ds.auc.sel(step=1)).all()
    with pytest.raises(NotApplicable, match="over 4 sets of pictures, 5 folds need 5"):
        linear_probe_by_step(run, steps=[1], minimum=10)


def test_samples_that_are_not_finite_are_left_out_and_named(tmp_path):
    streams = noise(24, layers=1)
    streams["s005"][1, 0, 3] = np.inf
    about = in_turn(streams)
    run = write_run(tmp_path / "bad", streams, **about)
    ds = linear_probe(run, minimum=5)
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"], ds.n.item()) == ("s005", 1, 23)
    clean = {name: values for name, values in streams.items() if name != "s005"}
    xr.testing.assert_equal(ds, linear_probe(write_run(tmp_path / "clean", clean, **about), minimum=5))
    by_step = linear_probe_by_step(run, minimum=5)
    assert by_step.attrs["left_out"] == "s005"
    assert by_step.n.values.tolist() == [24, 23, 24]
    assert linear_probe(run, reduce="last", minimum=5).n == 24, "the value is not used"
    with pytest.raises(NotApplicable, match="12 faithful, 11 unfaithful beside 1 with"):
        linear_probe(run, minimum=12)


def test_the_order_of_the_run_does_not_matter(planted, found, tmp_path):
    streams = {name: planted[name].residual_post.values for name in planted.ids[::-1]}
    samples = {name: planted.sample(name) for name in streams}
    about = {
        field: {name: getattr(one, field) for name, one in samples.items()}
        for field in ("faithful", "images")
    }
    xr.testing.assert_equal(linear_probe(write_run(tmp_path / "run", streams, **about)), found)


def test_what_cannot_be_probed_is_refused(planted, tmp_path):
    for wrong, message in (
        ({"reduce": "max"}, "choose mean, last, first"),
        ({"stream": "out"}, "choose pre, mid, post"),
        ({"target": "colour"}, "choose faithful, difference_type or a function"),
        ({"minimum": 1}, "2 or more"),
    ):
        with pytest.raises(mp.InputError, match=message):
            linear_probe(planted, **wrong)
    with pytest.raises(NotCaptured, match="residual/mid"):
        linear_probe(planted, stream="mid")
    with pytest.raises(NotApplicable, match=r"24 faithful, 24 unfaithful; .* 25 samples .*labels\.jsonl"):
        linear_probe(planted, minimum=25)
    with pytest.raises(NotApplicable, match=r"gives no samples; .*metadata\.differences"):
        linear_probe(planted, "difference_type")
    streams = noise(24, layers=1)
    same = write_run(tmp_path / "same", streams, **in_turn(streams, a_pair=8))
    with pytest.raises(NotApplicable, match="over 3 sets of pictures, 5 folds need 5"):
        linear_probe(same, minimum=5)
    with pytest.raises(mp.InputError, match="no finished samples"):
        linear_probe(write_run(tmp_path / "empty", {}))


def test_figures_and_files(found, tmp_path):
    captions = [panel.caption for panel in panels(found)]
    assert len(captions) == 2
    for panel in panels(found):
        json.loads(panel.figure.to_json())
        assert "n = 48 samples (24 faithful, 24 unfaithful), over 24 sets of pictures" in panel.caption
        assert "95 % bootstrap interval" in panel.caption
    filled = panels(found)[0].figure.data[2].marker.symbol
    assert list(filled) == ["circle-open", "circle-open", "circle-open"] or filled[1] == "circle"
    netcdf, _, _ = export(found, tmp_path / "out")
    xr.testing.assert_allclose(xr.load_dataset(netcdf, engine="h5netcdf"), found)


def test_on_a_model(tiny_spd, tmp_path):
    """Which question was asked can be read off the first step."""
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", n=6, seed=3))
    chosen = [sample for sample in samples if sample.metadata["type"] in ("same", "count")]
    run = mp.trace(tiny_spd, chosen, tmp_path / "run", capture="full", max_new_tokens=4)

    def question(trace) -> str:
        return trace.sample.metadata["type"]

    ds = linear_probe(run, question, reduce="first", minimum=5)
    assert ds.sizes["layer"] == 8
    assert ds.n_class.values.tolist() == [6, 6]
    assert ds.auc.isel(layer=-1) > 0.95
