"""The writer thread: calls are made in order, the queue is bounded, and errors are raised."""

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
from mmprobe.traces import recorder as recorder_module
from mmprobe.traces.recorder import BackgroundWriter, WriterThread, WritingFailed


def test_another_thread_makes_the_calls_in_order():
    calls = []
    with WriterThread() as thread:
        for number in range(100):
            thread.submit(lambda value: calls.append((value, threading.current_thread().name)), number)
    assert calls == [(number, "mmprobe-writer") for number in range(100)]


def test_the_queue_is_bounded(monkeypatch):
    """A producer that is faster than the disk has to wait."""
    monkeypatch.setattr(recorder_module, "QUEUE_SIZE", 2)
    release, produced = threading.Event(), []

    def produce() -> None:
        for number in range(10):
            thread.submit(release.wait)
            produced.append(number)

    with WriterThread() as thread:
        producer = threading.Thread(target=produce)
        producer.start()
        time.sleep(0.2)
        waiting = len(produced)
        release.set()
        producer.join()
    assert waiting <= 3 and len(produced) == 10


def test_a_tensor_arrives_unchanged():
    received = []
    values = torch.arange(3.0)
    with WriterThread() as thread:
        thread.submit(received.append, values)
    assert torch.equal(received[0], torch.arange(3.0))


def test_a_full_disk_is_raised_as_an_oserror():
    def full() -> None:
        raise OSError(28, "No space left on device", "a.h5")

    with pytest.raises(OSError, match="No space left"), WriterThread() as thread:
        thread.submit(full)
        thread.wait()
        thread.submit(print, "not reached")


def test_another_error_is_raised_as_writing_failed(capsys):
    def broken() -> None:
        raise ValueError("shape")

    with pytest.raises(WritingFailed, match="ValueError: shape"), WriterThread() as thread:
        thread.submit(broken)
        thread.submit(print, "skipped: a file that failed is not written on")
    assert capsys.readouterr().out == ""


def test_calls_queued_behind_a_failure_are_never_made():
    """Calls queued before the failure was known must not finish a sample that lacks a block."""
    release, calls = threading.Event(), []

    def broken() -> None:
        release.wait()
        raise MemoryError("too large")

    with pytest.raises(WritingFailed), WriterThread() as thread:
        thread.submit(broken)
        for number in range(3):
            thread.submit(calls.append, number)
        release.set()
        while thread.error is None:
            time.sleep(0.001)
        with pytest.raises(WritingFailed):
            thread.submit(calls.append, 3)
        thread.wait()
        thread.submit(calls.append, 4)
    assert calls == []


def test_memory_is_not_trimmed_where_the_peak_is_unknown(monkeypatch):
    trimmed = []
    monkeypatch.setattr(recorder_module, "_trim", trimmed.append)
    monkeypatch.setattr(recorder_module.Path, "read_text", lambda path: "VmSize:\t 10 kB\nVmRSS:\t 5 kB\n")
    recorder_module.give_back_memory()
    assert trimmed == []


