"""The attacks of the page docs/reliability.md."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter

import pytest
from attacks import run
from attacks.hostile import mutate_json
from helpers.forked import run_script

SEED = 0
N_CASES = int(os.environ.get("MMPROBE_ATTACKS", "200"))  # the page has 1,000, which take seven minutes


@pytest.mark.stress
def test_every_attack_is_held():
    """It runs as a separate process, since the attacks change what commands load."""
    script = run.ROOT / "tests" / "attacks" / "run.py"
    done = run_script(script, "--seed", SEED, "--n", N_CASES, cwd=run.ROOT)
    assert done.code == 0, done.stdout + done.stderr


def test_the_page_shows_a_thousand_cases_that_were_held():
    table = run.MARKS.search(run.PAGE.read_text(encoding="utf-8"))[0]
    rows = re.findall(r"^\| ([\w ]+) \|.*\| (\d+) \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    counts = {group: (int(cases), int(held), int(lost)) for group, cases, held, lost in rows}
    assert set(counts) == {*run.SHARES, "all"}
    assert counts["all"][0] >= 1000 and counts["all"][2] == 0
    assert all(cases == held + lost for cases, held, lost in counts.values())


def test_cases_depend_on_the_seed_alone():
    names = [[case.name for _, case in run.make_cases(seed, 100, list(run.SHARES))] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    counts = Counter(group for group, _ in run.make_cases(0, 1000, list(run.SHARES)))
    assert sum(counts.values()) >= 1000 and counts["faults"] >= 60 and counts["writers"] >= 24


def test_hostile_json_is_often_json():
    rng, whole = random.Random(0), 0
    for _ in range(300):
        text = mutate_json(
            rng, '{"id": "a", "images": ["a.png"], "regions": [{"image": 0, "box": [1, 2, 3, 4]}]}'
        )
        try:
            json.loads(text)
            whole += 1
        except (ValueError, RecursionError):
            pass
    assert 150 < whole < 300
