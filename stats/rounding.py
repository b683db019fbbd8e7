"""Numbers in words: rounded as people write them, the same everywhere."""

from __future__ import annotations

import math


def round_number(value: float | None, spec: str = ".2f") -> str:
    """Return a number in a format, without the sign of a zero; "undefined" where it is not a number or None.

    Example:
        >>> round_number(-1.39e-17), round_number(-0.001), round_number(-0.001, "+.1f"), round_number(0.126)
        ('0.00', '0.00', '+0.0', '0.13')
        >>> round_number(float("nan"))
        'undefined'
    """
    if value is None or math.isnan(value):
        return "undefined"
    text = format(value, spec)
    if (
        text.startswith("-")
        and not any(digit in "123456789" for digit in text.partition("e")[0])
        and math.isfinite(value)
    ):
        return format(0.0, spec)
    return text


def round_interval(low: float | None, high: float | None, spec: str = ".2f") -> str:
    """Return an interval in brackets after a space, or nothing where an end is undefined.

    Example:
        >>> round_interval(-0.001, 0.25), round_interval(float("nan"), float("nan"))
        (' [0.00, 0.25]', '')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f" [{round_number(low, spec)}, {round_number(high, spec)}]"
