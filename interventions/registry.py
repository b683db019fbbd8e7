"""Methods by name or from YAML files, and the fields of their dataclasses that declare defaults and ranges.

The module imports neither torch nor transformers, so the command line can check parameters before it loads a model;
a method's own module is imported when the method is loaded.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, make_dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


_DECLARATIONS = {each.__name__: each for each in (number, integer, choice, boolean, text, file_name)}


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
        is_whole = isinstance(value, int) and not isinstance(
            value, bool
        )  # YAML's reading of the number of a feature
        if declaration["kind"] == "file" and (is_whole or isinstance(value, Path)):
            value = str(value)
            object.__setattr__(method, parameter.name, value)
        if not _is_allowed(value, declaration):
            allowed = _describe_allowed(declaration)
            raise InputError(f"method {method.name}: {parameter.name}={value!r}: must be {allowed}")


def _describe_allowed(declaration: Mapping[str, Any]) -> str:
    """Return the values that a parameter may have, in words.

    Args:
        declaration: metadata of the parameter's field.

    Example:
        >>> _describe_allowed({"kind": "integer", "low": 1, "high": 9})
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
        "m3id": "mmprobe.interventions.methods.m3id:M3id",
        "only": "mmprobe.interventions.methods.only:Only",
        "opera": "mmprobe.interventions.methods.opera:Opera",
        "pai": "mmprobe.interventions.methods.pai:Pai",
        "plain": "mmprobe.interventions.methods.plain:Plain",
        "sage": "mmprobe.interventions.methods.sage:Sage",
        "self-consistency": "mmprobe.interventions.methods.self_consistency:SelfConsistency",
        "self-refine": "mmprobe.interventions.methods.self_refine:SelfRefine",
        "steer": "mmprobe.interventions.methods.steer:Steer",
        "vcd": "mmprobe.interventions.methods.vcd:Vcd",
        "vista": "mmprobe.interventions.methods.vista:Vista",
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
        >>> "components" in whole_prompt_methods()
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


class Parameter(NamedTuple):
    """A parameter of a method.

    Attributes:
        name: as `--set NAME=VALUE` takes it.
        default: the value without `--set`.
        allowed: its values, in words.
        effect: what it does, and where the default is from.
    """

    name: str
    default: Any
    allowed: str
    effect: str


class MethodDescription(NamedTuple):
    """A method: what it does, with its equations, the paper, and its parameters."""

    name: str
    about: str
    reference: str
    parameters: list[Parameter]


def format_default(value: Any) -> str:
    """Return a default as `--set` takes it; `none` where there is none.

    Example:
        >>> [format_default(value) for value in (1 / 3, True, None, "", "black")]
        ['0.333', 'true', 'none', 'none', 'black']
    """
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


_PARAMETER = re.compile(r"^    (\w+): ", re.MULTILINE)


def describe_method(name: str) -> MethodDescription:
    """Return what a method does and its parameters, from its class and the class's docstring.

    Example:
        >>> [parameter.name for parameter in describe_method("vcd").parameters]
        ['alpha', 'beta', 'noise_step']
    """
    method = load_method(name)
    text, _, declared = (inspect.getdoc(type(method)) or "").partition("Parameters:\n")
    parts = _PARAMETER.split(declared)[1:]
    effects = {name: " ".join(about.split()) for name, about in zip(parts[::2], parts[1::2], strict=True)}
    parameters = [
        Parameter(
            each.name,
            getattr(method, each.name),
            _describe_allowed(each.metadata),
            effects.get(each.name, ""),
        )
        for each in fields(method)
    ]
    return MethodDescription(name, " ".join(text.split()), method.reference, parameters)


def check_method(source: str, parameters: Mapping[str, Any] | None = None) -> None:
    """Check the names of methods joined by `+`, and the parameters of one, without importing torch.

    A method of another package, and one in a YAML file that cannot be read, is checked when it is loaded.

    Raises:
        InputError: as `load_methods`.

    Example:
        >>> check_method("sage", {"eta": 0.25})
    """
    names = [source] if source.endswith((".yaml", ".yml")) else source.split("+")
    for each in names:
        name, own = _read_source(each)
        record = declared_parameters(name)
        if record is not None:
            _make(record, name, own | (dict(parameters or {}) if len(names) == 1 else {}))


def declared_parameters(name: str) -> type | None:
    """Return the parameters of a method as a dataclass, read from its source; None for a method of another package.

    The method's own module imports torch, which takes seconds.

    Example:
        >>> [parameter.name for parameter in fields(declared_parameters("pai"))]
        ['alpha', 'gamma', 'beta', 'first_layer']
    """
    place = METHODS.place(name)
    if place is None:
        return None
    module, _, kind = place.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    known: dict[str, Any] = dict(_DECLARATIONS)
    declarations: list[tuple[str, Any, Any]] = []
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # a constant of the module, which a declaration may name
                known[node.targets[0].id] = ast.literal_eval(node.value)
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for each in node.body:
                if not isinstance(each, ast.AnnAssign) or not isinstance(each.value, ast.Call):
                    continue
                if ast.unparse(each.value.func) in _DECLARATIONS:
                    code = compile(ast.Expression(each.value), spec.origin, "eval")
                    declarations.append((ast.unparse(each.target), Any, eval(code, dict(known))))
    return make_dataclass(kind, declarations, namespace={"name": name}, frozen=True)


def _make(kind: type, name: str, parameters: Mapping[str, Any]) -> Any:
    """Return a method of a class, or the record of its parameters, with its parameters checked.

    Raises:
        InputError: there is no such parameter, or a value is out of range.
    """
    known = [parameter.name for parameter in fields(kind)]
    for parameter in parameters:
        if parameter not in known:
            raise unknown_name(f"method {name}: parameter", parameter, known)
    made = kind(**parameters)
    check_parameters(made)
    return made


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
    method: Method = _make(METHODS[name], name, source_parameters | parameters)
    return method


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
