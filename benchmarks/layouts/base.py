"""What a layout is, and what several of them share: rows of parquet files, images in bytes, lettered options."""

from __future__ import annotations

import ast
import io
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import BaseModel

from mmprobe.errors import InputError
from mmprobe.files import check_readable
from mmprobe.samples import IMAGE_FORMATS, check_id, check_image

Lines = Iterator[tuple[str, dict[str, Any]]]
"""The place of each question, for messages, and its line of the benchmark's own file."""

MAX_IMAGE_BYTES = 64 * 2**20  # of one encoded image, our choice
_MAX_LIST_CHARS = 100_000  # of options that are published as the text of a list


@dataclass(frozen=True)
class Layout:
    """A layout of published data: its name, benchmark, form of questions, how it is recognised, and is read."""

    name: str
    benchmark: str
    record: type[BaseModel]
    matches: Callable[[Path], bool]
    read: Callable[[Path, Path], Lines]

    @property
    def about(self) -> str:
        """One line about the layout."""
        return f"As published; read by `bench {self.benchmark}`."


def find_parquet(path: Path) -> list[Path]:
    """Return the parquet files of a path, of its folder or of `data/` in it. Of several splits, `test`."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    files = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    return [file for file in files if file.name.startswith("test")] or files


def has_columns(path: Path, *names: str) -> bool:
    """Return whether a path contains parquet files with these columns."""
    files = find_parquet(path)
    return bool(files) and set(names) <= set(_open_parquet(files[0]).schema_arrow.names)


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of each row and its values, a few rows at a time: a file may hold gigabytes."""
    for file in find_parquet(path):
        batches, number = _open_parquet(file).iter_batches(batch_size=16), 0
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            raise InputError(f"{file}: cannot be read after row {number} ({error})") from None


def _open_parquet(file: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(f"{file}: needs pyarrow; pip install 'mmprobe[parquet]'") from None
    try:
        return pq.ParquetFile(check_readable(file))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not a parquet file that can be read ({error})") from None


def save_image(content: object, folder: Path, stem: str, where: str) -> str:
    """Write an image's bytes to `images/STEM.SUFFIX` in a folder, checked as every image. Return this path.

    `content` is the bytes, or the `{"bytes": ...}` of a parquet column. Raises InputError, with `where`, its place,
    for no image, or one over 100 megapixels or 64 MiB.
    """
    data = content.get("bytes") if isinstance(content, dict) else content
    if not isinstance(data, bytes) or not data:
        raise InputError(f"{where}: its image contains no bytes")
    if len(data) > MAX_IMAGE_BYTES:
        raise InputError(f"{where}: its image has {len(data) / 2**20:.0f} MiB, over 64; make it smaller")
    (folder / "images").mkdir(exist_ok=True)
    file = folder / "images" / f"{stem}.{_suffix(data)}"
    file.write_bytes(data)
    check_image(file, where)
    return f"images/{file.name}"


def _suffix(data: bytes) -> str:
    """Return the usual suffix of an image's format, by its content; `img` if `check_image` will refuse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
                return (image.format or "img").lower().replace("jpeg", "jpg")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "img"


def make_id(value: object, where: str) -> str:
    """Return a published id as text. Raises InputError if it cannot name a sample."""
    text = str(value).strip()
    try:
        return check_id(text)
    except ValueError as error:
        raise InputError(f"{where}: id {text!r} {error}") from None


def letter_choices(texts: object, where: str) -> dict[str, str]:
    """Return options, a list or the text of a list, by their letters from A on. Raises InputError for others.

    Example:
        >>> letter_choices("['a cat', 'a dog']", "row 1")
        {'A': 'a cat', 'B': 'a dog'}
    """
    if isinstance(texts, str) and len(texts) <= _MAX_LIST_CHARS:
        try:
            texts = ast.literal_eval(texts)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise InputError(f"{where}: its options are not a list") from None
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not 2 <= len(texts) <= 26:
        raise InputError(f"{where}: its options are not a list of 2 to 26 texts")
    return dict(zip(string.ascii_uppercase, (str(text).strip() for text in texts), strict=False))
