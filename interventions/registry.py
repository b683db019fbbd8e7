"""Methods by name or from YAML files, and the fields of their dataclasses that declare defaults and ranges.

The module imports neither torch nor transformers, so the command line can check parameters before it loads a model;
a method's own module is imported when the method is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError, unknown_name
from mmprobe.files import check_readable, parse_yaml
from mmprobe.registry import Registry

if TYPE_CHECKING:
    from mmprobe.interventions.base import Method


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


METHODS: Registry[type[Method]] = Registry(
    "method",
    "methods",
    {
        "agla": "mmprobe.interventions.methods.agla:Agla",
        "attention-prompting": "mmprobe.interventions.methods.attention_prompting:AttentionPrompting",
        "chi": "mmprobe.interventions.methods.chi:Chi",
        "components": "mmprobe.interventions.methods.components:Components",
        "features": "mmprobe.interventions.methods.features:Features",
        "icd": "mmprobe.interventions.methods.icd:Icd",
        "opera": "mmprobe.interventions.methods.opera:Opera",
        "pai": "mmprobe.interventions.methods.pai:Pai",
        "plain": "mmprobe.interventions.methods.plain:Plain",
        "sage": "mmprobe.interventions.methods.sage:Sage",
        "self-consistency": "mmprobe.interventions.methods.self_consistency:SelfConsistency",
        "self-refine": "mmprobe.interventions.methods.self_refine:SelfRefine",
        "steer": "mmprobe.interventions.methods.steer:Steer",
        "vcd": "mmprobe.interventions.methods.vcd:Vcd",
        "zoom-refine": "mmprobe.interventions.methods.zoom_refine:ZoomRefine",
    },
    form="mmprobe.interventions.base:Method",
    holds_classes=True,
)
"""The class of each method, by the name of the method."""


def whole_prompt_methods() -> list[str]:
    """Return the methods that need whole prompts, each with the parameter that makes them, if any.

    Prompts with the same images do not share what is read of their common beginning there (`Method.shares_prefix`).

    Example:
        >>> "opera" in whole_prompt_methods()
        True
    """
    names = []
    for name in METHODS:
        method = load_method(name)
        if not (method.neutral or method.shares_prefix):
            names.append(name)
        elif "prompt" in [
            parameter.name for parameter in fields(method)
        ]:  # acts at all positions of the prompt
            names.append(f"{name} with prompt=true")
    return names


def load_method(source: str | Path | Method, /, **parameters: Any) -> Method:
    """Load a method by its name or from a YAML file with `method` and `parameters`.

    Args:
        source: a method's name, a file that ends in .yaml, or a method. A name means the parameters in
            `configs/methods`.
        parameters: parameters that replace those of the source.

    Raises:
        InputError: the method or a parameter is unknown, a value is out of range, or the file cannot be used.

    Example:
        >>> load_method("sage", eta=0.25).eta
        0.25
    """
    if not isinstance(source, str | Path):
        return load_method(source.name, **_parameters(source) | parameters) if parameters else source
    name, source_parameters = _read_source(source)
    kind = METHODS[name]
    known = [parameter.name for parameter in fields(kind)]
    for parameter in (*source_parameters, *parameters):
        if parameter not in known:
            raise unknown_name(f"method {name}: parameter", parameter, known)
    return kind(**source_parameters | parameters)


def load_methods(source: str | Path | Method | Sequence[Any], /, **parameters: Any) -> list[Method]:
    """Load one or several methods that act together.

    Args:
        source: a source as for `load_method`, names joined by `+`, or a sequence of sources.
        parameters: parameters for a single method. To set those of several methods, pass `Method` objects as
            the source.

    Raises:
        InputError: as `load_method` raises it; also if no method is given, if a method occurs twice, or if
            parameters are given for several methods.

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
            f"parameters {', '.join(parameters)}: there are several methods; load each with its own parameters"
        )
    methods = [load_method(each, **parameters) for each in sources]
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"method {name}: it is given twice; give it once")
    return methods


def _parameters(method: Method) -> dict[str, Any]:
    return {parameter.name: getattr(method, parameter.name) for parameter in fields(method)}


def _read_source(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of a method from its name or its file."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return _parse_yaml(_read_file(path), str(source))
    name = str(source).strip()
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    shipped = resources.files("mmprobe.configs") / "methods" / f"{name}.yaml"
    if not shipped.is_file():  # a method of another package
        return name, {}
    return _parse_yaml(shipped.read_text(encoding="utf-8"), name)


def _read_file(path: Path) -> str:
    try:
        return check_readable(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"method {path}: cannot be read ({reason})") from None


def _parse_yaml(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of a method from YAML.

    Args:
        text: the YAML.
        where: name of the source in errors.
    """
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"method {where}: not YAML ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("method"), str):
        raise InputError(f"method {where}: must contain `method: NAME` and `parameters:`")
    parameters = data.get("parameters") or {}
    if set(data) - {"method", "parameters"} or not isinstance(parameters, dict):
        raise InputError(
            f"method {where}: may contain only `method` and `parameters`, a mapping from names to values"
        )
    return data["method"], {str(name): value for name, value in parameters.items()}
