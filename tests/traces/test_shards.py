"""Shards: parts of a run that processes make without each other are, together, what one process makes."""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.datasets import read_datasets, write_samples
from helpers.killing import run_at_once
from PIL import Image

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.ledger import lock_folder
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.settings import Shard
from mmprobe.traces import shards as shards_module
from mmprobe.traces.shards import merge_shards, select_batches


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    """Questions about three sets of images in turn, one without images, and one whose image is gone."""
    sets = [image_paths[:2], image_paths[1:], image_paths[:1]]
    questions = ["Is there a star?", "What?", "Compare the two pictures, please.", "How many?"]
    asked = [
        Sample(id=f"s{index}", images=sets[index % 3], question=questions[index // 3]) for index in range(10)
    ]
    gone = Sample(id="gone", images=[image_paths[0].with_name("gone.png")], question="What?")
    return [*asked[:4], gone, Sample(id="alone", question="Hello?"), *asked[4:]]


def trace(model: Model, samples: list[Sample], out: Path, **options) -> mp.Run:
    return mp.trace(model, samples, out, capture="full", max_new_tokens=5, **options)


def assert_same(run: mp.Run, expected: mp.Run) -> None:
    """Check that two runs have the same bytes: the files beside the traces, and every data set."""
    for name in ("run.json", "failures.jsonl"):
        assert (run.path / name).read_bytes() == (expected.path / name).read_bytes()
    assert {path.name for path in run.path.iterdir()} == {"run.json", "failures.jsonl", "samples"}
    names = {path.name for path in (run.path / "samples").iterdir()}
    assert names == {path.name for path in (expected.path / "samples").iterdir()}
    for name in names:
        assert read_datasets(run.path / "samples" / name) == read_datasets(expected.path / "samples" / name)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2])
def test_shards_in_any_order_make_the_run_of_one_process(random_qwen, samples, tmp_path, batch_size):
    whole = trace(random_qwen, samples, tmp_path / "whole", batch_size=batch_size)
    out = tmp_path / "run"
    for index in (3, 1):
        part = trace(random_qwen, samples, out, batch_size=batch_size, shard=f"{index}/3")
        assert part.path == out / "shards" / f"{index}-of-3" and not (out / "run.json").exists()
    run = trace(random_qwen, samples, out, batch_size=batch_size, shard="2/3")
    assert run.path == out
    assert_same(run, whole)
    assert mp.verify(out) == []


