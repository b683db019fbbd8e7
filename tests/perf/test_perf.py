"""The measurements run. Tests do not judge the numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).parent.parent.parent / "perf"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("overhead", 7),
        ("prefixes", 4),
        ("memory", 1),
        ("disk", 2),
        ("analyses", 11),
        ("threads", 1),
        ("causes", 10),
    ],
)
def test_a_quick_measurement_gives_a_whole_table(script, rows):
    command = [sys.executable, PERF / f"{script}.py", "--quick"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    header, rule, *body = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(body) == rows
    assert all(line.count("|") == header.count("|") == rule.count("|") for line in body)
