"""The range of each effect in control models of two bases, outside of which a model's effect is named.

The ranges ship as numbers, `controls.json`, which `research/write_control_ranges.py` makes from diagnoses. The bases are `tiny-spd`, in the
drawn world, and the real model (`make real`). A control that is known to have a cause, such as the real model, which answers A,
counts for the other tests alone.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

FILE = "controls.json"


class ControlRange(NamedTuple):
    """The range of an effect in the controls of a base.

    Attributes:
        low, high: the smallest and the largest value.
        n: the number of controls.
    """

    low: float
    high: float
    n: int


@cache
def _read_file() -> dict[str, dict[str, dict[str, ControlRange]]]:
    text = (resources.files("mmprobe.diagnosis") / FILE).read_text(encoding="utf-8")
    return {
        base: {
            test: {kind: ControlRange(*each) for kind, each in kinds.items()}
            for test, kinds in content["ranges"].items()
        }
        for base, content in json.loads(text)["bases"].items()
    }


def list_ranges(test: str, kind: str = "") -> dict[str, ControlRange]:
    """Return the range of a test's effect by base, of one kind of questions or of all; nothing of a base without the test.

    Example:
        >>> list_ranges("language-prior")["drawn world"].high
        0.0
        >>> list_ranges("no test")
        {}
    """
    return {
        base: kinds[kind] for base, tests in _read_file().items() if kind in (kinds := tests.get(test, {}))
    }


def find_highest(test: str, kind: str = "") -> float:
    """Return the largest value of an effect in a control of any base, of all questions and of the kind; 0 if none is known."""
    ranges = [*list_ranges(test).values(), *(list_ranges(test, kind).values() if kind else ())]
    return max((each.high for each in ranges), default=0.0)
