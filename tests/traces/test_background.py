"""The writing thread: in order, bounded, and never silent about what failed."""

from __future__ import annotations

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
