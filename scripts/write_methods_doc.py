"""Fill the table of methods and their parameters in docs/interventions.md, from the methods' classes.

python scripts/write_methods_doc.py
"""

from __future__ import annotations

from page import PageParts, fill_pages

from mmprobe.interventions.registry import METHODS, describe_method, format_default

HEADER = "| method | parameter | default | values | effect |\n|---|---|---|---|---|"


def cell(text: str) -> str:
    """Return a text as a cell of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def rows(name: str) -> list[str]:
    """Return the row of a method, with its equation and paper, and one a parameter."""
    method = describe_method(name)
    first = f"| **{name}** | | | | {cell(method.about)} *{cell(method.reference)}* |"
    return [first] + [
        f"| {name} | `{each.name}` | {cell(format_default(each.default))} | {cell(each.allowed)} | {cell(each.effect)} |"
        for each in method.parameters
    ]


def pages() -> dict[str, PageParts]:
    """Return the parts of the page."""
    return {
        "docs/interventions.md": {
            "methods": "\n".join([HEADER, *(row for name in METHODS for row in rows(name))])
        }
    }


if __name__ == "__main__":
    fill_pages(pages())
