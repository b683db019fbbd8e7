"""Methods by name, and methods from YAML files. Imports nothing heavy until a method is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mmprobe.errors import InputError
from mmprobe.interventions.parameters import unknown

if TYPE_CHECKING:
    from mmprobe.interventions.base import Method

HOMES = {
    "agla": ("agla", "Agla"),
    "attention-prompting": ("attention_prompting", "AttentionPrompting"),
    "icd": ("icd", "Icd"),
    "opera": ("opera", "Opera"),
    "pai": ("pai", "Pai"),
    "plain": ("plain", "Plain"),
    "sage": ("sage", "Sage"),
    "self-consistency": ("self_consistency", "SelfConsistency"),
    "self-refine": ("self_refine", "SelfRefine"),
    "vcd": ("vcd", "Vcd"),
    "zoom-refine": ("zoom_refine", "ZoomRefine"),
}
"""Module and class of each method."""


def method_names() -> list[str]:
    """Names of all methods, in alphabetical order.

    Example:
        >>> "sage" in method_names()
        True
    """
    return sorted(HOMES)


def method_class(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        InputError: there is none of the name; the nearest names are offered.

    Example:
        >>> method_class("vcd").name
        'vcd'
    """
    if name not in HOMES:
        raise unknown("method", name, HOMES)
    module, kind = HOMES[name]
    return getattr(import_module(f"mmprobe.interventions.methods.{module}"), kind)


def load_method(source: str | Path | Method, /, **parameters: Any) -> Method:
    """A method by its name, or from a YAML file that holds `method` and `parameters`.

    Args:
        source: a name (its parameters are those of `configs/methods`), a file that ends in .yaml, or a method.
        parameters: instead of those of the source.

    Raises:
        InputError: unknown method or parameter, a value out of range, or a file that cannot be used.

    Example:
        >>> load_method("sage", eta=0.25).eta
        0.25
    """
    if not isinstance(source, str | Path):
        return load_method(source.name, **_values(source) | parameters) if parameters else source
    name, given = _read(source)
    kind = method_class(name)
    known = [each.name for each in fields(kind)]
    for parameter in (*given, *parameters):
        if parameter not in known:
            raise unknown(f"method {name}: parameter", parameter, known)
    return kind(**given | parameters)


def load_methods(source: str | Path | Method | Sequence[Any], /, **parameters: Any) -> list[Method]:
    """One or several methods, to be put in place together.

    Args:
        source: as `load_method` takes it, names joined by `+`, or a sequence of them.
        parameters: of the only method; of several, give methods with their parameters instead.

    Raises:
        InputError: as `load_method`, or parameters for several methods at once, or the same method twice.

    Example:
        >>> [method.name for method in load_methods("pai+vcd")]
        ['pai', 'vcd']
    """
    if isinstance(source, str) and not source.endswith((".yaml", ".yml")):
        source = source.split("+")
    sources = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not sources:
        raise InputError("method: none is given; choose plain for the model's own answer")
    if len(sources) > 1 and parameters:
        raise InputError(
            f"parameters {', '.join(parameters)}: of which of the methods? Give each method with its own parameters"
        )
    methods = [load_method(each, **parameters) for each in sources]
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"method {name}: it is given twice")
    return methods


def _values(method: Method) -> dict[str, Any]:
    return {each.name: getattr(method, each.name) for each in fields(method)}


def _read(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a source."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return _parsed(_text(path), str(source))
    name = str(source).strip()
    if name not in HOMES:
        raise unknown("method", name, HOMES)
    shipped = resources.files("mmprobe.configs") / "methods" / f"{name}.yaml"
    return _parsed(shipped.read_text(encoding="utf-8"), name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InputError(f"method {path}: cannot be read ({reason})") from None


def _parsed(text: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"method {where}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict) or not isinstance(data.get("method"), str):
        raise InputError(f"method {where}: must hold `method: NAME` and `parameters:`")
    given = data.get("parameters") or {}
    if set(data) - {"method", "parameters"} or not isinstance(given, dict):
        raise InputError(
            f"method {where}: may hold `method` and, name by name, `parameters`, and nothing else"
        )
    return data["method"], {str(name): value for name, value in given.items()}
