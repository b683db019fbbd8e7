"""What dictionaries explain, attribution and effects of features, against formulas by hand and a planted feature."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.models.dictionaries import Dictionary, load_dictionary, save_dictionary
from mmprobe.models.reading import Reading
from mmprobe.probes.answer_records import RunAnswer
from mmprobe.probes.features import run as module
from mmprobe.probes.features.run import TokenStates, find_dictionary, read_states
from mmprobe.viz.figures.features import effect_panels, panels


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    drawn = mp.load_samples(make_pairs(tmp_path_factory.mktemp("drawn") / "pairs", n=3, seed=11))
    return [sample for sample in drawn if sample.metadata["type"] in ("colour", "same")]


@pytest.fixture(scope="module")
def run(tiny_spd, samples, tmp_path_factory):
    capture = mp.CaptureSpec(datasets=["residual/post"], positions="all", dtype="float32")
    return mp.trace(
        tiny_spd, samples, tmp_path_factory.mktemp("runs") / "run", capture=capture, max_new_tokens=12
    )


def test_traces_and_readings_have_the_same_states(tiny_spd, run):
    dictionary = load_dictionary("tiny-spd")
    answers = [RunAnswer(trace.sample, trace.steps["id"].values.tolist(), None) for trace in run]
    traced, read = (read_states(tiny_spd, dictionary, source, answers) for source in (run, ()))
    for one, other in zip(traced, read, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.group.tolist() == other.group.tolist()
        torch.testing.assert_close(one.read, other.read, atol=2e-3, rtol=2e-3)
        assert (one.group == 0).sum() == len(one.prompt.visual_positions) and (one.group == 2).any()


def test_the_fit_is_that_of_the_formulas(tiny_spd, run):
    ds = mp.probes.features_run(tiny_spd, run, "tiny-spd")
    dictionary = load_dictionary("tiny-spd")
    answers = [RunAnswer(trace.sample, trace.steps["id"].values.tolist(), None) for trace in run]
    states = read_states(tiny_spd, dictionary, (), answers)
    for number, group in enumerate(("visual", "text", "generated")):
        x = torch.cat([each.read[torch.from_numpy(each.group == number)] for each in states]).double()
        z = dictionary.encode(x.float())
        error = (dictionary.decode(z, x.float()) - x).pow(2).sum()
        own = ds.sel(group=group)
        assert own.n_tokens.item() == len(x)
        explained = 1 - float(error / (x - x.mean(0)).pow(2).sum())
        assert own.explained.item() == pytest.approx(explained, abs=2e-3)
        assert own.explained_low.item() <= own.explained.item() <= own.explained_high.item()
        assert own.l0.item() == pytest.approx(float((z > 0).double().sum(-1).mean()), abs=0.05)
        assert own.dead.item() == pytest.approx(float((z == 0).all(0).double().mean()), abs=0.01)
        np.testing.assert_allclose(own.density.values, (z > 0).double().mean(0).numpy(), atol=0.02)
    assert ds.sizes["shown"] == 8 and (ds.top_group.isel(place=0) == "visual").any()
    for number in range(8):
        values = ds.top_activation.values[number]
        values = values[np.isfinite(values)]
        assert (np.diff(values) <= 0).all() and len(values)
    assert len(panels(ds)) == 2


def test_a_sink_token_is_left_out_and_counted(tiny_spd, samples, monkeypatch, tmp_path):
    """The first token of each prompt gets 500 times its norm, as real decoders write it; the others are as they were."""
    dictionary = load_dictionary("tiny-spd")
    seen: list[TokenStates] = []

    def read(*arguments):
        states = read_states(*arguments)
        for each in states:
            each.read[0] *= 500  # write is the same tensor
        seen.extend(states)
        return states

    monkeypatch.setattr(module, "read_states", read)
    ds = mp.probes.features_run(tiny_spd, samples, "tiny-spd")
    x = torch.cat([each.read[1:][torch.from_numpy(each.group[1:] == 1)] for each in seen]).double()
    error = (dictionary.decode(dictionary.encode(x.float()), x.float()) - x).pow(2).sum()
    own = ds.sel(group="text")
    assert own.explained.item() == pytest.approx(1 - float(error / (x - x.mean(0)).pow(2).sum()), abs=2e-3)
    assert ds.n_sinks.values.tolist() == [0, len(samples), 0] and own.n_tokens.item() == len(x)
    assert f"{len(samples)} sink tokens" in panels(ds)[0].caption
    kept = mp.probes.features_run(tiny_spd, samples, "tiny-spd", sinks=float("inf")).sel(group="text")
    assert abs(kept.explained.item() - own.explained.item()) > 0.01 and kept.n_sinks.item() == 0
    with pytest.raises(InputError, match="sinks 1"):
        mp.probes.features_run(tiny_spd, samples, "tiny-spd", sinks=1)


def test_sinks_are_not_written_for_training(tiny_spd, run, monkeypatch, tmp_path):
    """A threshold just above the median makes sinks of ordinary tokens; they are those of the largest norms."""
    datasets = pytest.importorskip("datasets")
    hooks = ["blocks.3.hook_resid_post"]
    written = mp.probes.write_activations(tiny_spd, run, tmp_path / "some", hooks, context=1, sinks=1.05)
    every = mp.probes.write_activations(tiny_spd, run, tmp_path / "all", hooks, context=1, sinks=float("inf"))
    assert 0 < written.sinks == every.rows - written.rows and every.sinks == 0
    answers = [RunAnswer(trace.sample, trace.steps["id"].values.tolist(), None) for trace in run]
    norms = [
        each.read.norm(dim=1) for each in read_states(tiny_spd, load_dictionary("tiny-spd"), (), answers)
    ]
    count = sum(int((each > 1.05 * each.median()).sum()) for each in norms)
    assert abs(written.sinks - count) <= 3, "rounding may move a token that is near the threshold"
    loaded = datasets.load_from_disk(str(written.folder)).with_format("numpy")
    largest = np.linalg.norm(np.concatenate(list(loaded[hooks[0]])), axis=-1).max()
    assert largest <= 1.05 * max(float(each.median()) for each in norms) * 1.01


def test_a_dictionary_of_another_point_does_not_explain(tiny_spd, samples, tmp_path):
    known = load_dictionary("tiny-spd")
    moved = Dictionary(
        "", "topk", ("resid_post", 7), ("resid_post", 7), known.weights, known.k, subtracts_bias=True
    )
    folder = str(save_dictionary(moved, tmp_path / "moved"))
    ds = mp.probes.features_run(tiny_spd, samples, folder)
    assert float(ds.explained.sel(group="visual")) < 0.5


def test_a_feature_of_the_label_is_told_and_noise_is_not(tiny_spd, tmp_path):
    """The label is a planted direction: whether the image has a heart. Shuffled labels tell nothing."""
    drawn = [
        sample
        for sample in mp.load_samples(make_pairs(tmp_path / "pairs", n=40, seed=12))
        if sample.metadata["type"] == "describe"
    ]
    has = ["heart" in str(sample.metadata["objects"][0]) for sample in drawn]
    labelled = [s.model_copy(update={"faithful": not own}) for s, own in zip(drawn, has, strict=True)]
    assert 10 < sum(has) < 30
    ds = mp.probes.features_run(tiny_spd, labelled)
    told = np.argwhere(ds.told.values)
    assert len(told) and (told[:, 0] == 0).any() and float(ds.told_difference.values[tuple(told[0])]) != 0
    mixed = np.random.default_rng(0).permutation(has)
    shuffled = [s.model_copy(update={"faithful": bool(own)}) for s, own in zip(drawn, mixed, strict=True)]
    assert not mp.probes.features_run(tiny_spd, shuffled).told.any()


def test_attribution_is_the_gradient_times_the_activation(tiny_spd, samples, tmp_path):
    """With a feature in the last layer's stream the effect of a small change is the attribution's share of it."""
    sample = next(sample for sample in samples if sample.metadata["type"] == "colour")
    ds = mp.probes.attribute_features(tiny_spd, sample, step=3)
    dictionary = load_dictionary("tiny-spd")
    best = int(np.abs(ds.attribution.sel(group="visual").values).argmax())
    reading = Reading(tiny_spd, tiny_spd.batch([sample]), [tiny_spd.tokenizer(sample.answer)["input_ids"]])
    token, visual = int(reading.row.ids[3]), torch.from_numpy(reading.row.prompt.visual_positions)

    def lead(scale: float) -> float:
        def change(value: torch.Tensor) -> torch.Tensor:
            z = dictionary.encode(value)[..., best : best + 1]
            added = torch.zeros_like(value)
            added[:, visual] = (scale * z * dictionary.weights["W_dec"][best])[:, visual]
            return value + added

        logits = reading.logits({("resid_post", 3): change})[0, 3].double()
        others = logits.clone()
        others[token] = -torch.inf
        return float(logits[token] - others.max())

    with torch.no_grad():
        slope = (lead(0.01) - lead(-0.01)) / 0.02
    assert float(ds.attribution.sel(group="visual")[best]) == pytest.approx(slope, rel=0.05)
    assert ds.attrs["token"].strip() in sample.answer


def test_effects_are_those_of_the_changed_stream(tiny_spd, samples):
    sample = next(sample for sample in samples if sample.metadata["type"] == "colour")
    attributed = mp.probes.attribute_features(tiny_spd, sample, step=3).attribution.sum("group")
    first = attributed.values.argsort()[::-1][:2].tolist()
    ds = mp.probes.feature_effects(tiny_spd, sample, first, action="steer", value=-40.0)
    dictionary = load_dictionary("tiny-spd")
    reading = Reading(tiny_spd, tiny_spd.batch([sample]), [tiny_spd.tokenizer(sample.answer)["input_ids"]])
    plain = reading.logprobs()[0]
    for number, feature in enumerate(first):
        added = -40.0 * dictionary.weights["W_dec"][feature]
        changed = reading.logprobs({("resid_post", 3): lambda value, added=added: value + added})[0]
        np.testing.assert_allclose(ds.effect.values[number], (plain - changed).numpy(), atol=2e-3)
    assert np.abs(ds.effect.values).max() > 0.01
    none = mp.probes.feature_effects(tiny_spd, sample, first, action="steer", value=0.0)
    assert not none.effect.values.any()


def test_effects_over_answers_are_those_of_single_ones(tiny_spd, samples, run, tmp_path):
    """Half of the answers are told by a feature of what they show; the mean is over all, the interval over images."""
    asked = [sample for sample in samples if sample.metadata["type"] == "colour"]
    attributed = mp.probes.attribute_features(tiny_spd, asked[0], step=3).attribution.sum("group")
    numbers = [int(attributed.values.argmax()), 0]
    ds = mp.probes.feature_effects_run(tiny_spd, asked, numbers)
    single = [mp.probes.feature_effects(tiny_spd, each, numbers) for each in asked]
    np.testing.assert_allclose(ds.effect_by_sample, [each.effect.sum("step") for each in single], atol=1e-5)
    np.testing.assert_allclose(ds.effect, ds.effect_by_sample.mean("sample"))
    assert (
        ds.effect.values[0] > 0.1
        and (ds.effect_low <= ds.effect).all()
        and ds.n_effect.values.tolist() == [3, 3]
    )
    changed = [
        [any(a.strip() != b.strip() for a, b in zip(row, one.token.values, strict=True)) for row in one.likeliest.values]
        for one in single
    ]  # fmt: skip
    assert (ds.moved.values <= np.mean(changed, 0) + 1e-9).all(), "a token that changes anyway is not moved"
    none = mp.probes.feature_effects_run(tiny_spd, run, numbers, action="steer", value=0.0)
    assert not none.effect.values.any() and not none.moved.values.any()
    with pytest.raises(InputError, match="features: name some"):
        mp.probes.feature_effects_run(tiny_spd, asked)
    (panel,) = effect_panels(ds)
    assert "Mean over 3 answers" in panel.caption and len(panel.figure.data) == 2
    assert effect_panels(single[0])[0].figure.data[0].z.shape == single[0].effect.shape
    call = (
        "analyze",
        run.path,
        "--only",
        "feature-effects",
        "--model",
        "tiny-spd",
        "--out",
        tmp_path / "out",
    )
    assert run_in_process(*call, "--set", "features=[1,2]").code == 0
    assert (tmp_path / "out" / "feature_effects.nc").is_file()
    assert_fails(run_in_process(*call), "features: name some")


def test_what_is_not_there_is_refused(tiny_spd, samples, random_qwen):
    with pytest.raises(InputError, match="features: 512: .* 0 to 511"):
        mp.probes.feature_effects(tiny_spd, samples[0], [512])
    with pytest.raises(InputError, match="action 'kill': .* ablate, clamp, steer"):
        mp.probes.feature_effects(tiny_spd, samples[0], [1], action="kill")
    with pytest.raises(InputError, match="step 99: .* steps 0 to"):
        mp.probes.attribute_features(tiny_spd, samples[0], step=99)
    with pytest.raises(InputError, match="features: -1: the dictionary has"):
        mp.probes.features_run(tiny_spd, samples[:2], features=[-1])
    with pytest.raises(InputError, match="dictionary 'tiny-spd': is of layer 3"):
        find_dictionary(random_qwen, "tiny-spd")


def test_activations_are_what_is_at_the_points_in_saelens_format(tiny_spd, run, tmp_path):
    datasets = pytest.importorskip("datasets")
    hooks = ["blocks.3.hook_resid_post", "blocks.1.attn.hook_z"]
    written = mp.probes.write_activations(
        tiny_spd, run, tmp_path / "shards", hooks, ["visual", "generated"], 16
    )
    loaded = datasets.load_from_disk(str(written.folder))
    assert len(loaded) == written.rows > 5 and written.answers == len(run) and not written.left_out
    assert loaded.features[hooks[0]].shape == (16, 192)  # what SAELens checks
    loaded.set_format("numpy")
    values = np.concatenate(list(loaded[hooks[0]]))
    answers = [RunAnswer(trace.sample, trace.steps["id"].values.tolist(), None) for trace in run]
    states = read_states(tiny_spd, load_dictionary("tiny-spd"), (), answers)
    kept = [each.read[torch.from_numpy(each.group != 1)].numpy() for each in states]
    ids = np.concatenate([each.ids[each.group != 1] for each in states])
    assert len(ids) == written.rows * 16 + written.dropped and written.dropped < 16
    np.testing.assert_allclose(values, np.concatenate(kept)[: len(values)], atol=2e-3)
    assert np.concatenate(list(loaded["token_ids"])).tolist() == ids[: len(values)].tolist()
    with pytest.raises(InputError, match="exists; choose another folder"):
        mp.probes.write_activations(tiny_spd, run, written.folder, hooks)
    for bad, message in (
        ({"hooks": ["blocks.9.hook_resid_post"]}, "is of layer 9; tiny-spd has layers 0 to 7"),
        ({"hooks": ["hook_embed"]}, "hook 'hook_embed' is not known"),
        ({"hooks": hooks, "groups": ["image"]}, "groups: 'image': choose visual, text, generated"),
        ({"hooks": hooks, "context": 10**6}, "fewer than 1000000 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            mp.probes.write_activations(tiny_spd, run, tmp_path / "other", **bad)
    assert not (tmp_path / "other").exists() and not (tmp_path / "other.part").exists()
    done = run_in_process(
        "activations",
        run.path,
        "--model",
        "tiny-spd",
        "--hooks",
        hooks[0],
        "--out",
        tmp_path / "cli",
        "--json",
    )
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["answers"] == len(run)
    again = run_in_process(
        "analyze", run.path, "--only", "features", "--model", "tiny-spd", "--set", "dictionary=gone"
    )
    assert_fails(again, "dictionary 'gone': no such folder")
