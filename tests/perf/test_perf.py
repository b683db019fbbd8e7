"""The measurements run. Tests do not judge the numbers."""

from __future__ import annotations

import re
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
        ("given", 5),
        ("memory", 3),
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


@pytest.mark.stress
def test_the_measurements_for_a_gpu_run_on_a_cpu_and_continue(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = tmp_path / "gpu.md"
    done = run_script(PERF / "gpu.py", "--device", "cpu", "--quick", "--out", page)
    assert done.code == 0, done.stderr
    text = page.read_text()
    titles = re.findall("^## (.*)", text, re.MULTILINE)
    assert (
        len(titles) == 8
        and text.count("No GPU: cpu, torch") == 8
        and "over several: not run, it needs two | 8 | " in text
        and " | 8 answers equal |" in text
    )
    parity = [
        [float(cell) for cell in row]
        for row in re.findall(r"\w \| float32 \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|", text)
    ]
    assert parity and all(gap < 1e-4 for row in parity for gap in row)

    before, rest = text.split("## Writing")
    page.write_text(before + "## " + rest.split("\n## ", 1)[1])
    again = run_script(PERF / "gpu.py", "--device", "cpu", "--quick", "--out", page)
    assert re.findall("^## (.*)", again.stdout, re.MULTILINE) == ["Writing"]
    assert re.findall("^## (.*)", page.read_text(), re.MULTILINE) == titles


def test_the_measurements_for_a_gpu_need_one():
    done = run_script(PERF / "gpu.py", "--device", "cpu")
    assert done.code == 2 and done.stderr.splitlines()[-1].endswith("which runs every line on tiny models")
