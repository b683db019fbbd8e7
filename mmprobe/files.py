"""Read and write files with care: whole files, checked JSON, JSON lines that a kill may cut off, result folders.

What users bring is checked against a model, and an error is one line about the first thing that is wrong.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import xxhash
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mmprobe.errors import InputError

MOST_HASHES = 5000  # of files that are remembered: 3 MB; our choice
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$|^AWS_SESSION_TOKEN$")  # names of variables
_SHORTEST_KEY = 8  # characters; a shorter value could be a word
_PIECE = 1 << 20  # bytes of a file that are hashed at a time
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_PART = re.compile(r"\.[0-9a-f]{16}\.part$")

Record = TypeVar("Record", bound=BaseModel)


# Files


def check_readable(path: Path) -> Path:
    """Return a path if it may be opened for reading: it leads to a file or a folder.

    To open a named pipe blocks until somebody writes to it, and a device may have no end.

    Raises:
        OSError: it leads to a named pipe, a device or a socket, or nowhere.

    Example:
        >>> check_readable(Path("/dev/zero"))
        Traceback (most recent call last):
        OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder raises its own error
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def read_text(path: str | Path) -> str:
    """Return the text of a regular file.

    Raises:
        InputError: it is missing, or not UTF-8 text.
    """
    try:
        return check_readable(Path(path)).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read as UTF-8 text ({reason})") from None


def hash_file(path: Path) -> str:
    """Return a hash of a file's content, 16 hexadecimal digits.

    A file of which the kernel reports neither another size nor another time is not read again, if it is one of the newest
    `MOST_HASHES`.

    Raises:
        OSError: the file cannot be read.
    """
    status = check_readable(path).stat()
    return _hash_content(str(path), *file_state(status))


