"""Fields of methods' dataclasses that declare a default and a range, and the check of their values.

The module imports neither torch nor transformers, so the command line can read parameters before it loads a
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from typing import Any

from mmprobe.errors import InputError
from mmprobe.files import parse_yaml


def number(default: float | None, low: float, high: float) -> Any:
    """Return a field for a number from `low` to `high`; it may be None if its default is None."""
    return field(default=default, metadata={"kind": "number", "low": low, "high": high})


def integer(default: int, low: int, high: int) -> Any:
    """Return a field for a whole number from `low` to `high`."""
    return field(default=default, metadata={"kind": "integer", "low": low, "high": high})


def choice(default: str, choices: tuple[str, ...]) -> Any:
    """Return a field for one of several words."""
    return field(default=default, metadata={"kind": "choice", "choices": choices})


def boolean(default: bool) -> Any:
    """Return a field for true or false."""
    return field(default=default, metadata={"kind": "boolean"})


def text(default: str) -> Any:
    """Return a field for a text that is not empty."""
    return field(default=default, metadata={"kind": "text"})


def file_name() -> Any:
    """Return a field for the name of a file; empty where none is given."""
    return field(default="", metadata={"kind": "file"})


def check_parameters(method: Any) -> None:
    """Check every parameter of a method, and turn whole numbers into floats where a number is declared.

    Raises:
        InputError: a value is out of range. The message names the method, the parameter, the value and the
            range.
    """
    for parameter in fields(method):
        value, declaration = getattr(method, parameter.name), parameter.metadata
        if value is None and parameter.default is None:
            continue
        is_number = isinstance(value, int | str) and not isinstance(value, bool)
        if declaration["kind"] == "number" and is_number:
            with suppress(ValueError):  # YAML reads 1e-3 as a text
                value = float(value)
                object.__setattr__(method, parameter.name, value)
        if not _is_allowed(value, declaration):
            allowed = describe_allowed(declaration)
            raise InputError(f"method {method.name}: {parameter.name}={value!r}: must be {allowed}")


def describe_allowed(declaration: Mapping[str, Any]) -> str:
    """Return the values that a parameter may have, in words.

    Args:
        declaration: metadata of the parameter's field.

    Example:
        >>> describe_allowed({"kind": "integer", "low": 1, "high": 9})
        'a whole number from 1 to 9'
    """
    kind = declaration["kind"]
    if kind == "choice":
        return f"one of {', '.join(declaration['choices'])}"
    if kind == "boolean":
        return "true or false"
    if kind == "text":
        return "a text that is not empty"
    if kind == "file":
        return "the name of a file"
    name = "a whole number" if kind == "integer" else "a number"
    return f"{name} from {declaration['low']:g} to {declaration['high']:g}"


def _is_allowed(value: Any, declaration: Mapping[str, Any]) -> bool:
    kind = declaration["kind"]
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "choice":
        return value in declaration["choices"]
    if kind == "text":
        return isinstance(value, str) and bool(value.strip())
    if kind == "file":
        return isinstance(value, str)
    wanted_type = int if kind == "integer" else float
    return (
        type(value) is wanted_type
        and math.isfinite(value)
        and declaration["low"] <= value <= declaration["high"]
    )


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Return parameters from texts such as `eta=0.25`.

    Raises:
        InputError: a text has no `=`, or a name occurs twice.

    Example:
        >>> parse_settings(["eta=0.25", "renormalise=false"])
        {'eta': 0.25, 'renormalise': False}
    """
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InputError(f"parameter {assignment!r}: write NAME=VALUE, such as eta=0.25")
        if name in parameters:
            raise InputError(f"parameter {name}: it is set twice; set it once")
        parameters[name] = parse_value(value, f"parameter {name}")
    return parameters


def parse_value(text: str, where: str) -> Any:
    """Return a parameter's value from its text in YAML.

    Args:
        text: the value as YAML writes it.
        where: name of the parameter in errors.

    Raises:
        InputError: the text cannot be read.

    Example:
        >>> [parse_value(text, "parameter eta") for text in (".05", "true", "mean")]
        [0.05, True, 'mean']
    """
    try:
        return parse_yaml(text)
    except ValueError:
        raise InputError(f"{where}: the value {text!r} cannot be read") from None
