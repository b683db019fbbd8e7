"""Marks for parameters of tests that take long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of which all but the first are marked slow."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if number else []) for number, value in enumerate(values)
    ]
