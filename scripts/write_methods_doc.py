"""Fill the table of methods and their parameters in docs/interventions.md, from the methods' classes.

python scripts/write_methods_doc.py
"""

from __future__ import annotations

from page import PageParts, fill_pages

from mmprobe.interventions.registry import METHODS, describe_method, format_default
from mmprobe.notebook import markdown_table

COLUMNS = ("method", "parameter", "default", "values", "effect")


def cell(text: str) -> str:
    """Return a text as a cell of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def rows(name: str) -> list[tuple[str, ...]]:
    """Return the cells of a method, with its equation and paper, and those of each parameter."""
    method = describe_method(name)
    first = (f"**{name}**", "", "", "", f"{cell(method.about)} *{cell(method.reference)}*")
    return [first] + [
        (name, f"`{each.name}`", cell(format_default(each.default)), cell(each.allowed), cell(each.effect))
        for each in method.parameters
    ]


def pages() -> dict[str, PageParts]:
    """Return the parts of the page."""
    methods = markdown_table(COLUMNS, (row for name in METHODS for row in rows(name)))
    return {"docs/interventions.md": {"methods": methods}}


if __name__ == "__main__":
    fill_pages(pages())
