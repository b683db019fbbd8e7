"""Parameters of methods: fields of a frozen dataclass with a range, checked before any model runs. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Any

import yaml

from mmprobe.errors import InputError


def number(default: float | None, low: float, high: float, doc: str) -> Any:
    """A number between `low` and `high`, both included; None is allowed where it is the default."""
    return field(default=default, metadata={"kind": "number", "low": low, "high": high, "doc": doc})


def whole(default: int, low: int, high: int, doc: str) -> Any:
    """A whole number between `low` and `high`, both included."""
    return field(default=default, metadata={"kind": "whole", "low": low, "high": high, "doc": doc})


def choice(default: str, choices: tuple[str, ...], doc: str) -> Any:
    """One of some words."""
    return field(default=default, metadata={"kind": "choice", "choices": choices, "doc": doc})


def switch(default: bool, doc: str) -> Any:
    """True or false."""
    return field(default=default, metadata={"kind": "switch", "doc": doc})


def text(default: str, doc: str) -> Any:
    """Any text that is not empty."""
    return field(default=default, metadata={"kind": "text", "doc": doc})


def check(method: Any) -> None:
    """Check every parameter of a method; whole numbers given for numbers become numbers.

    Raises:
        InputError: naming method, parameter, what was given and what is allowed.
    """
    for each in fields(method):
        value, meta = getattr(method, each.name), each.metadata
        if value is None and each.default is None:
            continue
        if meta["kind"] == "number" and isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):  # YAML reads 1e-3 as a text
                value = float(value)
                object.__setattr__(method, each.name, value)
        if not _fits(value, meta):
            raise InputError(f"method {method.name}: {each.name}={value!r}: must be {allowed(meta)}")


def allowed(meta: Any) -> str:
    """What a parameter may be, in words.

    Example:
        >>> allowed({"kind": "whole", "low": 1, "high": 9})
        'a whole number from 1 to 9'
    """
    if meta["kind"] in ("number", "whole"):
        return f"a {'whole ' * (meta['kind'] == 'whole')}number from {meta['low']:g} to {meta['high']:g}"
    if meta["kind"] == "choice":
        return f"one of {', '.join(meta['choices'])}"
    return "true or false" if meta["kind"] == "switch" else "a text that is not empty"


def _fits(value: Any, meta: Any) -> bool:
    if meta["kind"] == "switch":
        return isinstance(value, bool)
    if meta["kind"] == "choice":
        return value in meta["choices"]
    if meta["kind"] == "text":
        return isinstance(value, str) and bool(value.strip())
    wanted = float if meta["kind"] == "number" else int
    return type(value) is wanted and math.isfinite(value) and meta["low"] <= value <= meta["high"]


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error that offers the nearest of the names there are.

    Example:
        >>> unknown("method", "sgae", ["sage", "vcd"]).args[0]
        "method 'sgae': there is none; did you mean sage?"
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(known) or 'none'}"
    return InputError(f"{kind} {name!r}: there is none; {hint}")


def settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Parameters from texts such as `eta=0.25`, as the command line takes them.

    Raises:
        InputError: a text without `=`, or the same name twice.

    Example:
        >>> settings(["eta=0.25", "renormalise=false"])
        {'eta': 0.25, 'renormalise': False}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InputError(f"--set {pair}: write NAME=VALUE, such as eta=0.25")
        if name in found:
            raise InputError(f"--set {pair}: {name} is set twice")
        found[name] = parameter_value(value, f"--set {pair}")
    return found


def parameter_value(text: str, where: str) -> Any:
    """A parameter's value from text, as YAML has it.

    Args:
        where: named in the error.

    Raises:
        InputError: the text cannot be read.

    Example:
        >>> [parameter_value(text, "--set") for text in (".05", "true", "mean")]
        [0.05, True, 'mean']
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InputError(f"{where}: the value {text!r} cannot be read") from None
