"""MMReason (arXiv:2506.23563): `MMReason_testmini.tsv`, a table of VLMEvalKit with images in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.layouts.base import MAX_IMAGE_BYTES, Layout, Lines, make_id, save_image
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.errors import InputError
from mmprobe.files import check_readable

_COLUMNS = {"index", "image", "question", "answer", "discipline"}
MAX_IMAGES = 100  # of one question, our choice
_LONGEST_INDEX = 64  # a shorter image is the index of the row that contains it, as in VLMEvalKit


def _matches(path: Path) -> bool:
    return table_columns(path) >= _COLUMNS


def table_columns(path: Path) -> set[str]:
    """Return the names of the columns of a `.tsv` file; empty for another file."""
    if path.suffix != ".tsv" or not path.is_file():
        return set()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return {name.strip('"') for name in file.readline(10_000).rstrip("\n").split("\t")}


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions. A row may name another row's images by its index, also that of a later row."""
    images: dict[str, list[str]] = {}
    lines = []
    for where, row in read_table(path):
        name = make_id(row["index"], where)
        reference = row["image"].strip()
        if len(reference) > _LONGEST_INDEX:
            images[name] = [
                save_image(decode_image(text, where), folder, f"{name}-{number}", where)
                for number, text in enumerate(_split(reference, where), 1)
            ]
        lines.append((where, name, reference, row))
    for where, name, reference, row in lines:
        source = name if name in images else reference
        if source and source not in images:
            raise InputError(
                f"{where}: its image {source!r} is neither base64 nor the index of a row with one"
            )
        line: dict[str, Any] = {
            "id": name,
            "images": images.get(source, []),
            "question": row["question"],
            "answer": row["answer"].strip(),
            "discipline": row["discipline"].strip().lower(),
            "source": row.get("source", "").strip() or path.stem,
        }
        yield where, line


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of the table, which has quoted cells with line breaks. Every value is a text."""
    import pandas as pd

    number = 0
    try:
        with pd.read_csv(
            check_readable(path),
            sep="\t",
            dtype=str,
            keep_default_na=False,
            chunksize=16,
            encoding="utf-8-sig",
        ) as table:
            for chunk in table:
                for row in chunk.to_dict("records"):
                    number += 1
                    yield f"{path}, row {number}", {str(key): str(value) for key, value in row.items()}
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise InputError(f"{path}: cannot be read after row {number} ({error})") from None


def _split(text: str, where: str) -> list[str]:
    """Return the images of a cell: one, or the text of a list of them. Base64 contains no commas and quotes."""
    if not text.startswith("["):
        return [text]
    items = [item.strip() for item in text[1:].removesuffix("]").split(",", MAX_IMAGES)]
    if len(items) > MAX_IMAGES or any(
        len(item) < 2 or item[0] + item[-1] not in ("''", '""') for item in items
    ):
        raise InputError(f"{where}: its image is not a list of at most {MAX_IMAGES} texts in base64")
    return [item[1:-1] for item in items]


def decode_image(text: str, where: str) -> bytes:
    """Return the bytes of an image in base64, also of a data URI."""
    text = text.strip().partition(";base64,")[2] or text.strip()
    if len(text) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise InputError(f"{where}: its image has over {MAX_IMAGE_BYTES // 2**20} MiB; make it smaller")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{where}: its image is not base64") from None


MMREASON = Layout("MMReason", "mmreason", ReasonQuestion, _matches, _read)