@pytest.mark.slow
def test_a_damaged_trace_is_not_merged(random_qwen, samples, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(shards_module, "merge_if_last", lambda out: None)
    for index in (1, 2):
        trace(random_qwen, samples, out, shard=f"{index}/2")
    file = next((out / "shards" / "2-of-2" / "samples").iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(str(file))}: damaged"):
        merge_shards(out)
    assert not (out / "run.json").exists()
    trace(random_qwen, samples, out, shard="2/2", resume=True)
    merge_shards(out)
    assert mp.verify(out) == []


@pytest.mark.slow
def test_a_merge_that_was_stopped_is_made_again(random_qwen, samples, tmp_path, monkeypatch):
    whole = trace(random_qwen, samples, tmp_path / "whole")
    out = tmp_path / "run"
    monkeypatch.setattr(shards_module, "merge_shards", lambda out: None)
    for index in (1, 2):
        trace(random_qwen, samples, out, shard=f"{index}/2")
    monkeypatch.undo()
    moved, replace = [], os.replace

    def replace_some(source, target):
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(target)
        replace(source, target)

    monkeypatch.setattr(shards_module.os, "replace", replace_some)
    with pytest.raises(KeyboardInterrupt):
        merge_shards(out)
    monkeypatch.undo()
    assert not (out / "run.json").exists()
    finished = run_in_process("merge", out, "--json")
    assert finished.code == 1 and json.loads(finished.stdout)["failed"] == 1
    assert_same(mp.open_run(out), whole)


@pytest.mark.slow
def test_shards_that_finish_at_the_same_time_wait_for_each_other(random_qwen, samples, tmp_path):
    """Three processes end together. Each returns the whole run, or its own shard's."""
    out = tmp_path / "run"

    def trace_shard(index):
        run = mp.trace(random_qwen, samples[:3], out, max_new_tokens=2, shard=f"{index}/3")
        assert len(run) == (3 if run.path == out else 1)

    for _ in range(4):
        assert run_at_once([partial(trace_shard, index) for index in (1, 2, 3)], [0, 0, 0]) == [None] * 3
        assert len(mp.open_run(out)) == 3 and not (out / "shards").exists()
        shutil.rmtree(out)


@pytest.mark.slow
def test_shards_of_a_command_line(tmp_path, samples, random_qwen):
    data = write_samples(tmp_path / "samples.jsonl", [each for each in samples if each.id != "gone"])
    command = f"trace --model tiny-spd --data {data} --max-new-tokens 3 --out {tmp_path / 'run'}".split()
    first = read_result(run_in_process(*command, "--shard", "1/2", "--json"))
    assert first["run"] == str(tmp_path / "run" / "shards" / "1-of-2") and first["samples"] == first["traced"]
    assert_fails(run_in_process(*command), "contains shards; finish them")
    assert_fails(run_in_process(*command, "--shard", "1/3"), "contains another number of shards (1-of-2)")
    assert_fails(run_in_process("merge", tmp_path / "run"), "not finished: 2-of-2")
    with lock_folder(tmp_path / "run" / "shards" / "2-of-2", "tracing into it"):
        again = run_in_process(*command, "--shard", "2/2")
        assert_fails(again, f"2-of-2: process {os.getpid()} on host")
    second = read_result(run_in_process(*command, "--shard", "2/2", "--json"))
    assert second == {"run": str(tmp_path / "run"), "samples": 11, "traced": 11, "failed": 0}
    assert_fails(run_in_process(*command, "--shard", "2/2"), "already contains a run")
    assert_fails(run_in_process(*command, "--shard", "2/2", "--resume"), "is whole already")
    assert_fails(run_in_process("merge", tmp_path / "run"), "contains no shards to merge")


def test_shards_of_different_calls_are_not_merged(random_qwen, samples, tmp_path):
    for name, second in {"answers": {"seed": 1}, "samples": {}}.items():
        out = tmp_path / name
        mp.trace(random_qwen, samples[:3], out, max_new_tokens=2, shard="1/2")
        others = samples[:3] if second else samples[:2]
        run = mp.trace(random_qwen, others, out, max_new_tokens=2, shard="2/2", **second)
        assert run.path == out / "shards" / "2-of-2"
        with pytest.raises(
            InputError, match=r"another generate \(seed 0, now 1\) than|parts of different samples"
        ):
            merge_shards(out)
        shutil.rmtree(out)


def test_shards_that_saw_other_images_are_not_merged(random_qwen, image_paths, tmp_path, caplog):
    images = [Path(shutil.copy(path, tmp_path)) for path in image_paths[:2]]
    samples = [Sample(id=f"s{number}", images=[path], question="?") for number, path in enumerate(images)]
    begin = partial(mp.trace, random_qwen, samples, tmp_path / "run", max_new_tokens=2)
    begin(shard="1/2")
    Image.new("RGB", (56, 56), "red").save(images[0])
    begin(shard="2/2")
    expected = (
        r"1-of-2: the images of sample s0 changed since it was traced; start this shard with resume=True"
    )
    assert re.search(expected, caplog.text) and not (tmp_path / "run" / "run.json").exists()
    with pytest.raises(InputError, match=expected):
        merge_shards(tmp_path / "run")
    assert begin(shard="1/2", resume=True).ids == ["s0", "s1"]
    assert mp.verify(tmp_path / "run") == []


def test_shards_of_other_versions_are_merged_with_a_warning(random_qwen, samples, tmp_path, caplog):
    mp.trace(random_qwen, samples[:3], tmp_path / "run", max_new_tokens=2, shard="1/2")
    file = tmp_path / "run" / "shards" / "1-of-2" / "run.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"versions": config["versions"] | {"torch": "1.0"}}))
    caplog.clear()
    assert len(mp.trace(random_qwen, samples[:3], tmp_path / "run", max_new_tokens=2, shard="2/2")) == 3
    (line,) = [line for line in caplog.messages if "digits may differ" in line]
    assert re.search(r"2-of-2: .* torch [\d.+a-z]+, .* 1\.0", line)


def test_every_sample_is_in_one_shard_and_groups_stay_whole(samples):
    batches = [[sample] for sample in samples]
    for count in (1, 2, 3, 5, 20):
        parts = [select_batches(Shard(index, count), batches) for index in range(1, count + 1)]
        ids = [[batch[0].id for batch in part] for part in parts]
        assert sorted(sum(ids, [])) == sorted(sample.id for sample in samples)
        for first in range(3):  # s0, s3, s6 and s9 show the same images
            group = {f"s{index}" for index in range(first, 10, 3)}
            assert sum(bool(group & set(part)) for part in ids) == 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2", "1/0"])
def test_what_is_no_shard_is_one_line(text, random_qwen, samples, tmp_path):
    with pytest.raises(InputError, match="write i/n"):
        mp.trace(random_qwen, samples, tmp_path / "run", shard=text)
