"""Two processes that trace into one folder: one is refused, and no trace is spoiled. Resuming checks what it keeps."""

from __future__ import annotations

import importlib
import os
import signal
import time
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.killing import run_at_once, start

import mmprobe as mp
from mmprobe.cache import TraceWriter
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.samples import Sample

batch_module = importlib.import_module("mmprobe.interventions.generate")

PAIRS = 24


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    return [Sample(id=f"s{index}", images=image_paths[:2], question="What is there?") for index in range(4)]


def trace(model: Model, samples: list[Sample], out: Path, **options) -> mp.Run:
    return mp.trace(model, samples, out, max_new_tokens=6, **options)


def read_answers(run: mp.Run) -> dict[str, tuple[bytes, bytes]]:
    """Return the tokens and the attention of each trace."""
    return {
        trace.id: (trace.tokens["id"].values.tobytes(), trace.attention_mass.values.tobytes())
        for trace in run
    }


@pytest.fixture(scope="module")
def undisturbed(random_qwen, samples, tmp_path_factory) -> mp.Run:
    return trace(random_qwen, samples, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.stress
def test_two_processes_never_spoil_a_run(random_qwen, samples, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.ledger._WAIT_SECONDS", 0.02)  # these runs are shorter than the usual wait
    rng = np.random.default_rng(3)
    expected, n_refused = read_answers(undisturbed), 0
    for pair in range(PAIRS):
        out = tmp_path / f"run{pair}"
        options = [{}, {"resume": True}, {"overwrite": True}][pair % 3]
        calls = [
            lambda out=out: trace(random_qwen, samples, out),
            lambda out=out, o=options: trace(random_qwen, samples, out, **o),
        ]
        errors = run_at_once(calls, [0, rng.uniform(0, 0.03)])
        refusals = [error for error in errors if error is not None]
        assert len(refusals) < 2, refusals
        # one that has just begun, or is about to end, has no name beside its lock
        reasons = ("is tracing into it since", "another process is writing to it", "already contains a run")
        assert all(any(reason in error for reason in reasons) for error in refusals), refusals
        n_refused += len(refusals)
        assert mp.verify(out) == []
        assert read_answers(mp.open_run(out)) == expected
        assert {entry.name for entry in out.iterdir()} == {"run.json", "samples"}
    assert n_refused > PAIRS / 2, "the processes hardly ever ran at the same time"


@pytest.mark.stress
def test_a_run_can_be_read_while_it_is_written(random_qwen, samples, tmp_path, monkeypatch):
    original, lengths = batch_module.build_batch, []

    def build(*arguments):
        run = mp.open_run(tmp_path / "run")
        lengths.append(len(read_answers(run)))
        for options in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(InputError, match=f"process {os.getpid()} .* tracing into it"):
                trace(random_qwen, samples, tmp_path / "run", **options)
        return original(*arguments)

    monkeypatch.setattr(batch_module, "build_batch", build)
    assert len(trace(random_qwen, samples, tmp_path / "run")) == 4
    assert lengths[0] == 0 and lengths[-1] > 0


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_replaced_on_the_same_host(random_qwen, samples, undisturbed, tmp_path):
    for options in ({"resume": True}, {"overwrite": True}):
        process, _ = start(lambda: trace(random_qwen, samples, tmp_path / "run", overwrite=True))
        while not list(tmp_path.glob("run/samples/*.h5")):
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        run = trace(random_qwen, samples, tmp_path / "run", **options)
        assert read_answers(run) == read_answers(undisturbed)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_resuming_makes_damaged_traces_again(random_qwen, samples, undisturbed, tmp_path, caplog):
    run = trace(random_qwen, samples, tmp_path / "run")
    files = [run.path / "samples" / f"s{index}.h5" for index in range(4)]
    damage(files[0])
    files[1].write_bytes(files[1].read_bytes()[:5000])
    files[2].unlink()
    files[2].mkdir()
    kept = files[3].stat().st_mtime_ns
    resumed = trace(random_qwen, samples, run.path, resume=True)
    assert "run: 3 of 4 finished traces" in (caplog.text)
    assert read_answers(resumed) == read_answers(undisturbed)
    assert files[3].stat().st_mtime_ns == kept and mp.verify(run.path) == []
    caplog.clear()
    trace(random_qwen, samples, run.path, resume=True)
    assert not caplog.text


@pytest.mark.slow
def test_resuming_makes_traces_of_other_samples_again(
    random_qwen, samples, undisturbed, image_paths, tmp_path, caplog
):
    """Questions, images and answers to learn from are the sample's; ids alone do not tell samples apart."""
    other = [
        samples[0].model_copy(update={"question": "Is there a star?"}),
        samples[1].model_copy(update={"images": image_paths[1:]}),
        samples[2].model_copy(update={"answer": "Nothing."}),
        samples[3],
    ]
    run = trace(random_qwen, other, tmp_path / "run")
    resumed = trace(random_qwen, samples, run.path, resume=True)
    assert "3 of 4 finished traces" in caplog.text
    assert read_answers(resumed) == read_answers(undisturbed)
    assert resumed.sample("s2").answer is None


@pytest.mark.slow
def test_resuming_makes_traces_of_another_run_again(random_qwen, samples, undisturbed, tmp_path, caplog):
    other = mp.trace(random_qwen, samples, tmp_path / "other", max_new_tokens=3)
    run = trace(random_qwen, samples, tmp_path / "run")
    (other.path / "samples" / "s1.h5").rename(run.path / "samples" / "s1.h5")
    resumed = trace(random_qwen, samples, run.path, resume=True)
    assert "1 of 4 finished traces" in caplog.text
    assert read_answers(resumed) == read_answers(undisturbed)


def test_an_older_run_whose_images_moved_is_kept(random_qwen, samples, tmp_path, monkeypatch, caplog):
    """Traces of earlier versions do not name their run."""
    original = TraceWriter.set_attributes

    def leave_out_run(writer, attributes):
        original(writer, {name: text for name, text in attributes.items() if name != "run_hash"})

    monkeypatch.setattr(TraceWriter, "set_attributes", leave_out_run)
    (tmp_path / "before").mkdir()
    moved = []
    for path in samples[0].images:
        moved.append(tmp_path / "before" / path.name)
        moved[-1].write_bytes(path.read_bytes())
    before = [sample.model_copy(update={"images": moved}) for sample in samples[:2]]
    run = trace(random_qwen, before, tmp_path / "run")
    with h5py.File(run.path / "samples" / "s0.h5") as file:
        assert "run_hash" not in file.attrs
    (tmp_path / "before").rename(tmp_path / "after")
    times = [path.stat().st_mtime_ns for path in sorted(run.path.glob("samples/*"))]
    after = [
        sample.model_copy(update={"images": [tmp_path / "after" / path.name for path in moved]})
        for sample in before
    ]
    trace(random_qwen, after, run.path, resume=True)
    assert [path.stat().st_mtime_ns for path in sorted(run.path.glob("samples/*"))] == times
    assert not caplog.text


def test_a_spoiled_trace_does_not_stay_where_its_sample_fails(random_qwen, samples, tmp_path):
    run = trace(random_qwen, samples[:2], tmp_path / "run")
    damage(run.path / "samples" / "s1.h5")
    gone = samples[1].model_copy(update={"images": [tmp_path / "gone.png"]})
    resumed = trace(random_qwen, [samples[0], gone], run.path, resume=True)
    assert resumed.ids == ["s0"] and [failure["id"] for failure in resumed.failures] == ["s1"]


def test_a_run_larger_than_the_disk_starts_with_a_warning(
    random_qwen, samples, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(import_module("mmprobe.traces.run"), "max_trace_bytes", lambda *_: 10**18)
    assert len(trace(random_qwen, samples[:1], tmp_path / "run")) == 1
    assert "can take up to" in caplog.text and "a full disk" in caplog.text
    caplog.clear()
    trace(random_qwen, samples[:1], tmp_path / "run", resume=True)
    assert not caplog.text
