"""Numbers in words, where rounding and missing values hide."""

from __future__ import annotations

import pytest

from mmprobe.stats.estimate import format_interval, format_number

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (-1.39e-17, "", "0"),
        (-0.0, "+", "0"),
        (0.0005, "", "0.0005"),
        (0.09996, "", "0.1"),
        (999.6, "", "1,000"),
        (-2.0, "+", "-2"),
        (3, "+", "+3"),
        (-0.001, ".2f", "0.00"),
        (-0.004, "+.2f", "+0.00"),
        (-0.0001, ".0%", "0%"),
        (-1e-300, ".3g", "-1e-300"),
        (NAN, ".0%", "–"),
        (None, "", "–"),
        (float("-inf"), ".2f", "-∞"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: float | None, spec: str, text: str) -> None:
    assert format_number(value, spec) == text


def test_an_interval_without_an_end_is_left_out() -> None:
    assert format_interval(NAN, 0.5) == format_interval(0.5, None) == ""
    assert format_interval(-0.1234, 2.0, "+") == " [-0.123, +2]"
