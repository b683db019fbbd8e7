"""Records from JSON lines, checked one by one, what is wrong named by file, line and field; and files written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, check_image

Record = TypeVar("Record", bound=BaseModel)


def read_records(path: str | Path, record: type[Record]) -> list[tuple[int, Record]]:
    """Read a file of one JSON object a line: the number of each line, from 1, and its record.

    Args:
        path: a `.jsonl` file in UTF-8; blank lines are ignored.
        record: what each line must be. If it has a field `id`, ids must differ.

    Raises:
        InputError: naming file, line and field, for the first line that is not such a record, for an id
            that was used before, for a file that is missing, not text or empty.

    Example:
        >>> read_records("questions.jsonl", MirageQuestion)[0][1].topic        # doctest: +SKIP
        'geometry'
    """
    found: list[tuple[int, Record]] = []
    seen: dict[str, int] = {}
    for number, data in json_lines(path):
        where = f"{path}, line {number}"
        try:
            item = record.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            named = f"field {field!r}: " if field else ""  # what concerns several fields names them itself
            raise InputError(f"{where}: {named}{first['msg'].removeprefix('Value error, ')}") from None
        name = getattr(item, "id", None)
        if isinstance(name, str):
            if name in seen:
                raise InputError(f"{where}: field 'id': {name!r} was used in line {seen[name]} already")
            seen[name] = number
        found.append((number, item))
    if not found:
        raise InputError(f"{path}: holds no lines; one JSON object a line is expected")
    return found


def load_with_images(path: str | Path, record: type[Record]) -> list[Record]:
    """Records with a field `images`, whose paths are relative to the file and made absolute.

    Raises:
        InputError: as `read_records`, and for an image that is missing or cannot be read.

    Example:
        >>> load_with_images("questions.jsonl", MirageQuestion)[0].images      # doctest: +SKIP
        [PosixPath('/data/mirage/0001.png')]
    """
    found = []
    for number, item in read_records(path, record):
        images = [check_path(image, path, number, "images")[0] for image in getattr(item, "images", [])]
        found.append(item.model_copy(update={"images": images}))
    return found


def json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Number and content of each line that is not blank.

    Raises:
        InputError: as `read_records`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would split at U+2028 in a text
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, parse_constant=_no_number)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}, line {number}: not JSON ({error.msg} at column {error.colno})"
            ) from None
        except (RecursionError, ValueError) as error:
            raise InputError(f"{path}, line {number}: not JSON that can be read ({error})") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def check_path(
    file: Path, beside: str | Path, number: int, field: str, any_depth: bool = False
) -> tuple[Path, tuple[int, int]]:
    """A picture's path made absolute, from that of the file that names it, and its (height, width).

    Args:
        any_depth: greys may have more than 8 bits.

    Raises:
        InputError: naming line and field, if it is no picture that can be read.
    """
    full = (Path(beside).parent / file).absolute()
    return full, check_image(full, f"{beside}, line {number}: field {field!r}", any_depth)


def check_further(where: str | Path, ids: Iterable[str], further: Iterable[tuple[str, str]]) -> None:
    """Check the ids of questions that are asked beside those of a file.

    Args:
        ids: of the file.
        further: the id of a question of the file, and the further one's that is made of it.

    Raises:
        InputError: a further id is taken, or is no id.

    Example:
        >>> check_further("questions.jsonl", ["1"], [("1", "1--text")])
    """
    taken = set(ids)
    for name, made in further:
        if made in taken or not SAFE_ID.fullmatch(made):
            reason = "is taken" if made in taken else "is too long"
            raise InputError(f"{where}: id {name!r}: {made!r}, which is asked too, {reason}; rename one")
        taken.add(made)


def write_whole(file: Path, text: str) -> Path:
    """Write a file so that it is there whole or not at all; half a surrogate pair, as of a cut emoji, becomes `?`.

    Example:
        >>> write_whole(Path("out/labels.jsonl"), "")               # doctest: +SKIP
        PosixPath('out/labels.jsonl')
    """
    part = file.with_name(file.name + ".part")
    part.write_text(text, encoding="utf-8", errors="replace")
    os.replace(part, file)
    return file
