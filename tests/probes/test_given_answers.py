"""Probes of a run read answers that come from elsewhere, from files as people make them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.probes import (
    attention_knockout_run,
    attention_routes_run,
    circuit_run,
    image_interchange,
    image_interchange_run,
    patch_components_run,
)
from mmprobe.samples import load_samples


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory) -> Run:
    """Return a run of four answers about two pairs of images, which are labelled."""
    folder = tmp_path_factory.mktemp("given")
    every = load_samples(make_pairs(folder / "pairs", n=2, seed=1_000_411))
    samples = [sample for sample in every if sample.metadata["type"] in ("same", "different")]
    samples = [sample.model_copy(update={"faithful": True}) for sample in samples]
    return mp.trace(tiny_spd, samples, folder / "run", max_new_tokens=5)


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_given_answers_are_read_in_place_of_the_runs(tiny_spd, run, tmp_path):
    """JSON lines with more keys than are needed, in another order, one sample left out, one that is not in the run."""
    ids = run.ids
    texts = {name: f"No, {number} of them." for number, name in enumerate(ids[:-1])}
    lines = [
        {"response": text, "id": name, "model": "openai/x", "usage": {"tokens": 9}}
        for name, text in texts.items()
    ]
    file = write(tmp_path / "answers.jsonl", [*reversed(lines), {"id": "elsewhere", "response": "Yes."}])
    ds = image_interchange_run(tiny_spd, run, ["unrelated"], answers=file)
    assert ds.sample.values.tolist() == ids[:-1] and ds.attrs["left_out"] == ids[-1]
    assert ds.attrs["unread"].startswith(f"{ids[-1]}: ") and ds.attrs["n_unread"] == 1
    assert ds.attrs["answers"] == str(file)
    assert ds.n_label.sel(label="faithful") == 0, "a label is of the answer that the run recorded"
    samples = [run.sample(name) for name in ids]
    expected = image_interchange_run(tiny_spd, samples[:-1], ["unrelated"], answers=texts)
    own = image_interchange_run(tiny_spd, run, ["unrelated"])
    np.testing.assert_allclose(ds.effect_per_token, expected.effect_per_token, atol=1e-5)
    assert np.abs(ds.effect_per_token.values - own.effect_per_token.values[:-1]).max() > 1e-3
    assert "unread" not in own.attrs and own.n_label.sel(label="faithful") == len(ids)


def test_the_answers_of_a_run_are_its_own_whichever_way_they_come(tiny_spd, run):
    for probe, options in (
        (patch_components_run, {"kind": "ffn"}),
        (attention_knockout_run, {"layers": [3]}),
        (attention_routes_run, {"queries": ["steps"], "window": 4}),
    ):
        own, given = (probe(tiny_spd, run, **options, **more) for more in ({}, {"answers": run}))
        name = next(name for name in ("effect", "change_per_token") if name in own)
        np.testing.assert_array_equal(given[name], own[name])
        assert given.attrs["answers"] == str(run.path)


def test_answers_that_cannot_be_are_named(tiny_spd, run, tmp_path):
    end = next(iter(tiny_spd.eos_token_ids))
    ids = run.ids
    lines = [
        {"id": ids[0], "response": "Yes." + tiny_spd.tokenizer.decode([end]) + " No."},
        {"id": ids[1], "token_ids": [10**6]},
        {"id": ids[2], "response": "No."},
        {"id": ids[3], "response": ""},
    ]
    file = write(tmp_path / "answers.jsonl", lines)
    ds = attention_knockout_run(tiny_spd, run, layers=[0], answers=file, finished=tmp_path / "finished")
    assert ds.sample.values.tolist() == [ids[2]] and ds.attrs["n_unread"] == 3
    for words in ("holds the special token", "token ids that the model lacks", "the given answer is empty"):
        assert words in ds.attrs["unread"]
    again = attention_knockout_run(tiny_spd, run, layers=[0], answers=file, finished=tmp_path / "finished")
    assert again.attrs == ds.attrs, "what is kept is named, too"
    others = write(tmp_path / "others.jsonl", [{"id": ids[2], "response": "Yes."}])
    changed = attention_knockout_run(
        tiny_spd, run, layers=[0], answers=others, finished=tmp_path / "finished"
    )
    assert (changed.change_per_token != ds.change_per_token).any(), "what is kept is of another answer"
    with pytest.raises(InputError, match="any of the 4 samples"):
        circuit_run(tiny_spd, run, answers=write(tmp_path / "none.jsonl", [{"id": "x", "response": "Yes."}]))


def test_the_command_reads_the_results_of_a_benchmark(tiny_spd, run, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    write(
        results / "responses.jsonl",
        [{"id": name, "response": "No.", "question_type": "a"} for name in run.ids],
    )
    command = [
        "analyze",
        run.path,
        "--only",
        "image-interchange",
        "--model",
        "tiny-spd",
        "--answers",
        results,
    ]
    assert_fails(run_in_process(*command), "--answers: give --only, --model and --out")
    made = run_in_process(*command, "--out", tmp_path / "out")
    assert made.code == 0, made.stderr
    attrs = json.loads((tmp_path / "out" / "image_interchange.json").read_text())["attrs"]
    assert attrs["answers"] == str(results) and attrs["samples"] == len(run.ids)
    first, other = run.sample(run.ids[0]), run.sample(run.ids[-1])
    assert image_interchange(tiny_spd, first, other, answer="No.").attrs["answer"] == "No."
    command[3] = "logit-lens"
    assert_fails(
        run_in_process(*command, "--out", tmp_path / "out"), "logit-lens reads what was traced; it is for"
    )
