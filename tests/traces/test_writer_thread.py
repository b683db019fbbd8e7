"""The writing thread: in order, bounded, and never silent about what failed."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mmprobe.cache import Trace, TraceWriter
from mmprobe.traces import malloc_trim, writer_thread
from mmprobe.traces.writer_thread import BackgroundWriter, WriterThread, WritingFailed


def test_jobs_are_done_in_order_by_another_thread():
    done = []
    with WriterThread() as writing:
        for number in range(100):
            writing.submit(lambda value: done.append((value, threading.current_thread().name)), number)
    assert done == [(number, "mmprobe-writer") for number in range(100)]


def test_the_queue_is_bounded(monkeypatch):
    """Who produces faster than the disk takes has to wait."""
    monkeypatch.setattr(writer_thread, "QUEUE_SIZE", 2)
    release, produced = threading.Event(), []

    def produce() -> None:
        for number in range(10):
            writing.submit(release.wait)
            produced.append(number)

    with WriterThread() as writing:
        producer = threading.Thread(target=produce)
        producer.start()
        time.sleep(0.2)
        waiting = len(produced)
        release.set()
        producer.join()
    assert waiting <= 3 and len(produced) == 10


def test_a_tensor_arrives_as_it_was():
    seen = []
    values = torch.arange(3.0)
    with WriterThread() as writing:
        writing.submit(seen.append, values)
    assert torch.equal(seen[0], torch.arange(3.0))


def test_a_full_disk_is_raised_as_such():
    def full() -> None:
        raise OSError(28, "No space left on device", "a.h5")

    with pytest.raises(OSError, match="No space left"), WriterThread() as writing:
        writing.submit(full)
        writing.wait()
        writing.submit(print, "not reached")


def test_any_other_failure_is_no_samples_fault(capsys):
    def broken() -> None:
        raise ValueError("shape")

    with pytest.raises(WritingFailed, match="ValueError: shape"), WriterThread() as writing:
        writing.submit(broken)
        writing.submit(print, "skipped: a file that failed is not written on")
    assert capsys.readouterr().out == ""


def test_what_was_queued_behind_a_failure_is_never_done():
    """A sample that lacks a block must not be finished by what was queued for it before anybody knew."""
    release, done = threading.Event(), []

    def broken() -> None:
        release.wait()
        raise MemoryError("too large")

    with pytest.raises(WritingFailed), WriterThread() as writing:
        writing.submit(broken)
        for number in range(3):
            writing.submit(done.append, number)
        release.set()
        while writing.error is None:
            time.sleep(0.001)
        with pytest.raises(WritingFailed):
            writing.submit(done.append, 3)
        writing.wait()
        writing.submit(done.append, 4)
    assert done == []


def test_a_system_that_does_not_tell_its_peak_is_left_alone(monkeypatch):
    trimmed = []
    monkeypatch.setattr(malloc_trim, "_trim", trimmed.append)
    monkeypatch.setattr(malloc_trim.Path, "read_text", lambda path: "VmSize:\t 10 kB\nVmRSS:\t 5 kB\n")
    malloc_trim.give_back_memory()
    assert trimmed == []


FREED_AROUND_WHAT_STAYS = """
import re
from pathlib import Path
from mmprobe.traces.malloc_trim import give_back_memory
def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
kept = []
for _ in range(1000):
    large, small = bytearray(b"x" * 2**16), bytearray(b"x" * 1024)
    kept.append((large, small))
kept = [small for _, small in kept]
del large
before = resident()
give_back_memory()
print(before - resident(), all(small == b"x" * 1024 for small in kept))
"""


@pytest.mark.skipif(malloc_trim._trim is None, reason="needs glibc")
def test_what_lay_between_small_blocks_goes_back_to_the_system():
    done = subprocess.run(
        [sys.executable, "-P", "-c", FREED_AROUND_WHAT_STAYS], capture_output=True, text=True, check=True
    )
    less, whole = done.stdout.split()
    assert float(less) > 40 and whole == "True"  # of 62 MB


def test_memory_is_given_back_while_nothing_is_written(monkeypatch):
    given = threading.Event()
    monkeypatch.setattr(writer_thread, "give_back_memory", given.set)
    with WriterThread():
        assert given.wait(30)


def test_systems_without_trimming_go_without(monkeypatch):
    monkeypatch.setattr(malloc_trim.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(malloc_trim, "_trim", malloc_trim._find_malloc_trim())
    malloc_trim.give_back_memory()
    assert malloc_trim._trim is None


def test_float16_is_the_nearest(tmp_path):
    """All numbers of float16, those halfway between two, and their neighbours; ties go to the even one."""
    halves = np.arange(0x7C00, dtype="u2").view("f2").astype("f4")
    halfway = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate(
        [halves, halfway, np.nextafter(halfway, 0), np.nextafter(halfway, np.float32(1e9))]
    )
    values = np.concatenate([values, -values])
    found = written(tmp_path, torch.from_numpy(values))
    rounded = [struct.unpack("<e", struct.pack("<e", value))[0] for value in values.tolist()]
    assert found.dtype == np.float16
    assert found.view("u2").tolist() == np.array(rounded, "f2").view("u2").tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_float16_cannot_hold_stays(tmp_path, dtype):
    values = torch.tensor([1 / 3, -1e5], dtype=dtype)
    found = written(tmp_path, values)
    assert found.dtype == np.float32 and np.array_equal(found, values.float().numpy())


def test_infinities_do_not_need_more_than_float16(tmp_path):
    found = written(tmp_path, torch.tensor([1.0, np.inf, -np.inf, np.nan]))
    assert found.dtype == np.float16 and np.array_equal(found, [1, np.inf, -np.inf, np.nan], equal_nan=True)


def test_without_float16_nothing_is_rounded(tmp_path):
    assert written(tmp_path, torch.tensor([1 / 3]), float16=False).tolist() == [np.float32(1 / 3)]


def written(folder: Path, values: torch.Tensor, float16: bool = True) -> np.ndarray:
    """Values as a trace gives them back."""
    with (
        TraceWriter(folder / "a.h5", {"layer": np.arange(1)}, float16=float16) as writer,
        WriterThread() as writing,
    ):
        BackgroundWriter(writer, writing).append("residual/mid", values.view(1, 1, -1))
        writing.wait()
    return Trace(folder / "a.h5").residual_mid.values.ravel()


def test_once_a_number_was_too_large_all_that_follow_are_stored_as_they_are(tmp_path):
    blocks = torch.full((3, 2, 1, 4), 1 / 3)
    blocks[1, 0] = 1e5
    with TraceWriter(tmp_path / "a.h5", {"layer": np.arange(1)}) as writer, WriterThread() as writing:
        for block in blocks:
            BackgroundWriter(writer, writing).append("residual/mid", block)
        writing.wait()
    found = Trace(tmp_path / "a.h5").residual_mid.values
    assert found.dtype == np.float32 and np.array_equal(found[2:], blocks[1:].flatten(0, 1).numpy())
    assert np.array_equal(found[:2], blocks[0].half().float().numpy())
