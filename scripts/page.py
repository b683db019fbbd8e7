"""Fill a page of docs: a person writes its prose, and scripts write the parts between marks.

A part stands between `<!-- name -->` and `<!-- /name -->`, within a line or on lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "research" / "results"  # long tables of pages, under the same names
PageParts = Mapping[str, object]
"""The texts of a page's parts by name."""


def fill(page: str, parts: PageParts) -> str:
    """Return a page with its parts replaced.

    Args:
        page: Markdown with marks.
        parts: the text of each part by name. A text of several lines gets lines of its own.

    Raises:
        SystemExit: the page lacks the marks of a part.

    Example:
        >>> fill("We trace <!-- n -->2<!-- /n --> types.", {"n": 3})
        'We trace <!-- n -->3<!-- /n --> types.'
    """
    for name, value in parts.items():
        text = str(value)
        if "\n" in text or text.startswith(("|", "- ")):
            text = f"\n{text.rstrip()}\n"
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        marks = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        page, n = marks.subn(lambda _, whole=begin + text + end: whole, page)  # type: ignore[misc]
        if not n:
            raise SystemExit(f"the page has no part {name!r}: write <!-- {name} --><!-- /{name} --> into it")
    return page


def fill_pages(pages: Mapping[str, PageParts]) -> None:
    """Fill the parts of pages, whose paths are relative to the repository: `docs/models.md`.

    A part whose marks are in the page's record, `research/results/models.md`, is filled there.
    """
    for name, parts in pages.items():
        left = dict(parts)
        record = RECORDS / Path(name).name
        if record.is_file() and record != ROOT / name:
            text = record.read_text(encoding="utf-8")
            kept = {part: left.pop(part) for part in parts if f"<!-- {part} -->" in text}
            record.write_text(fill(text, kept), encoding="utf-8")
        file = ROOT / name
        file.write_text(fill(file.read_text(encoding="utf-8"), left), encoding="utf-8")