def file_state(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes with a file's content. Its time of change can be set back, but that is a change, too."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=MOST_HASHES)
def _hash_content(path: str, *state: int) -> str:
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def redact(text: str) -> str:
    """Return a text in which the keys of APIs in the environment are not readable.

    A server may repeat the key that it was called with.

    Example:
        >>> os.environ["MADE_UP_API_KEY"] = "sk-0123456789"
        >>> redact("unknown key sk-0123456789")
        'unknown key [MADE_UP_API_KEY]'
        >>> del os.environ["MADE_UP_API_KEY"]
    """
    for name, value in os.environ.items():
        is_key = len(value) >= _SHORTEST_KEY and any(map(str.isdigit, value)) and _SECRET.search(name)
        if is_key and value in text:
            text = text.replace(value, f"[{name}]")
    return text


def write_whole(contents: Mapping[Path, bytes | memoryview | Iterable[bytes]]) -> None:
    """Write files. They get their names when all of them are on the disk, so earlier files stay whole until then.

    Args:
        contents: of each file, as one piece or as pieces that follow each other.

    Raises:
        InputError: a file cannot be written.
        OSError: the disk is full or fails.

    Example:
        >>> write_whole({Path("out/results.json"): b"{}"})          # doctest: +SKIP
    """
    with ExitStack() as stack:
        parts = []
        for file, content in contents.items():
            with _name_errors(file):
                part = stack.enter_context(NewFile(file))
                part.remove_left()
                part.stream.writelines([content] if isinstance(content, bytes | memoryview) else content)
                part.sync()
            parts.append(part)
        for part in parts:
            with _name_errors(part.file):
                part.place()


def write_atomic(file: Path, text: str) -> Path:
    """Write a file that appears when it is complete, without keys. Half a surrogate pair, as of a cut emoji, is `?`."""
    write_whole({file: redact(text).encode("utf-8", errors="replace")})
    return file


class NewFile:
    """A new file under a random name. `place` gives it its own name.

    A link in its place is not followed, but replaced. Without `place`, the file is removed at the end of the `with` block.

    Args:
        file: its path in the end.

    Attributes:
        part: its path until then, for libraries that open files themselves.
        stream: to write to it.

    Example:
        >>> with NewFile(Path("out/results.json")) as new:          # doctest: +SKIP
        ...     new.stream.write(b"{}")
        ...     new.sync()
        ...     new.place()
    """

    def __init__(self, file: Path):
        self.file = file
        self.part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
        descriptor = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)
        self.stream = os.fdopen(descriptor, "w+b")
        _lock(descriptor)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def sync(self) -> None:
        """Write what is in memory to the disk."""
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def place(self) -> None:
        """Give the file its name; an earlier file, or a link in its place, is replaced."""
        os.replace(self.part, self.file)
        self.discard()

    def discard(self) -> None:
        """Close the file, and remove it if it has not got its name."""
        if self.stream.closed:
            return
        with suppress(OSError):  # a full disk: what is in memory cannot be written
            self.stream.close()
        with suppress(OSError):
            self.part.unlink()

    def remove_left(self) -> None:
        """Remove parts of this file that a killed process left: the kernel's lock tells that nobody writes them."""
        for left in self.file.parent.iterdir():
            if not is_part(left.name) or _PART.sub("", left.name) != self.file.name:
                continue
            with suppress(OSError):
                descriptor = os.open(left, os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _NO_LINK)
                try:
                    if _lock(descriptor):
                        left.unlink()
                finally:
                    os.close(descriptor)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder under a random name, which gets its own name at the end of the block if nothing was raised.

    Nothing that is there is written or deleted. A folder that a killed process left under such a name stays.

    Raises:
        InputError: it cannot be made, or something has its name by then.
        OSError: the disk is full.

    Example:
        >>> with new_folder(Path("out/activations")) as part:       # doctest: +SKIP
        ...     (part / "state.json").write_text("{}")
    """
    part = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.part")
    try:
        part.mkdir()
    except OSError as error:
        raise writing_error(folder, error, "the folder cannot be made") from None
    try:
        yield part
        try:
            os.rename(part, folder)
        except OSError as error:
            raise writing_error(folder, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_part(name: str) -> bool:
    """Return whether a file of this name is a part that `NewFile` made.

    Example:
        >>> is_part("run.json.0123456789abcdef.part"), is_part("film.part")
        (True, False)
    """
    return _PART.search(name) is not None


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed. Return whether that was possible: nobody else has it, and locks exist."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def _name_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise writing_error(file, error) from None


def make_subfolder(folder: Path) -> Path:
    """Make a folder within a folder of results, if it is not there, and return it.

    Raises:
        InputError: a link or a file is in its place, or it cannot be made. What is written into a run stays in it.
        OSError: the disk is full.

    Example:
        >>> make_subfolder(Path("runs/demo/analyses"))                 # doctest: +SKIP
        PosixPath('runs/demo/analyses')
    """
    check_no_link(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise writing_error(folder, error, "the folder cannot be made") from None
    return folder


def make_folders(folder: Path) -> Path:
    """Make a folder that a user named, and those above it, if they are not there, and return it.

    Raises:
        InputError: something else is in its place, or it cannot be made.
        OSError: the disk is full.

    Example:
        >>> make_folders(Path("/dev/null/results"))
        Traceback (most recent call last):
        mmprobe.errors.InputError: /dev/null/results: the folder cannot be made (Not a directory); choose another
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        place = Path(error.filename)  # the folder, or one above it
        what = "is a link that leads nowhere" if place.is_symlink() else "is a file"
        raise InputError(f"{place}: {what}; choose another folder") from None
    except OSError as error:
        if error.errno in FULL:
            raise writing_error(folder, error) from None
        raise InputError(f"{folder}: the folder cannot be made ({error.strerror}); choose another") from None
    except ValueError as error:  # NUL, or half a surrogate pair
        raise InputError(f"{folder}: is not a path ({error}); choose another") from None
    return folder


def check_no_link(path: Path) -> Path:
    """Return a path in a folder of results if it is not a link.

    Raises:
        InputError: it is a link, so what is written there would be outside.

    Example:
        >>> check_no_link(Path("runs/demo/samples"))
        PosixPath('runs/demo/samples')
    """
    if os.path.islink(path):  # where pathlib would raise an error for a name that is too long
        raise InputError(f"{path}: is a link, and what is written there would be elsewhere; remove the link")
    return path


def writing_error(path: Path, error: OSError, problem: str = "cannot be written") -> InputError | OSError:
    """Return the error for the user: a full disk fails the job, and anything else is a place that cannot be used."""
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"{path}: {problem} ({error.strerror or error})")


# JSON


