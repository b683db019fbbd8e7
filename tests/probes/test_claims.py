"""The interventions that the claims imply: on the hand-built toy, and against plain forward hooks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.causal_toy import answer_id, build_toy, draw_sample, own_logits
from helpers.command_line import run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.probes import claim_interventions
from mmprobe.probes.answers import read_answer
from mmprobe.probes.claims import exchange_images, lose_updates, move_regions
from mmprobe.samples import Region, read_image


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory) -> mp.Run:
    """Return a labelled run of short answers on two pairs, one of which is labelled as unfaithful."""
    folder = tmp_path_factory.mktemp("claims")
    samples = mp.load_samples(make_pairs(folder / "pairs", n=2, seed=1_000_400, differences=(1, 1)))
    samples = [sample for sample in samples if sample.metadata["type"] in ("same", "count")]
    run = mp.trace(tiny_spd, samples, folder / "run", capture="full", max_new_tokens=8, batch_size=3)
    labels = [{"id": name, "faithful": name != run.ids[0]} for name in run.ids]
    (folder / "run" / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    return mp.open_run(folder / "run")


def test_exchanged_images_of_the_toy(tmp_path):
    """The patch is all that differs, so nothing is lost beside it."""
    toy, red, blue = build_toy(), draw_sample(tmp_path, "red"), draw_sample(tmp_path, "blue")
    run = mp.trace(toy, [red], tmp_path / "run", max_new_tokens=1)
    others = [read_image(path, "") for path in blue.images]
    found = exchange_images(toy, run[red.id], others, np.random.default_rng(0))
    token = answer_id(toy.tokenizer, "red")
    own, other = (own_logits(toy, sample).log_softmax(-1)[token] for sample in (red, blue))
    assert found["interchange"] == pytest.approx(float(own - other), abs=1e-5) and found["interchange"] > 4
    assert found["regions"] == pytest.approx(found["interchange"]) and found["elsewhere"] == 0
    assert np.isnan(found["interchange_slope"])  # one step has no slope


def test_places_beside_regions_overlap_nothing():
    boxes = [Region(image=0, box=(28, 28, 28, 56)), Region(image=0, box=(0, 0, 28, 28))]
    corners = set()
    for seed in range(30):
        moved = move_regions(boxes, [(84, 84)], np.random.default_rng(seed))
        pixels = np.zeros((84, 84), int)
        for x, y, width, height in (region.box for region in (*boxes, *moved)):
            pixels[y : y + height, x : x + width] += 1
        assert pixels.max() == 1 and pixels.sum() == 2 * (28 * 56 + 28 * 28)
        corners.add(tuple(region.box[:2] for region in moved))
    assert len(corners) > 4  # they are drawn
    whole = [Region(image=0, box=(0, 0, 84, 84))]
    assert move_regions(whole, [(84, 84)], np.random.default_rng(0)) == []


def test_updates_are_replaced_by_the_mean_over_all_queries(tiny_spd, run):
    """Against torch hooks on the sublayers, for answers of different lengths and two layers at once."""
    traces = [run[name] for name in run.ids[:2]]
    answers = [(trace.sample, trace.steps["id"].values.tolist()) for trace in traces]
    assert len(answers[0][1]) != len(answers[1][1])
    layers = [tiny_spd.n_layers - 2, tiny_spd.n_layers - 1]
    found = lose_updates(tiny_spd, answers, layers)
    modules = tiny_spd.family.decoder(tiny_spd.hf).layers
    for kind, part in (("attention", "self_attn"), ("ffn", "mlp")):
        expected = replace_by_means(tiny_spd, answers, [getattr(modules[layer], part) for layer in layers])
        np.testing.assert_allclose(found[kind], expected, atol=1e-4)
        assert abs(found[kind]).min() > 0.01


def replace_by_means(model, answers, sublayers) -> list[float]:
    """Return what each answer loses, in the plainest way."""
    readings = [read_answer(model, sample, ids) for sample, ids in answers]
    rows: dict[int, list[torch.Tensor]] = {}
    steps = 0

    def hook(number, replacement):
        def act(module, args, output):
            value = output[0] if isinstance(output, tuple) else output
            if replacement is None:
                rows.setdefault(number, []).extend(value[0, -steps - 1 : -1])
            else:
                value[0, -steps - 1 : -1] = replacement
            return output

        return act

    def read(reading, replacements) -> float:
        handles = [m.register_forward_hook(hook(n, replacements.get(n))) for n, m in enumerate(sublayers)]
        logprob = float(reading.logprobs()[0].mean())
        for handle in handles:
            handle.remove()
        return logprob

    own = []
    for reading in readings:
        steps = len(reading.row.ids)
        own.append(read(reading, {}))
    means = {number: torch.stack(values).mean(0) for number, values in rows.items()}
    losses = []
    for reading, before in zip(readings, own, strict=True):
        steps = len(reading.row.ids)
        losses.append(before - read(reading, means))
    return losses


@pytest.mark.slow
def test_the_chosen_answers_stand_for_the_run(tiny_spd, run):
    ds = claim_interventions(tiny_spd, run, answers=2)
    assert ds.sizes["sample"] == 2 and run.ids[0] in ds["sample"]  # the unfaithful answer
    assert ds.weight.sel(sample=run.ids[0]) == 1 and ds.weight.sum() == len(run)
    assert "no rule reads" in ds.attrs["note"] and "faithful_before" not in ds
    every = claim_interventions(tiny_spd, run, answers=99)
    assert every["sample"].values.tolist() == run.ids and (every.weight == 1).all()
    whole = mp.probes.image_interchange_run(tiny_spd, run, ["unrelated"])
    np.testing.assert_allclose(every.interchange, whole.effect_per_token, atol=1e-5)
    np.testing.assert_allclose(every.interchange_slope, whole.slope, atol=1e-5)
    one = whole.effect_by_region.notnull().sum("region") == 1
    np.testing.assert_allclose(every.regions[one], whole.effect_by_region.isel(region=0)[one], atol=1e-4)


@pytest.mark.slow
def test_an_intervention_of_strength_0_changes_no_answer(tiny_spd, run):
    asked = []

    def check(text, sample):
        asked.append((sample.id, text))
        return None if sample.id == run.ids[1] else "No" in text

    ds = claim_interventions(tiny_spd, run, check, answers=4, alpha=0, beta=1, batch_size=3)
    answers = [run[name].answer for name in ds["sample"].values]
    assert ds.answer_attention.values.tolist() == ds.answer_ffn.values.tolist() == answers
    assert len(asked) == 3 * 4 and ds.attrs["note"] == ""
    for name in ("faithful_before", "faithful_attention", "faithful_ffn"):
        expected = [
            np.nan if each == run.ids[1] else float("No" in run[each].answer) for each in ds["sample"].values
        ]
        np.testing.assert_array_equal(ds[name], expected)
    strong = claim_interventions(tiny_spd, run, check, answers=1, alpha=5, beta=0)
    plain = ds.sel(sample=strong["sample"])
    assert (strong.answer_attention != plain.answer_attention).all()
    assert (strong.answer_ffn != plain.answer_ffn).all()


def test_sampled_answers_are_not_asked_again(tiny_spd, run):
    run.config["generate"]["temperature"] = 0.7
    ds = claim_interventions(tiny_spd, run, lambda text, sample: True, answers=1)
    run.config["generate"]["temperature"] = 0.0
    assert "sampled" in ds.attrs["note"] and "faithful_attention" not in ds


@pytest.mark.slow
def test_the_command_writes_both_halves(run, tmp_path: Path):
    result = run_in_process("analyze", run.path, "--only", "findings", "--out", tmp_path / "out")
    assert result.code == 0 and "--model MODEL" in result.stderr
    files = [tmp_path / "out" / f"{name}.nc" for name in ("findings", "claim_interventions")]
    assert files[0].exists() and not files[1].exists()
    result = run_in_process(
        "analyze", run.path, "--only", "findings", "--model", "tiny-spd", "--set", "answers=4",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    with xr.open_dataset(files[0], engine="h5netcdf") as ds:
        assert "undecided" in ds.causal_verdict.values and "not measured" not in ds.causal_verdict.values
    with xr.open_dataset(files[1], engine="h5netcdf") as ds:
        assert ds.sizes["sample"] == 4 and ds.faithful_before.sum() > 0
    result = run_in_process("analyze", run.path, "--only", "findings", "--set", "answers=4")
    assert result.code == 2 and "give it with --model" in result.stderr
