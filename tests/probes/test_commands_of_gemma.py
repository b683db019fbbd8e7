"""Lenses, heads and features by command, on a tiny random Gemma 3 in a folder: a family with norms after each part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.command_line import run_in_process
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.models.dictionaries import Dictionary, save_dictionary

HIDDEN, FEATURES = 64, 24


def call(*arguments: object) -> str:
    done = run_in_process(*arguments)
    assert done.code == 0, f"{arguments}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    model = load_tiny_model("gemma3")
    assert model.hf.config.get_text_config().hidden_size == HIDDEN
    model.hf.save_pretrained(folder / "model")
    model.processor.save_pretrained(folder / "model")
    config = folder / "model" / "tokenizer_config.json"
    tokens = {f"{name}_token": getattr(model.tokenizer, f"{name}_token") for name in ("boi", "eoi", "image")}
    config.write_text(json.dumps(json.loads(config.read_text()) | tokens))  # as in Gemma's own
    rng = torch.Generator().manual_seed(0)
    down = torch.nn.functional.normalize(torch.randn(FEATURES, HIDDEN, generator=rng), dim=-1)
    weights = {
        "W_enc": down.T.contiguous(),
        "b_enc": torch.zeros(FEATURES),
        "W_dec": down,
        "b_dec": torch.zeros(HIDDEN),
    }
    point = ("resid_post", 0)  # before the layer whose attention has no window
    save_dictionary(Dictionary("it", "standard", point, point, weights), folder / "dictionary")
    call("make-pairs", "--source", "synthetic", "--out", folder / "pairs", "--n", 4, "--seed", 3)
    lines = [json.loads(line) for line in (folder / "pairs" / "samples.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["metadata"]["type"] in ("same", "colour")]
    (folder / "pairs" / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    call("trace", "--model", folder / "model", "--data", folder / "pairs" / "some.jsonl", "--out", folder / "run",
         "--max-new-tokens", 3)  # fmt: skip
    return folder


@pytest.mark.exhaustive
def test_lenses_rankings_and_features_run_and_are_in_the_report(folder):
    model, run = ("--model", folder / "model"), folder / "run"
    call("analyze", run, "--only", "visual-tokens", *model)
    call("analyze", run, "--only", "head-ranking", *model, "--set", "by=attribution")
    call("analyze", run, "--only", "features", *model, "--set", f"dictionary={folder / 'dictionary'}")
    call("analyze", run, "--only", "feature-effects", *model, "--set", f"dictionary={folder / 'dictionary'}",
         "--set", "features=[3,4]")  # fmt: skip
    words = xr.open_dataset(run / "analyses" / "visual_tokens.nc")
    assert (
        np.isfinite(words.named).all()
        and np.isfinite(words.cell_auc).all()
        and words.lens.values.tolist() == ["logit", "jacobian", "linear"]
    )
    assert words.attrs["left_out"].startswith("nearest: "), "the model says line breaks alone"
    done = run_in_process("analyze", run, "--only", "visual-tokens", *model, "--set", 'lenses=["nearest"]')
    assert done.code == 2 and "lens nearest: " in done.stderr
    call("report", run, "--out", folder / "report.html")
    page = (folder / "report.html").read_text()
    for title in (
        "Words of a visual token",
        "Do visual tokens name",
        "Does the dictionary explain",
        "feature is changed?",
    ):
        assert title in page


@pytest.mark.exhaustive
def test_methods_change_heads_and_features_and_activations_are_written(folder):
    model, pairs = ("--model", folder / "model"), folder / "pairs"
    image = next((pairs / "images").iterdir())
    ask = (
        "generate",
        *model,
        "--image",
        image,
        "--prompt",
        "What colour is the star?",
        "--max-new-tokens",
        4,
        "--json",
    )
    plain = json.loads(call(*ask))["text"]
    heads = ("--method", "components", "--set", "components=head 0.1, ffn 1")
    features = (
        "--method",
        "features",
        "--set",
        f"dictionary={folder / 'dictionary'}",
        "--set",
        "features=1,2",
    )
    assert json.loads(call(*ask, *heads, "--set", "scale=1"))["text"] == plain, "scale 1 is exact"
    assert json.loads(call(*ask, *features, "--set", "action=steer", "--set", "value=0"))["text"] == plain
    far = ("--set", "action=clamp", "--set", "value=30", "--set", "tokens=visual")
    said = {}
    for name, method in (("plain", ()), ("heads", heads), ("clamped", (*features, *far))):
        call(
            "trace",
            *model,
            "--data",
            pairs / "some.jsonl",
            "--limit",
            2,
            "--max-new-tokens",
            3,
            *method,
            "--out",
            folder / name,
        )
        said[name] = np.concatenate(
            [each.attention_mass.values.ravel() for each in mp.open_run(folder / name)]
        )
    assert np.abs(said["heads"] - said["plain"]).max() > 1e-3 < np.abs(said["clamped"] - said["plain"]).max()
    call("bench", "pope", *model, *heads, "--n", 6, "--max-new-tokens", 3, "--out", folder / "pope")
    written = call(
        "activations",
        folder / "run",
        *model,
        "--hooks",
        "blocks.1.hook_resid_post",
        "--out",
        folder / "shards",
    )
    assert "shards" in written
    planned = json.loads(
        call("plan", *model, "--samples", 10, "--dictionary", folder / "dictionary", "--json")
    )
    assert planned["features"]["memory"] == 4 * (2 * FEATURES * HIDDEN + FEATURES + HIDDEN)
