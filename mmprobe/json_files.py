"""JSON that users bring: checked against a model, with one line about the first thing that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mmprobe.errors import InputError
from mmprobe.samples import regular_file

MAX_DEPTH = 100  # of lists and objects in each other

Record = TypeVar("Record", bound=BaseModel)


class JsonRecord(BaseModel):
    """An object of a JSON file. Its fields must have the right types; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


def parse_record(text: str | bytes, record_type: type[Record], where: str) -> Record:
    """Return the object in a JSON text.

    Args:
        text: the JSON text.
        record_type: the model of the object.
        where: file and line, for messages.

    Raises:
        InputError: the text is not JSON, or is nested too deeply, or a field has another type. The message names
            `where` and the field.

    Example:
        >>> parse_record('{"a": 1}', JsonRecord, "a.json").model_dump()
        {'a': 1}
    """
    try:
        content = json.loads(text)
        check_depth(content)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: cannot be read as JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{where}: cannot be read as JSON (nested too deeply, a number too long, or no UTF-8)"
        ) from None
    try:
        return record_type.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {f'field {field[:200]!r}: ' if field else ''}{problem}") from None


def read_record(file: Path, record_type: type[Record]) -> Record:
    """Read a file that holds one JSON object.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: as `parse_record`.
    """
    try:
        text = regular_file(file).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    return parse_record(text, record_type, str(file))


def check_depth(content: Any) -> None:
    """Raise ValueError if lists and objects are nested so deeply that functions that call themselves would fail."""
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _check_size(value: float | None) -> float | None:
    if value is not None and not abs(value) < 1e300:
        raise ValueError("must be a finite number")
    return value


def _replace_surrogates(value: Any) -> Any:
    """Names of files that are not UTF-8 appear in messages as lone surrogates, which cannot be written."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


Number = Annotated[int | float | None, AfterValidator(_check_size)]
"""A finite number, or None if it is undefined."""
Text = Annotated[str, BeforeValidator(_replace_surrogates)]


class MetricEntry(JsonRecord):
    """A metric of results.json."""

    value: Number = None
    low: Number = None
    high: Number = None
    coverage: Number = None
    n: Number = None
    n_groups: Number = None
    range: list[Number] | None = Field(None, min_length=2, max_length=2)


class ResultsFile(JsonRecord):
    """The content of results.json, which scores write into a result folder."""

    benchmark: str = ""
    judge: str | None = None
    metrics: dict[str, MetricEntry]