FREE_AROUND_SMALL_BLOCKS = """
import re
from pathlib import Path
from mmprobe.traces.recorder import give_back_memory
def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
kept = []
for _ in range(1000):
    large, small = bytearray(b"x" * 2**16), bytearray(b"x" * 1024)
    kept.append((large, small))
kept = [small for _, small in kept]
del large
before = resident()
give_back_memory(below_peak=True)  # whatever the peak of the imports was
print(before - resident(), all(small == b"x" * 1024 for small in kept))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(recorder_module._trim is None, reason="needs glibc")
def test_memory_between_small_blocks_goes_back_to_the_system():
    command = [sys.executable, "-P", "-c", FREE_AROUND_SMALL_BLOCKS]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    freed_mb, intact = process.stdout.split()
    assert float(freed_mb) > 40 and intact == "True"  # of 62 MB


def test_memory_is_given_back_while_nothing_is_written(monkeypatch):
    returned = threading.Event()
    monkeypatch.setattr(recorder_module, "give_back_memory", returned.set)
    with WriterThread():
        assert returned.wait(30)


def test_memory_is_given_back_while_much_is_written(monkeypatch):
    returned = threading.Event()
    monkeypatch.setattr(recorder_module, "_BUSY_SECONDS", 0.0)
    monkeypatch.setattr(recorder_module, "_IDLE_SECONDS", 60.0)
    monkeypatch.setattr(recorder_module, "give_back_memory", returned.set)
    with WriterThread() as thread:
        thread.submit(time.sleep, 0.01)
        thread.submit(time.sleep, 0.01)
        assert returned.wait(30)


def test_memory_is_given_back_below_the_peak_if_that_is_asked(monkeypatch):
    trimmed = []
    monkeypatch.setattr(recorder_module, "_trim", trimmed.append)
    monkeypatch.setattr(recorder_module.Path, "read_text", lambda path: "VmHWM:\t 900000 kB\nVmRSS:\t 5 kB\n")
    recorder_module.give_back_memory()
    assert trimmed == []
    recorder_module.give_back_memory(below_peak=True)
    assert trimmed == [0]


def test_systems_without_glibc_are_left_alone(monkeypatch):
    monkeypatch.setattr(recorder_module.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(recorder_module, "_trim", recorder_module._find_malloc_trim())
    recorder_module.give_back_memory()
    assert recorder_module._trim is None


def test_values_are_rounded_to_the_nearest_float16(tmp_path):
    """The values are all float16 numbers, the middles between them, and their neighbours. Ties go to even."""
    float16_values = np.arange(0x7C00, dtype="u2").view("f2").astype("f4")
    halfway = (float16_values[:-1] + float16_values[1:]) / 2
    values = np.concatenate(
        [float16_values, halfway, np.nextafter(halfway, 0), np.nextafter(halfway, np.float32(1e9))]
    )
    values = np.concatenate([values, -values])
    stored = write_and_read(tmp_path, torch.from_numpy(values))
    rounded = [struct.unpack("<e", struct.pack("<e", value))[0] for value in values.tolist()]
    assert stored.dtype == np.float16
    assert stored.view("u2").tolist() == np.array(rounded, "f2").view("u2").tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_too_large_for_float16_are_stored_as_float32(tmp_path, dtype):
    values = torch.tensor([1 / 3, -1e5], dtype=dtype)
    stored = write_and_read(tmp_path, values)
    assert stored.dtype == np.float32 and np.array_equal(stored, values.float().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_vanish_in_float16_are_stored_as_float32(tmp_path, dtype):
    values = torch.tensor([3e-9, 1e-9, 0.0], dtype=dtype)
    stored = write_and_read(tmp_path, values)
    assert stored.dtype == np.float32 and np.array_equal(stored, values.float().numpy())


def test_infinities_are_stored_as_float16(tmp_path):
    stored = write_and_read(tmp_path, torch.tensor([1.0, np.inf, -np.inf, np.nan]))
    assert stored.dtype == np.float16 and np.array_equal(stored, [1, np.inf, -np.inf, np.nan], equal_nan=True)


def test_without_float16_nothing_is_rounded(tmp_path):
    assert write_and_read(tmp_path, torch.tensor([1 / 3]), float16=False).tolist() == [np.float32(1 / 3)]


def write_and_read(folder: Path, values: torch.Tensor, float16: bool = True) -> np.ndarray:
    """Write values and read them back."""
    with (
        TraceWriter(folder / "a.h5", {"layer": np.arange(1)}, float16=float16) as writer,
        WriterThread() as thread,
    ):
        BackgroundWriter(writer, thread).append("residual/mid", values.view(1, 1, -1))
        thread.wait()
    return Trace(folder / "a.h5").residual_mid.values.ravel()


def test_blocks_after_an_overflow_are_not_rounded(tmp_path):
    blocks = torch.full((3, 2, 1, 4), 1 / 3)
    blocks[1, 0] = 1e5
    with TraceWriter(tmp_path / "a.h5", {"layer": np.arange(1)}) as writer, WriterThread() as thread:
        for block in blocks:
            BackgroundWriter(writer, thread).append("residual/mid", block)
        thread.wait()
    stored = Trace(tmp_path / "a.h5").residual_mid.values
    assert stored.dtype == np.float32 and np.array_equal(stored[2:], blocks[1:].flatten(0, 1).numpy())
    assert np.array_equal(stored[:2], blocks[0].half().float().numpy())
