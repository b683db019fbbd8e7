"""Linear probes on synthetic residual streams with a planted direction, against scikit-learn."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import runs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mmprobe as mp
import mmprobe.probes.linear as module
from mmprobe.analyses import export
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable, NotCaptured
from mmprobe.probes import cross_validation
from mmprobe.probes.labelled_vectors import REDUCTIONS, object_presence, read_labels, read_vectors
from mmprobe.probes.linear import linear_probe, linear_probe_by_step
from mmprobe.stats.folds import assign_folds
from mmprobe.viz.figures.linear_probe import panels

warnings.simplefilter("error")
HIDDEN = 12


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(module, "SHUFFLES", 19)


def write_run(folder: Path, streams: Mapping[str, np.ndarray], **fields: Mapping[str, Any]) -> mp.Run:
    """Write a run of residual/post [step, layer, hidden]; `fields` of the samples by sample id."""
    traces = {
        name: {"residual/post": values} | {field: by_id[name] for field, by_id in fields.items()}
        for name, values in streams.items()
    }
    n_layers = next((values.shape[1] for values in streams.values()), 0)
    return runs.write_run(folder, traces, range(0, 2 * n_layers, 2))


def noise(count: int, steps: int = 3, layers: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"s{i:03}": rng.normal(size=(steps, layers, HIDDEN)) for i in range(count)}


def alternating_fields(streams: Mapping[str, np.ndarray], per_image: int = 2) -> dict[str, dict]:
    """Return fields: every other sample is unfaithful, and `per_image` consecutive samples share an image."""
    return {
        "faithful": {name: i % 2 == 0 for i, name in enumerate(streams)},
        "images": {name: [f"{i // per_image}.png"] for i, name in enumerate(streams)},
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> mp.Run:
    """Return a run of 48 samples. In layer 2 unfaithful samples have larger values on two axes."""
    streams = noise(48)
    for i, values in enumerate(streams.values()):
        values[:, 1, :2] += 2 * (i % 2)
    return write_run(tmp_path_factory.mktemp("planted") / "run", streams, **alternating_fields(streams))


@pytest.fixture(scope="module")
def dataset(planted) -> xr.Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHUFFLES", 19)
        return linear_probe(planted)


def test_a_planted_direction_is_found_only_in_its_layer(dataset):
    assert dataset.layer.values.tolist() == [0, 2, 4]
    assert dataset.auc.sel(layer=2) > 0.95
    assert dataset.accuracy_low.sel(layer=2) > dataset.majority
    for name in ("accuracy", "balanced_accuracy", "auc"):
        assert dataset[f"{name}_p"].sel(layer=2).item() == pytest.approx(1 / 20)
        assert (dataset[f"{name}_low"] <= dataset[name]).all() and (
            dataset[name] <= dataset[f"{name}_high"]
        ).all()
        np.testing.assert_allclose(dataset[f"{name}_shuffled"], 0.5, atol=0.15)
    assert dataset.auc_p_max.sel(layer=2).item() == pytest.approx(1 / 20)
    for layer in (0, 4):
        assert dataset.auc.sel(layer=layer) < 0.75
        assert dataset.auc_p_max.sel(layer=layer) > 0.05
    assert (dataset.auc_p_max >= dataset.auc_p).all()
    assert (dataset.n, dataset.n_pictures, dataset.majority) == (48, 24, 0.5)
    assert dataset["class"].values.tolist() == ["faithful", "unfaithful"]
    assert dataset.n_class.values.tolist() == [24, 24]


def vectors(run: mp.Run, layer: int) -> np.ndarray:
    return np.array(
        [run[name].residual_post.sel(layer=layer).values.mean(0, dtype=float) for name in sorted(run.ids)]
    )


def test_values_equal_those_of_scikit_learn(planted, dataset):
    truth = np.arange(48) % 2
    fold = assign_folds(truth, np.arange(48) // 2, 5, 0, "")
    for layer in dataset.layer.values:
        x, score = vectors(planted, layer), np.empty(48)
        for number in range(5):
            train = fold != number
            model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced"))
            score[~train] = model.fit(x[train], truth[train]).predict_proba(x[~train])[:, 1]
        of_layer = dataset.sel(layer=layer)
        assert of_layer.auc.item() == pytest.approx(roc_auc_score(truth, score), abs=0.01)
        assert of_layer.accuracy.item() == pytest.approx(accuracy_score(truth, score > 0.5))
        assert of_layer.balanced_accuracy.item() == pytest.approx(balanced_accuracy_score(truth, score > 0.5))


def test_the_weights_are_those_of_scikit_learn_on_all_samples(planted, dataset):
    truth = np.array([planted.faithful(name) for name in sorted(planted.ids)])
    scaled = vectors(planted, 2)
    scale = scaled.std(0)
    scaled = (scaled - scaled.mean(0)) / scale
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000).fit(scaled, ~truth)
    coef = dataset["coef"].sel(layer=2)
    np.testing.assert_allclose(
        coef.sel({"class": "unfaithful"}), model.coef_[0] / scale, rtol=0.01, atol=1e-3
    )
    np.testing.assert_allclose(coef.sel({"class": "faithful"}), -coef.sel({"class": "unfaithful"}))


def test_labels_can_be_given(planted):
    words = {name: "yes" if planted.faithful(name) else "no" for name in planted.ids}
    series = pd.Series(words, dtype=object)
    expected = dict(sorted(words.items()))
    given = (words, series, series.to_numpy(), list(words.values()))
    assert all(read_labels(planted, labels) == expected for labels in given)
    some = series.where(series == "yes", None)
    assert set(read_labels(planted, some).values()) == {"yes"}, "no label, no sample"
    with pytest.raises(InputError, match="labels: there are 1"):
        read_labels(planted, ["yes"])
    with pytest.raises(InputError, match="labels: .*sample 'x'"):
        read_labels(planted, {"x": "yes"})


def test_the_rotated_fit_is_the_same_fit():
    """With 40 dimensions and 20 training samples, a fit in 20 dimensions gives the same probabilities."""
    rng = np.random.default_rng(0)
    x, truth, fold = rng.normal(size=(30, 40)), np.arange(30) % 3, np.repeat([0, 1, 2], 10)
    (probabilities,) = cross_validation.predict_held_out(x.astype("f4"), [truth], fold)
    for number in range(3):
        train = fold != number
        model = make_pipeline(
            StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", tol=1e-8, max_iter=1000)
        )
        expected = model.fit(x[train], truth[train]).predict_proba(x[~train])
        np.testing.assert_allclose(probabilities[~train], expected, atol=1e-3)


def test_measures_of_several_classes_equal_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    probabilities = rng.random((60, 3)).round(1) + 0.1
    probabilities, truth = probabilities / probabilities.sum(1, keepdims=True), rng.integers(0, 3, 60)
    counts = rng.integers(0, 3, (5, 60))
    for draw, (accuracy, balanced, auc) in zip(
        counts, cross_validation.compute_measures(probabilities, truth, counts).T, strict=True
    ):
        rows = np.repeat(np.arange(60), draw)
        assert accuracy == pytest.approx(accuracy_score(truth[rows], probabilities[rows].argmax(1)))
        assert balanced == pytest.approx(balanced_accuracy_score(truth[rows], probabilities[rows].argmax(1)))
        assert auc == pytest.approx(roc_auc_score(truth[rows], probabilities[rows], multi_class="ovr"))
    missing_class = np.where(truth == 2, 0, 1)[None]
    assert np.isnan(cross_validation.compute_measures(probabilities, truth, missing_class)[1:]).all(), (
        "one class is missing"
    )


def test_measures_without_groups_are_those_of_the_other_samples():
    rng = np.random.default_rng(2)
    probabilities, truth = rng.random((60, 3)).round(1) + 0.1, rng.integers(0, 3, 60)
    groups = np.unique(rng.integers(0, 9, 60) ** 2, return_inverse=True)[1]
    others = (groups != np.arange(groups.max() + 1)[:, None]).astype(float)
    expected = cross_validation.compute_measures(probabilities, truth, others).T
    without = cross_validation.measures_without_groups(probabilities, truth, groups)
    np.testing.assert_allclose(without, expected, rtol=1e-12)


@pytest.mark.slow
def test_images_that_reveal_the_label_do_not_help(tmp_path):
    """Four samples of an image have the same label and nearly the same vector."""
    rng = np.random.default_rng(3)
    steady = rng.normal(size=(14, 1, 1, 40))
    streams = {f"s{i:03}": steady[i // 4] + 0.01 * rng.normal(size=(1, 1, 40)) for i in range(56)}
    fields = {
        "faithful": {name: (i // 4) % 2 == 0 for i, name in enumerate(streams)},
        "images": {name: [f"{i // 4}.png"] for i, name in enumerate(streams)},
    }
    grouped = linear_probe(write_run(tmp_path / "grouped", streams, **fields))
    assert grouped.auc_low < 0.5 < grouped.auc_high
    assert grouped.auc_p > 0.05
    fields["images"] = {name: [f"{name}.png"] for name in streams}
    assert linear_probe(write_run(tmp_path / "apart", streams, **fields)).auc > 0.99


@pytest.mark.exhaustive
@pytest.mark.parametrize("reduce, step", [("first", 0), ("last", -1), ("mean", None)])
def test_how_steps_become_one_vector(tmp_path, reduce, step):
    """The label is in the first step, in the last step, or (weaker) in all; a block has fewer steps."""
    streams = noise(24, steps=BLOCK_STEPS + 3, layers=1)
    for i, values in enumerate(streams.values()):
        values[slice(None) if step is None else step, 0, 0] += (4 if step is not None else 1) * (i % 2)
    run = write_run(tmp_path / "run", streams, **alternating_fields(streams))
    auc = {name: linear_probe(run, reduce=name, minimum=10).auc.item() for name in ("first", "last", "mean")}
    assert max(auc, key=auc.get) == reduce
    assert auc[reduce] > 0.9
    collected = read_vectors(run, run.ids, "residual/post", REDUCTIONS[reduce])
    expected = np.array([values.astype("f2").astype(float) for values in streams.values()])
    np.testing.assert_allclose(
        collected.vectors, expected.mean(1) if step is None else expected[:, step], atol=1e-5
    )


@pytest.mark.exhaustive
def test_by_step(tmp_path):
    """The label appears at step 2. A third of the answers ends before step 4, and most end before step 8."""
    streams = {}
    for i, (name, values) in enumerate(noise(60, steps=10, layers=2).items()):
        values[2:, 1, 0] += 6 * (i % 2)
        streams[name] = values[: 10 if i < 10 else 6 if i < 40 else 4]
    run = write_run(tmp_path / "run", streams, **alternating_fields(streams))
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


@pytest.mark.slow
def test_the_presence_of_an_object(tmp_path):
    """Every other second image has a star. One sample has only the first image, and one lists no objects."""
    streams = noise(50, layers=1)
    for i, values in enumerate(streams.values()):
        values[:, 0, 3] += 6 * (i % 2)
    image_names = {name: [f"{i}a.png", f"{i}b.png"][: 1 if i == 1 else 2] for i, name in enumerate(streams)}
    objects = {
        name: {} if i == 0 else {"objects": [["red starfish A1"], ["blue star B2"] if i % 2 else []]}
        for i, name in enumerate(streams)
    }
    run = write_run(tmp_path / "run", streams, images=image_names, metadata=objects)
    ds = linear_probe(run, object_presence("star"))
    assert dict(zip(ds["class"].values.tolist(), ds.n_class.values.tolist(), strict=True)) == {
        "absent": 25,
        "present": 24,
    }
    assert ds.auc.item() > 0.9
    assert ds.attrs["target"] == "presence of star"


@pytest.mark.slow
def test_the_type_of_the_differences(tmp_path):
    """Samples with several types, with one image or without metadata are not used."""
    kinds = [["color"], [], ["color", "remove"], ["remove", "remove"], ["remove"], None]
    streams = noise(60, layers=1)
    image_names = {
        name: [f"{i}a.png", f"{i}b.png"][: 1 if i % 6 == 4 else 2] for i, name in enumerate(streams)
    }
    metadata = {
        name: {} if kinds[i % 6] is None else {"differences": [{"type": kind} for kind in kinds[i % 6]]}
        for i, name in enumerate(streams)
    }
    for i, values in enumerate(streams.values()):
        values[:, 0, i % 6] += 4
    run = write_run(tmp_path / "run", streams, metadata=metadata, images=image_names)
    ds = linear_probe(run, "difference_type", minimum=10)
    assert ds["class"].values.tolist() == ["color", "none", "remove"]
    assert ds.n_class.values.tolist() == [10, 10, 10]
    assert ds.auc.item() > 0.95
    with pytest.raises(
        NotApplicable, match="difference_type gives 10 color, 10 none, 10 remove; .* 11 samples"
    ):
        linear_probe(run, "difference_type", minimum=11)


@pytest.mark.slow
def test_differences_of_other_forms_have_no_type(tmp_path):
    """Only one of six forms of `differences` has a type."""
    forms = [[{"type": "color"}], 2, None, ["color"], [{"category": "cat"}], []]
    streams = noise(60, layers=1)
    metadata = {name: {"differences": forms[i % 6]} for i, name in enumerate(streams)}
    image_names = {name: [f"{i}a.png", f"{i}b.png"] for i, name in enumerate(streams)}
    ds = linear_probe(
        write_run(tmp_path / "run", streams, metadata=metadata, images=image_names),
        "difference_type",
        minimum=10,
    )
    assert ds["class"].values.tolist() == ["color", "none"]
    assert ds.n_class.values.tolist() == [10, 10]


@pytest.mark.slow
def test_any_function_and_small_classes(planted):
    """There are two large classes, a small one, and samples without a label."""

    def by_number(trace) -> int | None:
        number = int(trace.id[1:])
        return None if number < 4 else 7 if number < 8 else number % 2

    ds = linear_probe(planted, by_number, minimum=20)
    assert ds["class"].values.tolist() == ["0", "1"]
    assert (ds.n, ds.attrs["classes_left_out"], ds.attrs["target"]) == (40, "7", "by_number")
    assert ds.auc.sel(layer=2) > 0.9


@pytest.mark.slow
def test_a_step_with_too_few_images_has_no_value(tmp_path):
    """Ten images at the first step and four at the second: enough samples, too few images for five folds."""
    streams = {name: values[: 2 if i < 24 else 1] for i, (name, values) in enumerate(noise(60).items())}
    run = write_run(tmp_path / "run", streams, **alternating_fields(streams, per_image=6))
    ds = linear_probe_by_step(run, minimum=10)
    assert ds.n.values.tolist() == [60, 24]
    assert np.isfinite(ds.auc.sel(step=0)).all()
    assert np.isnan(ds.auc.sel(step=1)).all()
    with pytest.raises(NotApplicable, match="over 4 sets of images, 5 folds need 5"):
        linear_probe_by_step(run, steps=[1], minimum=10)


@pytest.mark.slow
def test_samples_with_non_finite_values_are_excluded_and_named(tmp_path):
    streams = noise(24, layers=1)
    streams["s005"][1, 0, 3] = np.inf
    fields = alternating_fields(streams)
    run = write_run(tmp_path / "bad", streams, **fields)
    ds = linear_probe(run, minimum=5)
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"], ds.n.item()) == ("s005", 1, 23)
    clean = {name: values for name, values in streams.items() if name != "s005"}
    xr.testing.assert_equal(ds, linear_probe(write_run(tmp_path / "clean", clean, **fields), minimum=5))
    by_step = linear_probe_by_step(run, minimum=5)
    assert by_step.attrs["left_out"] == "s005"
    assert by_step.n.values.tolist() == [24, 23, 24]
    assert linear_probe(run, reduce="last", minimum=5).n == 24, "the last step does not use the value"
    with pytest.raises(NotApplicable, match="12 faithful, 11 unfaithful and 1 with non-finite"):
        linear_probe(run, minimum=12)


@pytest.mark.slow
def test_the_order_of_the_run_does_not_matter(planted, dataset, tmp_path):
    streams = {name: planted[name].residual_post.values for name in planted.ids[::-1]}
    samples = {name: planted.sample(name) for name in streams}
    fields = {
        field: {name: getattr(sample, field) for name, sample in samples.items()}
        for field in ("faithful", "images")
    }
    xr.testing.assert_equal(linear_probe(write_run(tmp_path / "run", streams, **fields)), dataset)


def test_invalid_arguments_and_runs_are_errors(planted, tmp_path):
    for options, message in (
        ({"reduce": "max"}, "choose mean, last, first"),
        ({"stream": "out"}, "choose pre, mid, post"),
        ({"target": "colour"}, "choose faithful, difference_type or a function"),
        ({"minimum": 1}, "2 or more"),
    ):
        with pytest.raises(mp.InputError, match=message):
            linear_probe(planted, **options)
    with pytest.raises(NotCaptured, match="residual/mid"):
        linear_probe(planted, stream="mid")
    with pytest.raises(NotApplicable, match=r"24 faithful, 24 unfaithful; .* 25 samples .*labels\.jsonl"):
        linear_probe(planted, minimum=25)
    with pytest.raises(NotApplicable, match=r"gives no samples; .*metadata\.differences"):
        linear_probe(planted, "difference_type")
    streams = noise(24, layers=1)
    same = write_run(tmp_path / "same", streams, **alternating_fields(streams, per_image=8))
    with pytest.raises(NotApplicable, match="over 3 sets of images, 5 folds need 5"):
        linear_probe(same, minimum=5)
    with pytest.raises(mp.InputError, match="no finished samples"):
        linear_probe(write_run(tmp_path / "empty", {}))


def test_figures_and_files(dataset, tmp_path):
    captions = [panel.caption for panel in panels(dataset)]
    assert len(captions) == 2
    for panel in panels(dataset):
        json.loads(panel.figure.to_json())
        assert "n = 48 samples (24 faithful, 24 unfaithful), over 24 image sets" in panel.caption
        assert "over sets of images" in panel.caption
    filled = panels(dataset)[0].figure.data[2].marker.symbol
    assert list(filled) == ["circle-open", "circle-open", "circle-open"] or filled[1] == "circle"
    netcdf, _, _ = export(dataset, tmp_path / "out")
    xr.testing.assert_allclose(xr.load_dataset(netcdf, engine="h5netcdf"), dataset)


@pytest.mark.exhaustive
def test_on_a_model(tiny_spd, tmp_path):
    """A probe predicts the question from the first step."""
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", n=6, seed=3))
    selected = [sample for sample in samples if sample.metadata["type"] in ("same", "count")]
    run = mp.trace(tiny_spd, selected, tmp_path / "run", capture="full", max_new_tokens=4)

    def question(trace) -> str:
        return trace.sample.metadata["type"]

    ds = linear_probe(run, question, reduce="first", minimum=5)
    assert ds.sizes["layer"] == 8
    assert ds.n_class.values.tolist() == [6, 6]
    assert ds.auc.isel(layer=-1) > 0.95
