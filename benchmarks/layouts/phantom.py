"""Phantom-0 of the mirage effect (arXiv:2603.21687): a JSON list of questions about images that nobody attaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmprobe.benchmarks.layouts.base import Layout, Lines, make_id
from mmprobe.benchmarks.mirage_effect.data import ImagelessLine
from mmprobe.errors import InputError
from mmprobe.files import read_json

_QUESTION = ("question", "prompt", "text")
_CATEGORY = ("category", "domain", "subject", "modality", "type")
_MAX_BYTES = 16 * 2**20  # of a file that is looked into, our choice


def _matches(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return False
    try:
        rows = _rows(read_json(path))
    except InputError:
        return False
    return bool(rows) and all(_find(row, _QUESTION) and not row.get("images") for row in rows)


def _rows(content: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or of the only list in an object."""
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else None
    return content if isinstance(content, list) and all(isinstance(row, dict) for row in content) else []


def _find(row: dict[str, Any], names: tuple[str, ...]) -> str:
    found = (row[name].strip() for name in names if isinstance(row.get(name), str))
    return next((text for text in found if text), "")


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions; one without an id gets its number, one without a category is of `phantom-0`."""
    for number, row in enumerate(_rows(read_json(path)), 1):
        where = f"{path}, entry {number}"
        name = row.get("id", row.get("question_id"))
        yield (
            where,
            {
                "id": f"phantom-{number:03d}" if name is None else make_id(name, where),
                "category": _find(row, _CATEGORY) or "phantom-0",
                "question": _find(row, _QUESTION),
            },
        )


PHANTOM = Layout("Phantom-0", "mirage-effect", ImagelessLine, _matches, _read)
