"""The measurements run. Tests do not judge the numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.forked import run_script

PERF = Path(__file__).parent.parent.parent / "perf"
sys.path.append(str(PERF))

import steady  # noqa: E402

sys.path.remove(str(PERF))


@pytest.mark.stress
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("section", "rows"),
    [
        ("time", 7),
        ("profile", 9),
        ("prefixes", 8),
        ("given", 6),
        ("memory", 3),
        ("disk", 4),
        ("analyses", 11),
        ("scale", 5),
        ("threads", 1),
        ("causes", 10),
    ],
)
def test_a_quick_measurement_gives_a_whole_table(section, rows, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run_script(PERF / "report.py", "--quick", "--only", section)
    assert done.code == 0, done.stderr
    header, rule, *body = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(body) == rows
    assert all(line.count("|") == header.count("|") == rule.count("|") for line in body)


@pytest.mark.stress
def test_the_measurements_for_a_gpu_run_on_a_cpu_and_continue(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = tmp_path / "gpu.md"
    done = run_script(PERF / "gpu.py", "--device", "cpu", "--quick", "--out", page)
    assert done.code == 0, done.stderr
    text = page.read_text()
    parts = re.findall("<!-- (\\w+) -->", text)
    assert (
        len(parts) == 11
        and text.count("No GPU: cpu, torch") == 11
        and "over several: not run, it needs two | 8 | " in text
        and " | 8 answers equal |" in text
        and "failed:" not in text
    )
    parity = [
        [float(cell) for cell in row]
        for row in re.findall(r"\w \| float32 \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|", text)
    ]
    assert parity and all(gap < 1e-4 for row in parity for gap in row)

    stopped = re.sub("Measured in \\d+ s", "Stopped before its last row", text, count=1)  # the first section
    page.write_text(re.sub("(?s)(<!-- writing -->).*(<!-- /writing -->)", r"\1Not measured yet.\2", stopped))
    again = run_script(PERF / "gpu.py", "--device", "cpu", "--quick", "--out", page)
    assert re.findall("^## (.*)", again.stdout, re.MULTILINE) == [parts[0], "writing"]
    assert page.read_text().count("Measured in") == 11


def test_the_measurements_for_a_gpu_need_one():
    done = run_script(PERF / "gpu.py", "--device", "cpu")
    assert done.code == 2 and done.stderr.splitlines()[-1].endswith("on tiny models")


def make_readings(leak_kb: float, seed: int, slower: float = 0.0) -> list[Any]:
    """Return what a run of three processes could show: phases of packing, steps of some MB, noise, and a leak.

    Args:
        slower: by which share of its cost a trace becomes slower in 2,500 traces.
    """
    rng, readings, seconds = np.random.default_rng(seed), [], 0.0
    steps = rng.normal(0, 0.5, (3, 40))
    for number in range(0, 6001, 6):
        phase = number % 500 / 500
        sizes = {}
        for process, base in enumerate((580.0, 560.0, 562.0)):
            share = 1 if process == 0 else 0.5  # a worker makes half of the traces
            swing = (30 if process == 0 else -8) * (phase < 0.2)
            size = base + swing + steps[process][number // 151] + rng.normal(0, 0.5)
            sizes[10 + process] = size + share * leak_kb * number / 1000 - 60 * (number < 500)
        readings.append(steady.Moment(seconds, number, sizes))
        seconds += 6 * 0.08 * (1 + slower * number / 2500) * rng.normal(1, 0.1)
    return readings


def test_a_leak_of_two_kilobytes_a_trace_is_seen_in_each_process():
    seen = {leak: [steady.summarise(make_readings(leak, seed), 500) for seed in range(20)] for leak in (0, 2)}
    for course in [*seen[0], *seen[2]]:
        assert course.table.count("\n") == 1 + steady.N_CYCLES and len(course.memory) == 3
        assert all(each.low < each.value < each.high for each in [*course.memory, course.cost])
    values = {
        leak: np.array([[each.value for each in course.memory] for course in courses])
        for leak, courses in seen.items()
    }
    np.testing.assert_allclose((values[2] - values[0]).mean(axis=0), [5.0, 2.5, 2.5], atol=0.01)
    assert all(course.is_flat and course.is_steady for course in seen[0])
    assert not any(each.high < steady.GOAL_MB for course in seen[2] for each in course.memory)
    assert "**missed**" in steady.describe(seen[2][0], 6000, 500)
    assert "**missed**" not in steady.describe(seen[0][0], 6000, 500)


def test_traces_that_become_slower_are_seen():
    courses = [steady.summarise(make_readings(0, seed, slower=0.15), 500) for seed in range(10)]
    assert not any(course.is_steady for course in courses)
    assert 0.09 < np.mean([course.cost.value for course in courses]) < 0.15, "of the mean, which is larger"


def test_growth_is_that_of_a_line_through_the_later_cycles():
    assert steady.measure_growth([400.0, 580.0, 581.0, 582.0, 583.0, 584.0]).value == pytest.approx(5.0)
    level = steady.measure_growth([400.0, 580.0, 582.0, 580.0, 582.0, 580.0])
    assert level.value == pytest.approx(0.0) and level.low < -1 < 1 < level.high
