"""Runs that are killed, interrupted or out of space keep finished samples and can be resumed."""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.datasets import read_datasets
from PIL import Image

import mmprobe as mp
from mmprobe.cache import TraceWriter
from mmprobe.models import Model
from mmprobe.samples import Sample

batch_module = importlib.import_module("mmprobe.interventions.generate")

KILLS = 30
BATCH = 2


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    questions = ["Is there a star?", "Compare the two pictures.", "What?", "How many shapes are there?"]
    return [
        Sample(id=f"s{index:02}", images=image_paths[: 1 + index % 3], question=questions[index % 4])
        for index in range(24)
    ]


def trace(model: Model, samples: list[Sample], out: Path, **options) -> mp.Run:
    return mp.trace(model, samples, out, capture="full", max_new_tokens=8, batch_size=BATCH, **options)


@pytest.fixture(scope="module")
def undisturbed(random_qwen, samples, tmp_path_factory) -> mp.Run:
    return trace(random_qwen, samples, tmp_path_factory.mktemp("undisturbed") / "run")


def start_process(target, *arguments) -> multiprocessing.process.BaseProcess:
    """Start a process that shares the loaded model."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.stress
def test_a_run_killed_thirty_times_equals_an_undisturbed_run(random_qwen, samples, undisturbed, tmp_path):
    out, rng = tmp_path / "run", np.random.default_rng(5)

    def go_on() -> None:
        torch.set_num_threads(1)
        trace(random_qwen, samples, out, resume=True)

    kept: dict[str, int] = {}
    killed = 0
    began = time.perf_counter()
    trace(random_qwen, samples[:4], tmp_path / "timing")
    per_sample = (time.perf_counter() - began) / 4
    while killed < KILLS:
        process = start_process(go_on)
        process.join(rng.uniform(0, 3 * BATCH * per_sample))
        if process.exitcode is not None:  # it finished before it was killed: start again
            assert process.exitcode == 0
            for path in list((out / "samples").iterdir())[::2]:
                path.unlink()
            kept.clear()
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += 1
        finished = {path.name: path.stat().st_size for path in out.glob("samples/*.h5")}
        assert kept.items() <= finished.items(), "a finished sample was lost"
        kept = finished
    run = trace(random_qwen, samples, out, resume=True)
    assert run.ids == undisturbed.ids and not run.failures
    assert mp.verify(out) == []
    for name in run.ids:
        assert read_datasets(out / "samples" / f"{name}.h5") == read_datasets(
            undisturbed.path / "samples" / f"{name}.h5"
        )
    assert not list(out.glob("samples/*.part"))


@pytest.mark.slow
def test_ctrl_c_stops_after_the_current_batch(
    random_qwen, samples, undisturbed, tmp_path, monkeypatch, caplog
):
    original, calls, before = batch_module.build_batch, [], signal.getsignal(signal.SIGINT)

    def build(*arguments):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(batch_module, "build_batch", build)
    with pytest.raises(KeyboardInterrupt):
        trace(random_qwen, samples, tmp_path / "run")
    ids = mp.open_run(tmp_path / "run").ids
    assert len(ids) == 3 * BATCH and set(ids) < set(undisturbed.ids)
    assert "stopping after this sample" in caplog.text
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_partial_file(
    random_qwen, samples, tmp_path, monkeypatch
):
    original, calls = batch_module.build_batch, []

    def build(*arguments):
        calls.append(1)
        batch = original(*arguments)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return batch

    monkeypatch.setattr(batch_module, "build_batch", build)
    with pytest.raises(KeyboardInterrupt):
        trace(random_qwen, samples, tmp_path / "run")
    assert len(mp.open_run(tmp_path / "run")) == BATCH
    assert not list((tmp_path / "run" / "samples").glob("*.part"))


@pytest.mark.slow
def test_a_full_disk_raises_one_line_and_keeps_finished_samples(random_qwen, samples, tmp_path, monkeypatch):
    out, usage = tmp_path / "run", shutil.disk_usage
    finished = (out / "samples").glob

    def fill_up(path: Path) -> object:
        """The disk is full once three traces are finished."""
        return usage(path)._replace(free=0) if len(list(finished("*.h5"))) == 3 else usage(path)

    def trace_five(**options) -> mp.Run:
        return mp.trace(random_qwen, samples[:5], out, max_new_tokens=8, **options)

    monkeypatch.setattr(shutil, "disk_usage", fill_up)
    with pytest.raises(OSError, match="No space left .*resume=True") as error:
        trace_five()
    assert error.value.errno == errno.ENOSPC and "\n" not in str(error.value)
    monkeypatch.undo()
    run = mp.open_run(out)
    assert len(run) == 3
    assert not list((out / "samples").glob("*.part"))
    assert len(trace_five(resume=True)) == 5 and mp.verify(out) == []


def test_a_folder_that_disappears_raises_one_line(random_qwen, samples, tmp_path, monkeypatch):
    """The missing folder simulates lost permissions, which root cannot lose."""
    original, calls = batch_module.build_batch, []

    def build(*arguments):
        calls.append(1)
        if len(calls) == 3:
            (tmp_path / "run" / "samples").rename(tmp_path / "elsewhere")
        return original(*arguments)

    monkeypatch.setattr(batch_module, "build_batch", build)
    with pytest.raises(OSError, match="continue with resume=True") as error:
        trace(random_qwen, samples, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert len(list((tmp_path / "elsewhere").glob("*.h5"))) >= BATCH


def test_a_sample_that_fails_is_listed_and_the_others_go_on(random_qwen, samples, image_paths, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(image_paths[0].read_bytes()[:2000])
    bad = Sample(id="bad", images=[broken], question="?")
    run = trace(random_qwen, [samples[0], bad, *samples[1:4]], tmp_path / "run")
    assert run.ids == [sample.id for sample in samples[:4]]
    assert [failure["id"] for failure in run.failures] == ["bad"]
    Image.new("RGB", (56, 56)).save(broken)
    mended = trace(random_qwen, [samples[0], bad, *samples[1:4]], tmp_path / "run", resume=True)
    assert len(mended) == 5 and not mended.failures


@pytest.mark.slow
def test_a_batch_is_halved_when_memory_runs_out(random_qwen, samples, tmp_path, monkeypatch, caplog):
    forward, most = random_qwen.hf.forward, 2

    def scarce(*arguments, **options):
        if len(options["input_ids"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return forward(*arguments, **options)

    scarce.__signature__ = __import__("inspect").signature(forward)
    monkeypatch.setattr(random_qwen.hf, "forward", scarce)
    run = mp.trace(random_qwen, samples[:8], tmp_path / "run", max_new_tokens=3, batch_size=8)
    assert len(run) == 8 and not run.failures
    assert "8 samples at a time" in caplog.text
    assert "4 samples at a time" in caplog.text
    caplog.clear()
    mp.trace(random_qwen, samples[:12], tmp_path / "more", max_new_tokens=3, batch_size=4)
    assert caplog.text.count("out of memory") == 1, "the next batches begin with what was enough"
    monkeypatch.setattr(random_qwen.hf, "forward", forward)


def test_a_batch_that_fails_is_traced_one_by_one_with_a_warning(
    random_qwen, samples, tmp_path, monkeypatch, caplog
):
    forward = random_qwen.hf.forward

    def alone(*arguments, **options):
        if len(options["input_ids"]) > 1:
            raise ValueError("one row at most\nmore about it")
        return forward(*arguments, **options)

    alone.__signature__ = __import__("inspect").signature(forward)
    monkeypatch.setattr(random_qwen.hf, "forward", alone)
    run = mp.trace(random_qwen, samples[:3], tmp_path / "run", max_new_tokens=3, batch_size=3)
    assert len(run) == 3 and not run.failures
    expected = "a batch of 3 samples failed (ValueError: one row at most); tracing them one by one"
    assert [record.message for record in caplog.records] == [expected]


def test_a_disk_error_leaves_no_partial_file(random_qwen, samples, tmp_path, monkeypatch):
    def raise_full(writer, attributes):
        raise OSError(28, "No space left on device", str(writer.path))

    original = TraceWriter.set_attributes

    def set_attributes(writer, attributes):
        (raise_full if "answer" in attributes else original)(writer, attributes)

    monkeypatch.setattr(TraceWriter, "set_attributes", set_attributes)
    with pytest.raises(OSError, match="finished samples are kept"):
        trace(random_qwen, samples[:3], tmp_path / "run")
    assert not list((tmp_path / "run" / "samples").iterdir())


def test_finished_samples_need_no_space_when_resuming(random_qwen, samples, tmp_path, monkeypatch):
    bytes_needed = []
    monkeypatch.setattr("mmprobe.traces.run.warn_of_space", lambda out, needed: bytes_needed.append(needed))
    trace(random_qwen, samples[:2], tmp_path / "run")
    trace(random_qwen, samples[:2], tmp_path / "run", resume=True)
    assert bytes_needed[0] > 0 and bytes_needed[1] == 0


def test_a_sample_too_large_for_memory_fails_alone(random_qwen, samples, tmp_path, monkeypatch):
    forward = random_qwen.hf.forward
    longest = len(random_qwen.prompt(samples[2]).ids)

    def scarce(*arguments, **options):
        if options["input_ids"].shape[1] >= longest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return forward(*arguments, **options)

    scarce.__signature__ = __import__("inspect").signature(forward)
    monkeypatch.setattr(random_qwen.hf, "forward", scarce)
    run = mp.trace(random_qwen, samples[:4], tmp_path / "run", max_new_tokens=3)
    assert run.ids == [samples[index].id for index in (0, 1, 3)]
    assert run.failures[0]["error"] == "OutOfMemoryError"
