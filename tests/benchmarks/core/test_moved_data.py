"""Drawn data that is moved to another folder asks the same questions, so that calls on it can be continued."""

from __future__ import annotations

import shutil

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.ledger import fingerprint


@pytest.mark.parametrize("name", ["spd-faith", "pope", "mme", "magic", "vqa"])
def test_moved_questions_are_the_same(name, tmp_path):
    benchmark = BENCHMARKS[name]()
    file = benchmark.draw(tmp_path / "before", 6, 7)
    before = fingerprint(samples=benchmark.ask(benchmark.read(file)))
    moved = tmp_path / "deep" / "after"
    shutil.copytree(tmp_path / "before", moved)
    shutil.rmtree(tmp_path / "before")
    after = benchmark.ask(benchmark.read(moved / file.relative_to(tmp_path / "before")))
    assert len(after) > 6 and fingerprint(samples=after) == before
