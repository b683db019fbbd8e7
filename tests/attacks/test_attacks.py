"""The attacks that docs/reliability.md names."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from attacks import run
from helpers.forked import run_script

SEED = 0
N_CASES = int(os.environ.get("MMPROBE_ATTACKS", "200"))  # 1,000 take seven minutes


@pytest.mark.stress
def test_every_attack_is_held():
    """It runs as a separate process, since the attacks change what commands load."""
    script = run.ROOT / "tests" / "attacks" / "run.py"
    done = run_script(script, "--seed", SEED, "--n", N_CASES, cwd=run.ROOT)
    assert done.code == 0, done.stdout + done.stderr


def test_cases_depend_on_the_seed_alone():
    names = [[case.name for _, case in run.make_cases(seed, 100, list(run.SHARES))] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    counts = Counter(group for group, _ in run.make_cases(0, 1000, list(run.SHARES)))
    assert sum(counts.values()) == 1000 and counts["faults"] >= 60 and counts["writers"] >= 24
