"""Records in JSON lines, checked one by one, and files that appear only when they are complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from mmprobe.errors import InputError
from mmprobe.json_files import ResultsFile, check_depth, read_record
from mmprobe.samples import SAFE_ID, check_image, regular_file
from mmprobe.whole_files import write_whole

Record = TypeVar("Record", bound=BaseModel)


def read_records(path: str | Path, record_type: type[Record]) -> list[tuple[int, Record]]:
    """Return each line's number, from 1, and its record, of a file of one JSON object a line.

    Raises InputError, with file, line and field, for a line that is no such record or repeats an id, and for
    a file that is missing, empty or no text.
    """
    records: list[tuple[int, Record]] = []
    lines_by_id: dict[str, int] = {}
    for number, data in json_lines(path):
        where = f"{path}, line {number}"
        record = validate_record(data, record_type, where)
        record_id = getattr(record, "id", None)
        if isinstance(record_id, str):
            if record_id in lines_by_id:
                earlier = lines_by_id[record_id]
                raise InputError(f"{where}: field 'id': {record_id!r} was used in line {earlier} already")
            lines_by_id[record_id] = number
        records.append((number, record))
    if not records:
        raise InputError(f"{path}: holds no lines; one JSON object a line is expected")
    return records


def validate_record(data: Any, record_type: type[Record], where: str) -> Record:
    """Return the record of a line, or raise InputError that begins with `where` and names the field."""
    try:
        return record_type.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        prefix = f"field {field!r}: " if field else ""  # an error of several fields names them itself
        raise InputError(f"{where}: {prefix}{first['msg'].removeprefix('Value error, ')}") from None


def load_with_images(path: str | Path, record_type: type[Record]) -> list[Record]:
    """Read records with a field `images`, relative to the file, as absolute paths that were checked."""
    records = []
    for number, record in read_records(path, record_type):
        images = [resolve_image(image, path, number, "images")[0] for image in getattr(record, "images", [])]
        records.append(record.model_copy(update={"images": images}))
    return records


def json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield number and content of each line that is not blank. Raises InputError as `read_records`."""
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would split at U+2028 in a text
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}, line {number}: not JSON ({error.msg} at column {error.colno})"
            ) from None
        except (RecursionError, ValueError) as error:
            raise InputError(f"{path}, line {number}: not JSON that can be read ({error})") from None


class Results(ResultsFile):
    """The content of results.json, with what else names the answers."""

    model: str | None = None
    method: str | None = None
    data: str | None = None

    def model_name(self) -> str | None:
        """Return the name of the model, with its method unless that is plain; None if no model was asked."""
        named = self.model and self.method not in (None, "plain")
        return f"{self.model}, {self.method}" if named else self.model


def read_results(folder: Path, benchmark: str | None = None) -> Results:
    """Return the content of results.json in a result folder of `bench` or `score`.

    Raises InputError where there is none, it cannot be read, or it is another benchmark's.
    """
    file = folder / "results.json"
    try:
        results = read_record(file, Results)
    except FileNotFoundError:
        raise InputError(f"{folder}: holds no results.json; name a result folder of bench or score") from None
    if benchmark not in (None, results.benchmark):
        raise InputError(f"{file}: holds no results of {benchmark}")
    return results


def result_records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each record of a result folder stands, and the record. Raises InputError as `json_lines`."""
    for number, record in json_lines(folder / "samples.jsonl"):
        where = f"{folder / 'samples.jsonl'}, line {number}"
        if not isinstance(record, dict):
            raise InputError(f"{where}: is no record")
        try:
            check_depth(record)
        except ValueError as error:
            raise InputError(f"{where}: is {error}") from None
        yield where, record


def read_text(path: str | Path) -> str:
    """Return the text of a regular file. Raises InputError if it is missing, or no UTF-8 text."""
    try:
        return regular_file(Path(path)).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read as UTF-8 text ({reason})") from None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. Raises InputError if it is missing or cannot be read."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not JSON that can be read ({error})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def resolve_image(
    image: Path, file: str | Path, line: int, field: str, any_depth: bool = False
) -> tuple[Path, tuple[int, int]]:
    """Return an image's absolute path and (height, width). Raises InputError with line and field."""
    path = (Path(file).parent / image).absolute()
    return path, check_image(path, f"{file}, line {line}: field {field!r}", any_depth)


def check_derived_ids(where: str | Path, ids: Iterable[str], derived: Iterable[tuple[str, str]]) -> None:
    """Raise InputError where an id derived from an original is taken already, or is no valid id.

    Example:
        >>> check_derived_ids("questions.jsonl", ["1"], [("1", "1--text")])
    """
    taken = set(ids)
    for original, derived_id in derived:
        if derived_id in taken or not SAFE_ID.fullmatch(derived_id):
            reason = "is taken" if derived_id in taken else "is too long"
            raise InputError(
                f"{where}: id {original!r}: {derived_id!r}, which is asked too, {reason}; rename one"
            )
        taken.add(derived_id)


def write_atomic(file: Path, text: str) -> Path:
    """Write a file that appears when it is complete. Half a surrogate pair, as of a cut emoji, is `?`."""
    write_whole({file: text.encode("utf-8", errors="replace")})
    return file
