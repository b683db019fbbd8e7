"""The prompts of a benchmark and of its judges: a checked record of texts.

The texts are in `configs/prompts/BENCHMARK`: our own in `default.yaml`, and those that a paper prints in `paper.yaml`. A
file names only the prompts that it replaces.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from mmprobe.errors import InputError, suggest_names
from mmprobe.files import parse_yaml, read_text
from mmprobe.samples import Sample

DEFAULT = "default"
NOTICE = "notice"  # the placeholder of what tells a judge how its data come, see `judges.requests`
_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z][a-z0-9_]*)\}(?!\})")
_PLACEHOLDER_OR_ESCAPE = re.compile(r"\{\{([a-z][a-z0-9_]*)\}\}|\{([a-z][a-z0-9_]*)\}")


def find_placeholders(text: str) -> list[str]:
    """Return the names in a text that values replace, such as `{question}`. `{{question}}` is not one.

    Example:
        >>> find_placeholders('{question} Reply {"answer": 1} in {{braces}}.')
        ['question']
    """
    return _PLACEHOLDER.findall(text)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with values in place of its placeholders. Placeholders in the values stay as they are.

    Example:
        >>> fill("{options}\\nReply in {{braces}}.", {"options": {"A": "a {cat}", "B": "a dog"}})
        'A. a {cat}\\nB. a dog\\nReply in {braces}.'
    """

    def replace(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped is not None:
            return f"{{{escaped}}}"
        return _as_text(values[name]) if name in values else match.group()

    return _PLACEHOLDER_OR_ESCAPE.sub(replace, text)


def word_questions(samples: Sequence[Sample], text: str) -> list[Sample]:
    """Return samples whose questions are in a text with the placeholder `question`.

    Example:
        >>> word_questions([Sample(id="1", question="Is there a dog?")], "{question} Answer yes or no.")[0].question
        'Is there a dog? Answer yes or no.'
    """
    return [
        sample.model_copy(update={"question": fill(text, {"question": sample.question})})
        for sample in samples
    ]


def _as_text(value: Any) -> str:
    """Return a value as a prompt shows it: options and lists with a line for each."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        if len(value) == 2 and "text" in value:  # an item of a numbered list
            (number,) = (item for name, item in value.items() if name != "text")
            return f"{number}. {value['text']}"
        return "\n".join(f"{name}. {_as_text(item)}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(map(_as_text, value))
    return str(value)


class Fills:
    """The placeholders of a text, for its annotation.

    A name is needed, `a|b` needs one of two, and `a?` may be left out. A text for a `judge` contains `{notice}`, or else its
    data's placeholders.

    Example:
        >>> Fills("question", "boxes?").check("In {boxes}: {question}")
        'In {boxes}: {question}'
        >>> Fills("question", judge=True).check("Judge. {notice}")
        'Judge. {notice}'
    """

    def __init__(self, *names: str, judge: bool = False) -> None:
        self.needed = [name.split("|") for name in names if not name.endswith("?")]
        self.known = [each for name in names for each in name.removesuffix("?").split("|")]
        self.judge = judge

    def check(self, text: str) -> str:
        """Return the text. Raises ValueError for an empty one, and for a missing or an unknown placeholder."""
        if not text.strip():
            raise ValueError("is empty")
        found = find_placeholders(text)
        known = [*self.known, NOTICE] if self.judge else self.known
        for name in found:
            if name not in known:
                choice = f"its own are {', '.join(known)}" if known else "it has none"
                hint = suggest_names(name, known, choice)
                raise ValueError(
                    f"unknown placeholder {{{name}}}; {hint} Write {{{{{name}}}}} for the text itself"
                )
        if self.judge and NOTICE in found:
            if others := [name for name in found if name != NOTICE]:
                raise ValueError(
                    f"{{{NOTICE}}} and {{{others[0]}}}: the notice announces all data; choose one of the two forms"
                )
            return text
        for names in self.needed:
            if not set(names) & set(found):
                missing = " or ".join(f"{{{name}}}" for name in names)
                remedy = f"; add it, or {{{NOTICE}}} in place of all" if self.judge else "; add it"
                raise ValueError(f"lacks the placeholder {missing}{remedy}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a text that `check` accepts."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))


PlainText = Annotated[str, Fills()]
"""A text without placeholders."""


class _Source(NamedTuple):
    """Where texts come from: a name for errors, and the content."""

    name: str
    texts: Mapping[str, Any]


class Prompts(BaseModel):
    """The base of a benchmark's prompts. Each field is a text, or a list or mapping of texts.

    `folder` names the benchmark's folder in `configs/prompts`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    folder: ClassVar[str]


class QuestionPrompts(Prompts):
    """The prompts of a benchmark whose questions are asked as its files have them."""

    folder = "question"

    question: Annotated[str, Fills("question")]


AnyPrompts = TypeVar("AnyPrompts", bound=Prompts)


class Wording(NamedTuple):
    """Which texts are in use: the wording, the user's file, and the hash of all texts.

    Example:
        >>> Wording("paper", None, "9f2c")._asdict()
        {'name': 'paper', 'file': None, 'sha256': '9f2c'}
    """

    name: str
    file: str | None
    sha256: str


def list_wordings(form: type[Prompts]) -> list[str]:
    """Return the wordings that a benchmark ships.

    Example:
        >>> from mmprobe.benchmarks.magic.prompts import MagicPrompts
        >>> list_wordings(MagicPrompts)
        ['default', 'paper']
    """
    folder = resources.files("mmprobe.configs") / "prompts" / form.folder
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


@cache
def default_prompts(form: type[AnyPrompts]) -> AnyPrompts:
    """Return a benchmark's prompts in our own wording.

    Example:
        >>> from mmprobe.benchmarks.chair.benchmark import ChairPrompts
        >>> default_prompts(ChairPrompts).question
        'Please describe this image in detail.'
    """
    return _validate(form, [_shared(form), _read_text(form.folder, DEFAULT)])


def read_prompts(form: type[AnyPrompts], wording: str = DEFAULT, file: Path | None = None) -> AnyPrompts:
    """Return a benchmark's prompts in one of its wordings, with the texts of a user's file in place of some.

    Raises:
        InputError: the file is not a mapping from the names of the prompts to texts with the placeholders that they need.

    Example:
        >>> from mmprobe.benchmarks.magic.prompts import MagicPrompts
        >>> "bounding boxes" in read_prompts(MagicPrompts, "paper").question
        True
    """
    names = dict.fromkeys([DEFAULT, wording])
    sources = [_shared(form), *(_read_text(form.folder, name) for name in names)]
    if file is not None:
        sources.append(_Source(str(file), _parse_yaml(read_text(file), str(file))))
    return _validate(form, sources)


def describe_wording(prompts: Prompts, wording: str = DEFAULT, file: Path | None = None) -> Wording:
    """Return what results record of the prompts in use."""
    text = json.dumps(prompts.model_dump(mode="json"), sort_keys=True)
    name = None if file is None else str(file)
    return Wording(wording, name, hashlib.sha256(text.encode()).hexdigest())


def shared_text(name: str) -> str:
    """Return a text that judges of several benchmarks get, in our own wording.

    Example:
        >>> shared_text("correct").split(maxsplit=2)[:2]
        ['You', 'check']
    """
    return str(_read_text("judges", DEFAULT).texts[name])


def _shared(form: type[Prompts]) -> _Source:
    """Return the texts that judges of several benchmarks get, of those that a benchmark has."""
    shared = _read_text("judges", DEFAULT)
    return shared._replace(
        texts={name: text for name, text in shared.texts.items() if name in form.model_fields}
    )


@cache
def _read_text(folder: str, wording: str) -> _Source:
    file = resources.files("mmprobe.configs") / "prompts" / folder / f"{wording}.yaml"
    where = f"configs/prompts/{folder}/{wording}.yaml"
    return _Source(where, _parse_yaml(file.read_text(encoding="utf-8"), where))


def _parse_yaml(text: str, where: str) -> Mapping[str, Any]:
    """Return the mapping in a YAML text."""
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"{where}: not YAML ({error})") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(f"{where}: not a mapping from names of prompts to texts")
    return content


