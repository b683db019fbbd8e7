"""Marks for parameters of tests that take long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the values as parameters of which all but the first, or the first few, are for `make exhaustive`."""
    return [
        pytest.param(value, marks=[pytest.mark.exhaustive] if number >= count else [])
        for number, value in enumerate(values)
    ]
