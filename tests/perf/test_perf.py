"""The measurements run. Tests do not judge the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.forked import run_script

PERF = Path(__file__).parent.parent.parent / "perf"


@pytest.mark.stress
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("overhead", 7),
        ("overhead_profile", 9),
        ("prefixes", 8),
        ("memory", 1),
        ("disk", 4),
        ("analyses", 10),
        ("scale", 5),
        ("threads", 1),
        ("causes", 10),
    ],
)
def test_a_quick_measurement_gives_a_whole_table(script, rows, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run_script(PERF / f"{script}.py", "--quick")
    assert done.code == 0, done.stderr
    header, rule, *body = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(body) == rows
    assert all(line.count("|") == header.count("|") == rule.count("|") for line in body)
