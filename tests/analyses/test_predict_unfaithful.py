"""predict_unfaithful on random runs: planted signals, noise and leaks, against scikit-learn and by hand."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
from helpers.planted import SIDE, planted_trace
from helpers.runs import write_run
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import mmprobe as mp
from mmprobe.analyses.predict_unfaithful import (
    FEATURES,
    compute_features,
    held_out_scores,
    predict_unfaithful,
    read_series,
)
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import NotApplicable
from mmprobe.stats.auc import weighted_auc
from mmprobe.stats.folds import assign_folds
from mmprobe.viz import figures
from mmprobe.viz.figures.predict_unfaithful import panels
from mmprobe.viz.report.analysis_pages import analysis_pages

module = importlib.import_module("mmprobe.analyses.predict_unfaithful")

warnings.simplefilter("error")
LAYERS, HEADS, NEURONS = 3, 2, 8
OF_MAPS_AND_PAIRS = ("overlap_iou", "overlap_rank", "residual_drift")
REGIONS = [{"image": 0, "box": [0, 0, 10, 10]}]


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(module, "SHUFFLES", 19)
    monkeypatch.setattr(module, "REFITS", 20)


def arrays(rng: np.random.Generator, steps: int = 6) -> dict[str, np.ndarray]:
    """Return the random arrays of a trace of one image with 2 x 3 visual tokens."""
    mass = rng.random((steps, LAYERS, HEADS, 5))
    noise = {
        f"update/{name}": rng.normal(size=(steps, LAYERS)).astype("f4")
        for name in ("cos_mha", "cos_ffn", "kl")
    }
    return noise | {
        "images/grid": np.array([[2, 3]], "i4"),
        "images/source": np.zeros(1, "i4"),
        "images/box": np.array([[0, 0, 30, 20]], "f4"),
        "attention/mass": (mass / mass.sum(-1, keepdims=True)).astype("f4"),
        "attention/visual": rng.random((steps, LAYERS, 6)).astype("f2"),
        "ffn/gate_sum": rng.normal(size=(LAYERS, NEURONS)).astype("f4"),
        "steps/logprob": -rng.random(steps).astype("f4"),
        "steps/entropy": rng.random(steps).astype("f4"),
    }


def noise_traces(count: int, seed: int = 0, same_image: int = 2, **fields: Any) -> dict[str, dict[str, Any]]:
    """`count` traces of noise, every other unfaithful; `same_image` traces in turn share an image."""
    rng = np.random.default_rng(seed)
    return {
        f"s{i:03}": {"images": [f"{i // same_image}.png"], "faithful": i % 2 == 0, **fields, **arrays(rng)}
        for i in range(count)
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> mp.Run:
    """40 samples; from the fourth step on, unfaithful samples have a larger KL."""
    traces = noise_traces(40)
    for trace in traces.values():
        trace["update/kl"][3:] += 0 if trace["faithful"] else 3
    return write_run(tmp_path_factory.mktemp("planted") / "run", traces)


@pytest.fixture(scope="module")
def prediction(planted) -> xr.Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHUFFLES", 19)
        patch.setattr(module, "REFITS", 20)
        return predict_unfaithful(planted)


@pytest.mark.slow
def test_a_planted_feature_is_found(prediction):
    assert prediction.auc > 0.95
    assert prediction.auc_low > 0.8
    assert prediction.p.item() == pytest.approx(1 / 20), "no shuffle does as well"
    assert 0.2 < prediction.auc_shuffled < 0.8
    assert prediction.auc_shuffled_low <= prediction.auc_shuffled <= prediction.auc_shuffled_high
    assert prediction.feature[np.abs(prediction.weight.values).argmax()] == "kl"
    assert prediction.weight_low.sel(feature="kl") > 0
    assert prediction.feature[prediction.auc_feature.values.argmax()] == "kl"
    assert (prediction.n, prediction.n_unfaithful, prediction.n_faithful, prediction.n_pictures) == (
        40,
        20,
        20,
        20,
    )
    lacking = ["region_ratio", *OF_MAPS_AND_PAIRS]
    assert list(prediction.feature.values) == [name for name in FEATURES if name not in lacking]
    assert prediction.attrs["features_left_out"] == ", ".join(lacking)


def test_auc_is_that_of_the_held_out_scores(prediction):
    unfaithful = prediction.unfaithful.values
    assert prediction.auc.item() == pytest.approx(roc_auc_score(unfaithful, prediction.score.values))
    for name in prediction.feature.values:
        expected = roc_auc_score(unfaithful, prediction.value.sel(feature=name).values)
        assert prediction.auc_feature.sel(feature=name).item() == pytest.approx(expected)


def test_margins_of_a_run_read_by_likelihood_are_correlated_by_rank(planted, prediction):
    assert "margin" not in prediction, "nothing was read by likelihood"
    run = mp.open_run(planted.path)
    names = prediction.sample.values.tolist()
    # Unfaithful answers are surer here, so that no label can make the sign; one sample has no margin.
    margins = np.exp(-prediction.value.sel(feature="kl").values) + 5 * prediction.unfaithful.values
    run.margins.update(zip(names[1:], margins[1:].tolist(), strict=True))
    ds = predict_unfaithful(run)
    assert np.isnan(ds.margin.values[0]) and ds.margin.values[1:].tolist() == margins[1:].tolist()
    assert np.isnan(ds.margin_correlation.sel(feature="steps")), "all answers have the same length"
    for name in set(ds.feature.values) - {"steps"}:
        expected = spearmanr(ds.value.sel(feature=name).values[1:], margins[1:]).statistic
        found = ds.margin_correlation.sel(feature=name).item()
        assert found == pytest.approx(expected)
        low, high = (ds[f"margin_correlation_{end}"].sel(feature=name).item() for end in ("low", "high"))
        assert -1 <= low <= found <= high <= 1


def test_scores_are_those_of_models_fitted_without_the_fold(prediction):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    for fold in range(5):
        train, held_out = (
            prediction.value.values[mask] for mask in (prediction.fold != fold, prediction.fold == fold)
        )
        scaler = StandardScaler().fit(train)
        model = LogisticRegression(class_weight="balanced", tol=1e-8, max_iter=1000)
        model.fit(scaler.transform(train), prediction.unfaithful.values[prediction.fold != fold])
        expected = model.decision_function(scaler.transform(held_out))
        np.testing.assert_allclose(prediction.score.values[prediction.fold == fold], expected, atol=1e-3)


def test_a_step_sees_only_the_steps_up_to_it(prediction):
    """The signal begins at the fourth step: the first two steps predict nothing, the first four do."""
    by_step = {name: prediction[f"auc_by_step{name}"].values for name in ("", "_low", "_high")}
    assert prediction.upto.values.tolist() == [1, 2, 4]
    assert prediction.n_by_step.values.tolist() == [40, 40, 40]
    assert (by_step["_low"][:2] < 0.5).all()
    assert (by_step["_high"][:2] > 0.5).all()
    assert by_step[""][2] > 0.75
    assert by_step["_low"][2] > 0.5


def test_no_image_is_on_both_sides(prediction):
    for group in np.unique(prediction.pictures):
        assert len(np.unique(prediction.fold[prediction.pictures == group])) == 1
    assert np.bincount(prediction.fold).min() == 8


@pytest.mark.slow
def test_the_order_of_the_run_does_not_matter(planted, prediction, tmp_path):
    shutil.copytree(planted.path, tmp_path / "run")
    config = planted.config | {"order": np.random.default_rng(1).permutation(planted.ids).tolist()}
    (tmp_path / "run" / "run.json").write_text(json.dumps(config))
    again = mp.open_run(tmp_path / "run")
    assert again.ids != planted.ids
    xr.testing.assert_equal(predict_unfaithful(again), prediction)


@pytest.mark.slow
def test_noise_predicts_nothing(tmp_path):
    ds = predict_unfaithful(write_run(tmp_path / "run", noise_traces(48, seed=5)))
    assert ds.auc_low < 0.5 < ds.auc_high
    assert ds.p > 0.05
    covered = (ds.auc_feature_low < 0.5) & (ds.auc_feature_high > 0.5)
    assert covered.mean() > 0.7
    assert ((ds.weight_low < 0) & (ds.weight_high > 0)).mean() > 0.7


def test_internals_that_only_tell_the_type_are_worth_nothing_within_types(tmp_path):
    """Type b is mostly answered wrongly, and its KL is larger; within a type nothing predicts the label.

    Half of the samples name their type, the others ask the same about things that they declare.
    """
    rng, traces = np.random.default_rng(3), {}
    for number in range(240):
        hard = number % 2 == 1
        trace = arrays(rng) | {
            "images": [f"{number // 4}.png"],
            "faithful": bool(rng.random() < (0.15 if hard else 0.85)),
        }
        thing = ["shoe", "sea lion"][number // 2 % 2]
        trace["question"] = f"Where is the {thing}?" if hard else f"What color is the {thing}?"
        trace["metadata"] = {"objects": [[{"name": thing}]]}
        trace["update/kl"] += 5.0 * hard
        traces[f"s{number:03}"] = trace
    run = write_run(tmp_path / "run", traces)
    labels = [
        {"id": name, "faithful": each["faithful"], "correct": each["faithful"]}
        for name, each in traces.items()
    ]
    (run.path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in labels))
    ds = predict_unfaithful(mp.open_run(run.path))
    assert set(ds.question_type.values) == {"where is the _?", "what color is the _?"}
    assert ds.auc > 0.65 and ds.auc_type > 0.65
    assert ds.auc_within_low < 0.5 < ds.auc_within_high and ds.auc_within < 0.65
    hard, wrong = ds.question_type.values == "where is the _?", ds.unfaithful.values == 1
    assert ds.n_pairs == sum((wrong & own).sum() * (~wrong & own).sum() for own in (hard, ~hard))
    drawn = panels(ds)
    assert f"{ds.auc_type:.2f}" in drawn[0].caption and f"{ds.auc_within:.2f}" in drawn[0].caption


def test_right_answers_are_not_called_faithful(tmp_path):
    run = write_run(tmp_path / "run", noise_traces(40))
    assert "Unfaithful" in figures(mp.analyses.sublayer_transitions(run))[-1].title
    labels = [{"id": name, "faithful": run.faithful(name), "correct": run.faithful(name)} for name in run.ids]
    (run.path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in labels))
    read = mp.open_run(run.path)
    for ds in (predict_unfaithful(read), mp.analyses.sublayer_transitions(read)):
        assert {"n_unfaithful", "n_faithful"} <= set(ds), "variables keep their names"
        for panel in figures(ds):
            shown = panel.title + panel.caption + panel.figure.to_json()
            assert "faithful" not in shown.lower(), panel.title
        page = analysis_pages([ds])[0]
        assert "faithful" not in re.sub(r"predict.unfaithful", "", page.html.lower())


@pytest.mark.slow
def test_images_that_give_the_label_away_do_not_help(tmp_path):
    """Each image has its own label and numbers: they predict the label only if the image is in both folds."""
    rng, traces = np.random.default_rng(2), {}
    for image in range(14):
        steady = arrays(rng) | {"images": [f"{image}.png"], "faithful": image % 2 == 0}
        for i in range(3):
            kl = steady["update/kl"] + 1e-3 * rng.random(steady["update/kl"].shape, "f4")
            traces[f"s{image:02}{i}"] = steady | {"update/kl": kl}
    ds = predict_unfaithful(write_run(tmp_path / "run", traces))
    assert ds.n_pictures == 14
    assert ds.auc_low < 0.5 < ds.auc_high
    assert 0.2 < ds.auc < 0.8
    assert ds.p > 0.05
    labels = ds.unfaithful.values
    leaky = assign_folds(labels, np.arange(len(labels)), 5, 0, "run")
    assert weighted_auc(held_out_scores(ds.value.values, labels, leaky), labels == 1) > 0.95


def test_features_by_hand(tmp_path):
    """Two steps, plain loops; the region is the upper left of 2 x 3 cells."""
    values = arrays(np.random.default_rng(3), steps=2)
    run = write_run(tmp_path / "run", {"a": values | {"images": ["a.png"], "regions": REGIONS}})
    rows = compute_features(read_series(run["a"]))
    assert rows.shape == (3, len(FEATURES)), "the first step, the first two, and the whole answer"
    for upto, is_end, row in zip((1, 2, 2), (False, False, True), rows, strict=True):
        share = values["attention/mass"][:upto, :, :, 2].mean(2)
        weights = values["attention/visual"][:upto].astype(float)
        entropies, ratios = [], []
        for step in weights:
            for layer in step:
                part = layer / layer.sum()
                entropies.append(-sum(p * np.log(p) for p in part))
                ratios.append(part[0] * 6)
        expected = {
            "visual_share": share.mean(),
            "visual_share_early": share[:, 0].mean(),
            "visual_share_late": share[:, 2].mean(),
            "visual_slope": share[1].mean() - share[0].mean() if upto == 2 else np.nan,
            "visual_entropy": np.mean(entropies),
            "region_ratio": np.mean(ratios),
            "cos_mha": values["update/cos_mha"][:upto].mean(),
            "cos_ffn_late": values["update/cos_ffn"][:upto, 2].mean(),
            "kl": values["update/kl"][:upto].mean(),
            "active_neurons": (values["ffn/gate_sum"] > 0).mean() if is_end else np.nan,
            "logprob": values["steps/logprob"][:upto].mean(),
            "logprob_min": values["steps/logprob"][:upto].min(),
            "entropy": values["steps/entropy"][:upto].mean(),
            "steps": 2 if is_end else np.nan,
        } | dict.fromkeys(OF_MAPS_AND_PAIRS, np.nan)
        np.testing.assert_allclose(row, [expected[name] for name in FEATURES], rtol=1e-5, err_msg=str(upto))


@pytest.fixture
def pairs(tmp_path) -> mp.Run:
    """Two pairs of answers of three and five steps, with maps and residual streams of four layers."""
    rng, traces = np.random.default_rng(4), {}
    for number, (pair, polarity, steps) in enumerate(
        (("p", "same", 3), ("p", "different", 5), ("q", "same", 5), ("q", "different", 3))
    ):
        maps = rng.random((2, steps, SIDE * SIDE))
        maps[1, 1] = 0  # nothing is read from the image
        traces[f"{pair}-{polarity}"] = planted_trace(*maps, pair_id=pair, polarity=polarity) | {
            "images": [f"{pair}.png"],
            "attention/visual": rng.random((steps, 4, SIDE * SIDE)).astype("f2"),
            "residual/post": rng.normal(size=(steps, 4, 6)).astype("f2"),
            "steps/logprob": -rng.random(steps),
            "steps/entropy": rng.random(steps),
            "faithful": number % 2 == 0,
        }
    return write_run(tmp_path / "run", traces)


def test_drift_and_overlap_are_those_of_their_analyses(pairs):
    partners = {
        "p-same": "p-different",
        "p-different": "p-same",
        "q-same": "q-different",
        "q-different": "q-same",
    }
    assert module._find_partners(pairs) == partners
    drift = mp.analyses.residual_drift(pairs)
    overlap = mp.analyses.attention_vs_activation(pairs)
    names = list(FEATURES)
    for name, partner in partners.items():
        rows = compute_features(read_series(pairs[name], pairs[partner]))
        whole = dict(zip(names, rows[-1], strict=True))
        expected = drift.cosine.sel(pair=name[0]).isel(layer=slice(3, None)).mean().item()
        assert whole["residual_drift"] == pytest.approx(expected)
        iou, rank = (np.nan_to_num(overlap[kind].sel(sample=name)) for kind in ("iou", "rank_correlation"))
        steps = pairs[name].steps.sizes["step"]
        assert whole["overlap_iou"] == pytest.approx(iou[:steps].mean())
        assert whole["overlap_rank"] == pytest.approx(rank[:steps].mean())
        first = [
            pairs[one].array("residual/post").values[:2, 3].astype(float).mean(0) for one in (name, partner)
        ]
        cosine = first[0] @ first[1] / np.linalg.norm(first[0]) / np.linalg.norm(first[1])
        assert rows[1][names.index("residual_drift")] == pytest.approx(cosine), "of the first two steps"


def test_answers_without_a_pair_have_no_drift_and_half_pairs_no_partner(tmp_path, pairs):
    shutil.copytree(pairs.path, tmp_path / "half")
    (tmp_path / "half" / "samples" / "q-same.h5").unlink()
    half = mp.open_run(tmp_path / "half")
    assert set(module._find_partners(half)) == {"p-same", "p-different"}
    assert "residual/pair" not in read_series(half["q-different"])
    assert "maps" in read_series(half["q-different"])


def test_layers_without_attention_to_images_have_no_entropy(tmp_path):
    values = arrays(np.random.default_rng(3))
    values["attention/visual"][:, 0] = 0
    values["attention/visual"][:, 1:] = 0.5
    run = write_run(tmp_path / "run", {"a": values})
    np.testing.assert_allclose(read_series(run["a"])["attention/visual"], np.log(6))
    values["attention/visual"][2, 1, 0] = np.inf
    run = write_run(tmp_path / "bad", {"a": values})
    series = read_series(run["a"])["attention/visual"]
    assert np.flatnonzero(np.isnan(series)).tolist() == [2]


@pytest.mark.slow
def test_samples_that_are_not_finite_are_left_out_and_named(tmp_path):
    traces = noise_traces(18)
    for name, path, bad in (("s007", "update/kl", np.nan), ("s010", "ffn/gate_sum", np.inf)):
        traces[name][path][1, 1] = bad
    ds = predict_unfaithful(write_run(tmp_path / "bad", traces), minimum=5)
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"], ds.n.item()) == ("s007, s010", 2, 16)
    clean = {name: trace for name, trace in traces.items() if name not in ("s007", "s010")}
    xr.testing.assert_equal(ds, predict_unfaithful(write_run(tmp_path / "clean", clean), minimum=5))
    with pytest.raises(NotApplicable, match="8 unfaithful and 8 faithful samples without the 2 .* 9 of each"):
        predict_unfaithful(mp.open_run(tmp_path / "bad"), minimum=9)


@pytest.mark.slow
def test_missing_features_are_left_out_and_named(tmp_path):
    """No FFN, answers of one step (without a slope), and then one sample without regions."""
    traces, rng = noise_traces(16, regions=REGIONS), np.random.default_rng(0)
    for trace in traces.values():
        trace |= arrays(rng, steps=1)
        del trace["ffn/gate_sum"]
    ds = predict_unfaithful(write_run(tmp_path / "all", traces), minimum=5)
    others = ", ".join(OF_MAPS_AND_PAIRS)
    assert ds.attrs["features_left_out"] == f"visual_slope, {others}, active_neurons"
    assert "region_ratio" in ds.feature
    assert ds.upto.values.tolist() == [1]
    traces["s003"]["regions"] = []
    ds = predict_unfaithful(write_run(tmp_path / "but-one", traces), minimum=5)
    assert ds.attrs["features_left_out"] == f"visual_slope, region_ratio, {others}, active_neurons"
    assert ds.n == 16


def test_runs_that_cannot_be_analysed_are_refused(tmp_path):
    with pytest.raises(mp.InputError, match="no finished samples"):
        predict_unfaithful(write_run(tmp_path / "empty", {}))
    few = write_run(tmp_path / "few", noise_traces(12))
    with pytest.raises(
        NotApplicable, match=r"6 unfaithful and 6 faithful samples, 20 of each.*labels\.jsonl"
    ):
        predict_unfaithful(few)
    with pytest.raises(NotApplicable, match="7 of each are needed"):
        predict_unfaithful(few, minimum=2, folds=7)
    for wrong in ({"minimum": 1}, {"folds": 1}):
        with pytest.raises(mp.InputError, match="2 or more"):
            predict_unfaithful(few, **wrong)
    unlabelled = noise_traces(12)
    for trace in unlabelled.values():
        trace["faithful"] = None
    with pytest.raises(NotApplicable, match="0 unfaithful and 0 faithful"):
        predict_unfaithful(write_run(tmp_path / "unlabelled", unlabelled))
    with pytest.raises(NotApplicable, match="over 2 sets of images, 5 folds need 5"):
        predict_unfaithful(write_run(tmp_path / "same", noise_traces(12, same_image=6)), minimum=5)


def test_figures(prediction):
    titles = []
    for panel in panels(prediction):
        titles.append(panel.title)
        assert "n = 40 samples, 20 unfaithful and 20 faithful, over 20 image sets" in panel.caption
        assert "over sets of images" in panel.caption
        assert panel.figure.layout.xaxis.title.text
    assert len(titles) == 3
    curve = panels(prediction)[0].figure.data[1]
    area = np.trapezoid(curve.y, curve.x)
    assert area == pytest.approx(prediction.auc.item()), "the drawn area is the reported AUC"


@pytest.mark.exhaustive
def test_on_a_model(tiny_spd, tmp_path):
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", n=6, seed=3, differences=(1, 3)))
    chosen = [sample for sample in samples if sample.metadata["type"] in ("same", "different")]
    chosen = [sample.model_copy(update={"faithful": number % 2 == 0}) for number, sample in enumerate(chosen)]
    run = mp.trace(tiny_spd, chosen, tmp_path / "run", capture="full", max_new_tokens=8)
    ds = predict_unfaithful(run, minimum=5)
    assert ds.attrs["features_left_out"] == "", "the full capture has the data of every feature"
    assert (ds.n, ds.n_pictures, ds.attrs["n_left_out"]) == (12, 6, 0)
    assert ds.n_by_step[0] == 12
    assert np.isfinite(ds.value).all()
    share = run[ds.sample.values[0]].attention_mass.sel(group="visual").mean().item()
    assert ds.value.sel(feature="visual_share")[0].item() == pytest.approx(share, rel=1e-5)