class JsonRecord(BaseModel):
    """An object of a JSON file. Its fields must have the right types; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: it is missing or cannot be read.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not JSON that can be read ({error})") from None


def read_record(file: Path, record_type: type[Record]) -> Record:
    """Read a file of one JSON object.

    Raises:
        FileNotFoundError: the file is missing.
        InputError: as `parse_record`.
    """
    try:
        text = check_readable(file).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    return parse_record(text, record_type, str(file))


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
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: cannot be read as JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{where}: cannot be read as JSON (nested too deeply, a number too long, or no UTF-8)"
        ) from None
    return validate_record(content, record_type, where)


def validate_record(content: Any, record_type: type[Record], where: str) -> Record:
    """Return the record of an object that was read.

    Raises:
        InputError: a field is missing or has another type. The message begins with `where` and names the field.
    """
    try:
        return record_type.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])[:200]
        prefix = f"field {field!r}: " if field else ""  # an error of several fields names them itself
        raise InputError(f"{where}: {prefix}{first['msg'].removeprefix('Value error, ')}") from None


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text, of which nothing is run.

    Raises:
        ValueError: it is not YAML. The message is one line.

    Example:
        >>> parse_yaml("a: [1, 2]")
        {'a': [1, 2]}
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


# JSON lines


def json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield number and content of each line that is not blank.

    Raises:
        InputError: the file is missing or not UTF-8 text, or a line is not JSON.
    """
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read_records(path: str | Path, record_type: type[Record]) -> list[tuple[int, Record]]:
    """Return each line's number, from 1, and its record, of a file of one JSON object a line.

    Raises:
        InputError: a line is not such a record or repeats an id, with file, line and field; or the file is
            missing, empty or not text.
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
        raise InputError(f"{path}: contains no lines; one JSON object a line is expected")
    return records


def append_lines(file: Path, records: Iterable[Any], ensure_ascii: bool = True) -> None:
    """Append one line a record, so that a kill can cut off the last line only.

    Raises:
        InputError: the file is a link, or cannot be written.
        OSError: the disk is full.
    """
    lines = "".join(json.dumps(record, ensure_ascii=ensure_ascii) + "\n" for record in records)
    with _name_errors(file):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK
        with os.fdopen(os.open(check_no_link(file), flags, 0o666), "ab") as stream:
            stream.write(redact(lines).encode("utf-8", errors="replace"))


def cut_torn_line(file: Path) -> bool:
    """Remove a last line that a killed process did not finish. Return whether the file has lines.

    The file is cut in place: to write it anew could lose its lines on a full disk.
    """
    if not check_no_link(file).exists():
        return False
    content = check_readable(file).read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    return bool(whole.strip())


# Result folders


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
    unread: Number = None
    range: list[Number] | None = Field(None, min_length=2, max_length=2)


class Results(JsonRecord):
    """The content of results.json, which scores write into a result folder. Other entries record the settings."""

    benchmark: str = ""
    judge: str | None = None
    metrics: dict[str, MetricEntry]

    def entry(self, name: str) -> str | None:
        """Return one of the other entries, such as `model`; None if it is missing or not a text."""
        value = (self.model_extra or {}).get(name)
        return value if isinstance(value, str) else None

    def model_name(self) -> str | None:
        """Return the name of the model, with its method unless that is plain; None if no model answered."""
        model, method = self.entry("model"), self.entry("method")
        return f"{model}, {method}" if model and method not in (None, "plain") else model


def read_results(folder: Path, benchmark: str | None = None) -> Results:
    """Return the content of results.json in a result folder of `bench` or `score`.

    Raises:
        InputError: there is none, it cannot be read, or it is another benchmark's.
    """
    file = folder / "results.json"
    try:
        results = read_record(file, Results)
    except FileNotFoundError:
        raise InputError(
            f"{folder}: contains no results.json; name a result folder of bench or score"
        ) from None
    if benchmark not in (None, results.benchmark):
        raise InputError(f"{file}: contains no results of {benchmark}")
    return results


def result_records(
    folder: Path, record_type: type[JsonRecord] = JsonRecord
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield file and line of each record of a result folder, and the record.

    Args:
        folder: as for `read_results`.
        record_type: the model of a record, with the fields that it must have.

    Raises:
        InputError: samples.jsonl cannot be read, or as `parse_record`.
    """
    file = folder / "samples.jsonl"
    try:
        lines = check_readable(file).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{file}, line {number}"
            yield where, parse_record(line, record_type, where).model_dump()


BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_bytes(count: float) -> str:
    """Return a number of bytes with its unit, in powers of 1,000, with two digits or more.

    Example:
        >>> format_bytes(812), format_bytes(41_300), format_bytes(2_240_000_000), format_bytes(999_960)
        ('812 bytes', '41 kB', '2.2 GB', '1.0 MB')
    """
    size, unit = float(count), 0
    while unit < len(BYTE_UNITS) - 1 and round(size) >= 1000:
        size, unit = size / 1000, unit + 1
    return f"{size:.{0 if size >= 9.95 or not unit else 1}f} {BYTE_UNITS[unit]}"
