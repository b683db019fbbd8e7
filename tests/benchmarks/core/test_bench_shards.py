"""Benchmarks in shards and by workers: the result of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.asking import ask
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models.loading import load_shapes
from mmprobe.models.reading import repeated_keys
from mmprobe.traces import RayActors
from mmprobe.traces.asking import LocalModel


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("pairs") / "pairs", n=3, seed=5)


def bench(data: Path, out: Path, *options: object) -> tuple[object, ...]:
    """The arguments of `mmprobe bench`."""
    command = ("bench", "spd-faith", "--model", "tiny-spd", "--device", "cpu", "--data", data, "--out", out)
    return (*command, "--max-new-tokens", 12, "--json", *options)


def read_files(out: Path) -> dict[str, str]:
    return {name: (out / name).read_text() for name in ("asked.json", "responses.jsonl", "samples.jsonl")}


@pytest.mark.slow
@pytest.mark.parametrize("options", first_fast([("--trace",), ()]), ids=["trace", "plain"])
def test_shards_make_the_result_of_one_process(data, tmp_path, options):
    whole = read_result(run_in_process(*bench(data, tmp_path / "whole", "--batch-size", 2, *options)))
    out = tmp_path / "parts"
    command = bench(data, out, "--batch-size", 2, *options)
    assert read_result(run_in_process(*command, "--shard", "2/2")) == {"shard": "2/2", "whole": False}
    assert_fails(run_in_process("merge", out), "not finished: 1-of-2")
    result = read_result(run_in_process(*command, "--shard", "1/2"))
    assert result["metrics"] == whole["metrics"]
    assert read_files(out) == read_files(tmp_path / "whole")
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
    if options:
        assert mp.open_run(out / "run").ids == mp.open_run(tmp_path / "whole" / "run").ids
        assert (out / "run" / "labels.jsonl").read_text() == (tmp_path / "whole/run/labels.jsonl").read_text()
    assert_fails(run_in_process(*command, "--shard", "1/2"), "already contains answers")


@pytest.mark.slow
def test_a_merge_of_answers_is_scored_by_resuming(data, tmp_path, monkeypatch):
    out = tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr("mmprobe.traces.shards.merge_shards", lambda out: None)
        for shard in ("1/2", "2/2"):
            assert read_result(run_in_process(*bench(data, out, "--shard", shard)))["whole"] is False
    n_answers = read_result(run_in_process("merge", out, "--json"))["answers"]
    before = (out / "responses.jsonl").read_bytes()
    assert n_answers == before.count(b"\n") > 3 and not (out / "shards").exists()
    assert read_result(run_in_process(*bench(data, out, "--resume")))["metrics"]
    assert (out / "responses.jsonl").read_bytes().startswith(before)


def test_shards_need_data_that_is_there(tmp_path):
    command = ("bench", "spd-faith", "--model", "tiny-spd", "--out", tmp_path / "out", "--shard", "1/2")
    assert_fails(run_in_process(*command), "--shard: needs --data")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_questions_about_the_same_images_share_their_prefix(tiny_spd, data, monkeypatch):
    samples = mp.load_samples(data)[:9]
    read, read_tokens = [], mp.models.reading.read_tokens
    monkeypatch.setattr(
        "mmprobe.models.reading.read_tokens", lambda *args: read.append(args) or read_tokens(*args)
    )
    shared = ask(tiny_spd, samples, 6)
    assert len(read) == len(repeated_keys(samples)) < len(samples) / 2, "one for each pair of images"
    assert ask(tiny_spd, samples, 6, 4) == shared
    read.clear()
    noisy = ask(tiny_spd, samples, 6, method="vcd")
    assert len(read) == 2 * len(repeated_keys(samples)), "and one with noise"
    read.clear()
    assert ask(tiny_spd, samples, 6, shared_prefix=False) == shared
    assert ask(tiny_spd, samples, 6, method="vcd", shared_prefix=False) == noisy
    assert not read, "--no-shared-prefix reads whole prompts"


@pytest.mark.stress
def test_workers_answer_as_one_process_does(tiny_spd, data):
    samples = mp.load_samples(data)
    shapes = load_shapes("tiny-spd", device="cpu")
    answers = ask(LocalModel(shapes, RayActors("local", 2, "cpu")), samples, {"other": 6}, 2)
    expected = ask(tiny_spd, samples, {"other": 6}, 2)
    assert answers == expected
    flags = [{name: text.truncated for name, text in each.items()} for each in (answers, expected)]
    assert flags[0] == flags[1] and json.dumps(flags)
