"""Options of commands from the fields of the settings' records (`mmprobe.settings`), and from `--config FILE`.

A command writes `def trace(model: ModelSettings, asking: AskSettings, folder: FolderSettings, …)`. Each field becomes an
option with its name, default, bounds and help, and the command gets the records. A record with a default, such as
`model: ModelSettings = ModelSettings()`, need not be given; its values are the options' defaults. A command that takes one
field alone writes `seed: Annotated[int, AskSettings.model_fields["seed"]] = 0`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from mmprobe.errors import InputError, unknown_name
from mmprobe.files import parse_yaml, read_text
from mmprobe.interventions.registry import parse_settings
from mmprobe.settings import LEFT_OUT, AskSettings, Option, Record

ASK_APIS = ("bench", "compare")  # commands that an API's answers are enough for


def complete_models(incomplete: str) -> list[str]:
    """Return the short names of models that begin so, for the shell."""
    from mmprobe.models.checkpoints import load_aliases

    return [name for name in load_aliases() if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return the names of methods that begin so, for the shell."""
    from mmprobe.interventions.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def check_model_name(context: typer.Context, name: str | None) -> str | None:
    """Check the name of a model before anything heavy is imported.

    Raises:
        InputError: the model is unknown, or it is behind an API and the command needs its internals.
    """
    if not name or context.resilient_parsing:
        return name
    from mmprobe.benchmarks.core.api_models import is_api

    if not is_api(name):
        from mmprobe.models.checkpoints import locate

        locate(name)
    elif context.info_name not in ASK_APIS and not Path(name).is_dir():
        raise InputError(
            f"--model {name}: an API shows no internals; mmprobe bench asks it, and mmprobe trace --answers RESULTS "
            "--model LOCAL traces its answers with a local model"
        )
    return name


_OF_SHELL: dict[str, dict[str, Any]] = {
    "--model": {"callback": check_model_name, "autocompletion": complete_models},
    "--method": {"autocompletion": complete_methods},
}
"""What the command line adds to an option beside its field."""


def _make_parameter(
    name: str, field: FieldInfo, values: Mapping[str, Any], argument: bool = False
) -> inspect.Parameter:
    """Return the parameter of a command that a field is.

    Args:
        values: defaults in place of the fields' own, by name.
        argument: whether it has no flag.
    """
    option = next((each for each in field.metadata if isinstance(each, Option)), Option())
    flag = option.name or f"--{name.replace('_', '-')}"
    default: Any = values.get(
        name, ... if field.is_required() else field.get_default(call_default_factory=True)
    )
    kind: Any = option.type or field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    default = None if default == "" else default
    if get_origin(kind) is Literal:
        kind = str
    elif get_origin(kind) is Mapping:
        kind, default = list[str], [_write_setting(*item) for item in default.items()] or None
    shown: dict[str, Any] = {"help": field.description, **_OF_SHELL.get(flag, {})}
    for each in field.metadata:
        shown |= (
            {"min": each.ge} if isinstance(each, Ge) else {"max": each.le} if isinstance(each, Le) else {}
        )
    both = f"{flag}/--no-{flag[2:]}" if default is True else flag
    info = typer.Argument(**shown) if argument else typer.Option(both, **shown)
    return inspect.Parameter(
        flag[2:].replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind if default is not None else kind | None, info],
    )


@dataclass(frozen=True)
class _Options:
    """The options of a record in a command's signature.

    Attributes:
        record: the class.
        fields: the field of each option, by the option's parameter.
        defaults: values of fields in place of their own.
    """

    record: type[Record]
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]

    def read(self, context: typer.Context, given: dict[str, Any]) -> Record:
        """Return the record of the options that were given, which are taken out of all that were."""
        values = dict(self.defaults)
        for parameter, field in self.fields.items():
            value, source = given.pop(parameter), context.get_parameter_source(parameter)
            if source is not None and source.name != "DEFAULT":
                is_mapping = get_origin(self.record.model_fields[field].annotation) is Mapping
                values[field] = parse_settings(value) if is_mapping else value
        return self.record(**values)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one option for each field of its records. One with `AskSettings` has `--config`, too.

    Fields that mean nothing to the command (`LEFT_OUT`) are no options.
    """
    options: dict[str, _Options] = {}
    parameters: dict[str, inspect.Parameter] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *marks = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        is_needed = parameter.default is inspect.Parameter.empty
        if inspect.isclass(kind) and issubclass(kind, Record):
            values = {"name": ...} if is_needed else parameter.default.chosen
            made = {
                each: _make_parameter(each, field, values, argument=each == "name" and ARGUMENT in marks)
                for each, field in kind.model_fields.items()
                if each not in LEFT_OUT.get(command.__name__, ())
            }
            parameters |= {each.name: each for each in made.values()}
            fields = {each.name: field for field, each in made.items()}
            options[name] = _Options(kind, fields, {} if is_needed else values)
        elif field := next((each for each in marks if isinstance(each, FieldInfo)), None):
            parameters[name] = _make_parameter(name, field, {name: ... if is_needed else parameter.default})
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY  # whatever their order, some are needed and others not
            parameters[name] = parameter.replace(kind=keyword, annotation=hints[name])
    if AskSettings in [each.record for each in options.values()]:
        parameters["config"] = _CONFIG
    own = next((name for name, hint in hints.items() if hint is typer.Context), None)
    if own is None:
        parameters[_CONTEXT.name] = _CONTEXT

    @wraps(command)
    def run(**given: Any) -> None:
        context = given.pop(_CONTEXT.name) if own is None else given[own]
        given.pop("config", None)
        command(**{name: each.read(context, given) for name, each in options.items()}, **given)

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def _write_setting(name: str, value: Any) -> str:
    """Return a parameter as an option's text.

    Example:
        >>> _write_setting("eta", 0.25)
        'eta=0.25'
    """
    return f"{name}={json.dumps(value, ensure_ascii=False)}"


def _read_config(context: typer.Context, file: Path | None) -> None:
    """Take the values of options from a file; those on the command line come first."""
    if file is None or context.resilient_parsing:
        return
    text = read_text(file)
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"--config {file}: not YAML ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"--config {file}: write one option a line, such as max_new_tokens: 64")
    names = {
        option.lstrip("-").replace("-", "_"): parameter
        for parameter in context.command.params
        for option in (*parameter.opts, str(parameter.name))
        if not parameter.is_eager
    }
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in names:
            values[str(names[name].name)] = _write_value(names[name].multiple, value)
        elif context.ignore_unknown_options:  # of a benchmark
            context.meta.setdefault(OF_BENCHMARK, {})[name] = _write_value(False, value)
        else:
            raise unknown_name(f"--config {file}: option", str(key), names)
    context.default_map = values


def _write_value(multiple: bool, value: Any) -> Any:
    """Return a value of a file as an option takes it: lists with commas between, mappings as `NAME=VALUE`."""
    if isinstance(value, Mapping):
        return [_write_setting(str(name), each) for name, each in value.items()]
    if isinstance(value, list):
        return [*map(str, value)] if multiple else ",".join(map(str, value))
    return [str(value)] if multiple else value


OF_BENCHMARK = "mmprobe.benchmark"  # in a context, options of a benchmark that a file sets
ARGUMENT = "argument"
"""Marks a record in a command's signature whose name has no flag: `Annotated[ModelSettings, ARGUMENT]`."""
_CONTEXT = inspect.Parameter("context_of_call", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=_read_config,
            help="A YAML file of options, such as max_new_tokens: 64; those of the command line come first.",
        ),
    ],
)
