"""The writing thread: in order, bounded, and never silent about what failed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch

from mmprobe.traces import background
from mmprobe.traces.background import Background, WritingFailed


def test_jobs_are_done_in_order_by_another_thread():
    done = []
    with Background() as writing:
        for number in range(100):
            writing.do(lambda value: done.append((value, threading.current_thread().name)), number)
    assert done == [(number, "mmprobe-writer") for number in range(100)]


def test_the_queue_is_bounded(monkeypatch):
    """Who produces faster than the disk takes has to wait."""
    monkeypatch.setattr(background, "DEPTH", 2)
    release, produced = threading.Event(), []

    def produce() -> None:
        for number in range(10):
            writing.do(release.wait)
            produced.append(number)

    with Background() as writing:
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
    with Background() as writing:
        writing.do(seen.append, values)
    assert torch.equal(seen[0], torch.arange(3.0))


def test_a_full_disk_is_raised_as_such():
    def full() -> None:
        raise OSError(28, "No space left on device", "a.h5")

    with pytest.raises(OSError, match="No space left"), Background() as writing:
        writing.do(full)
        writing.settle()
        writing.do(print, "not reached")


def test_any_other_failure_is_no_samples_fault(capsys):
    def broken() -> None:
        raise ValueError("shape")

    with pytest.raises(WritingFailed, match="ValueError: shape"), Background() as writing:
        writing.do(broken)
        writing.do(print, "skipped: a file that failed is not written on")
    assert capsys.readouterr().out == ""


FREED_AROUND_WHAT_STAYS = """
import re
from pathlib import Path
from mmprobe.traces.background import give_back_memory
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


@pytest.mark.skipif(background._trim is None, reason="needs glibc")
def test_what_lay_between_small_blocks_goes_back_to_the_system():
    done = subprocess.run(
        [sys.executable, "-c", FREED_AROUND_WHAT_STAYS], capture_output=True, text=True, check=True
    )
    less, whole = done.stdout.split()
    assert float(less) > 40 and whole == "True"  # of 62 MB


def test_memory_is_given_back_while_nothing_is_written(monkeypatch):
    given = threading.Event()
    monkeypatch.setattr(background, "give_back_memory", given.set)
    with Background():
        assert given.wait(30)


def test_systems_without_trimming_go_without(monkeypatch):
    monkeypatch.setattr(background.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(background, "_trim", background._malloc_trim())
    background.give_back_memory()
    assert background._trim is None
