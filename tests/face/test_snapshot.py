"""What mmprobe draws, answers, scores and analyses is what it was when tests/snapshots was made.

Where a result is meant to change, `python scripts/snapshot.py tests/snapshots --compact` makes the snapshot again.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import ENVIRONMENT

ROOT = Path(__file__).parent.parent.parent


def find_differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """Return the places where two contents differ: numbers by more than the rounding of another processor."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            if key not in was or key not in now:
                yield f"{where}/{key}: {'is new' if key in now else 'is missing'}"
            else:
                yield from find_differences(was[key], now[key], f"{where}/{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, items in enumerate(zip(was, now, strict=True)):
            yield from find_differences(*items, f"{where}/{number}")
    elif isinstance(was, float) and isinstance(now, float):
        both_nan = math.isnan(was) and math.isnan(now)
        if not both_nan and not math.isclose(was, now, rel_tol=1e-4, abs_tol=1e-6):
            yield f"{where}: was {was}, is {now}"
    elif type(was) is not type(now) or was != now:
        yield f"{where}: was {json.dumps(was)[:500]}, is {json.dumps(now)[:500]}"


@pytest.mark.exhaustive
def test_results_are_those_of_the_snapshot(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "snapshot.py", tmp_path, "--compact"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, done.stderr
    was, now = (
        {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")}
        for folder in (ROOT / "tests" / "snapshots", tmp_path)
    )
    added = set(now["analyses"]) - set(was["analyses"])  # by somebody; nothing that was is another
    now["analyses"] = {name: each for name, each in now["analyses"].items() if name not in added}
    difference = next(find_differences(was, now), None)
    assert difference is None, f"{difference}; if it is meant, see scripts/snapshot.py --compact"


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({"a": [1, 2.0, "x"]}, {"a": [1, 2.00001, "x"]}, []),
        ({"a": math.nan, "b": 0.0}, {"a": math.nan, "b": 1e-7}, []),
        ({"a": {"b": 1.0}}, {"a": {"b": 1.001}}, ["/a/b: was 1.0, is 1.001"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["/a/1: was 2, is 3"]),
        ({"a": 1}, {"a": 1.0}, ["/a: was 1, is 1.0"]),
        ({"a": math.nan}, {"a": 0.0}, ["/a: was nan, is 0.0"]),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, ["/b: is missing", "/c: is new"]),
        ([1], [1, 2], [": was [1], is [1, 2]"]),
    ],
)
def test_a_difference_is_named_by_its_place(was, now, expected):
    assert list(find_differences(was, now)) == expected
