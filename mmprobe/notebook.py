"""What a notebook shows of runs, traces, samples and models, and tables in Markdown."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

THUMBNAIL = (160, 160)  # pixels


def show_fields(fields: Mapping[str, object], images: Sequence[Path] = ()) -> str:
    """Return HTML: thumbnails of the images, and a table of the fields that have a value.

    Example:
        >>> show_fields({"question": "a < b?", "answer": None})
        '<table><tr><th>question</th><td>a &lt; b?</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in fields.items()
        if value not in (None, "", [], {})
    )
    return f"{''.join(map(_thumbnail, images))}<table>{rows}</table>"


def show_rows(header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return HTML: a table with a header, and a note below it.

    Example:
        >>> show_rows(["id"], [["a&b"]])
        '<table><tr><th>id</th></tr><tr><td>a&amp;b</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>{f'<p>{escape(note)}</p>' if note else ''}"


def markdown_lines(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, each as soon as its row is there."""
    head = list(columns)
    for number, cells in enumerate(chain([head], rows)):
        yield "".join(f"| {cell} " if cell != "" else "| " for cell in cells) + "|"
        if not number:
            yield "|" + "---|" * len(head)


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown.

    Args:
        columns: the headings.
        rows: the cells of each row.

    Example:
        >>> print(markdown_table(["name", "n"], [["a", 1], ["", 0]]))
        | name | n |
        |---|---|
        | a | 1 |
        | | 0 |
    """
    return "\n".join(markdown_lines(columns, rows))


def _thumbnail(path: Path) -> str:
    """Return an image as HTML, or its name where it cannot be read."""
    from mmprobe.samples import read_picture

    try:
        small: Any = ImageOps.contain(read_picture(path), THUMBNAIL)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return f"<span>{escape(path.name)} cannot be read</span>"
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(path.name)}" src="data:image/png;base64,{data}">'
