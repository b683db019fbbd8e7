"""Numbers in words: rounded as people write them, the same in every caption, table and command."""

from __future__ import annotations

import math

_ROUNDING = 1e-6  # what is smaller is rounding of float32 log-probabilities; our choice


def format_number(value: float | None, spec: str = "") -> str:
    """Return a number as people write it: no powers of ten, and no sign of a zero; a dash if it is unknown.

    Args:
        spec: "" for three digits that count and "+" for the same with the sign of numbers above 0; anything else is
            Python's format, such as ".2f" or ".0%".

    Example:
        >>> [format_number(number) for number in (0.12345, 1234.4, -0.0000123, -1.39e-17, float("nan"))]
        ['0.123', '1,234', '-0.0000123', '0', '–']
        >>> format_number(0.5, "+"), format_number(-0.001, "+.1f"), format_number(0.126, ".2f"), format_number(-0.001, ".0%")
        ('+0.5', '+0.0', '0.13', '0%')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if spec in ("", "+"):
        return _count_digits(value, spec)
    text = format(value, spec)
    is_zero = not any(digit in "123456789" for digit in text.partition("e")[0])
    return format(0.0, spec) if is_zero else text


def _count_digits(value: float, sign: str) -> str:
    if abs(value) < _ROUNDING:
        return "0"
    if value == int(value):
        return f"{int(value):{sign},}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:{sign},.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_interval(low: float | None, high: float | None, spec: str = "") -> str:
    """Return an interval in brackets after a space, or nothing where an end is undefined.

    Example:
        >>> format_interval(-0.001, 0.25, ".2f"), format_interval(float("nan"), float("nan"))
        (' [0.00, 0.25]', '')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f" [{format_number(low, spec)}, {format_number(high, spec)}]"