def _validate(form: type[AnyPrompts], sources: Sequence[_Source]) -> AnyPrompts:
    """Return the record of the sources' texts, later ones in place of earlier ones. Raises InputError naming the last source."""
    texts: dict[str, Any] = {}
    for source in sources:
        _check_names(form, source)
        texts |= {
            name: {**texts[name], **value}
            if isinstance(value, dict) and isinstance(texts.get(name), dict)
            else value
            for name, value in source.texts.items()
        }
    try:
        return form.model_validate(texts)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        known = texts.get(path[0])
        if first["type"] == "extra_forbidden" and isinstance(known, dict):
            own = form.model_fields[path[0]].annotation
            names = list(getattr(own, "model_fields", {}))
            hint = suggest_names(path[-1], names, f"its own are {', '.join(names)}")
            raise InputError(
                f"{sources[-1].name}: prompt {'.'.join(path)!r}: there is none; {hint}"
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{sources[-1].name}: prompt {'.'.join(path)!r}: {message}") from None


def _check_names(form: type[Prompts], source: _Source) -> None:
    for name in source.texts:
        if name not in form.model_fields:
            known = list(form.model_fields)
            hint = suggest_names(name, known, f"its own are {', '.join(known)}")
            raise InputError(f"{source.name}: prompt {name!r}: there is none; {hint}")
