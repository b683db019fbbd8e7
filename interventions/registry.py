"""Find methods by name and read them from YAML files.

The module imports neither torch nor transformers; a method's own module is imported when the method is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError, unknown_name
from mmprobe.files import check_readable, parse_yaml
from mmprobe.registry import Registry

if TYPE_CHECKING:
    from mmprobe.interventions.base import Method

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
