"""Write a page that a script makes, or only the parts of some names of it: `--only NAME…`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

LISTED = ("|", "- ")  # how rows of tables and items of lists begin


def add_only(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option `--only` to a script's parser, and return the parser."""
    about = "write only the rows, list items and sections of these names; the rest of the page stays as it is"
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=about)
    return parser


def read_only(description: str | None) -> list[str]:
    """Return the names of `--only`, of a script without other arguments."""
    formatter = argparse.RawDescriptionHelpFormatter
    return (
        add_only(argparse.ArgumentParser(description=description, formatter_class=formatter))
        .parse_args()
        .only
    )


def write_page(page: Path, text: str, only: Sequence[str] = ()) -> None:
    """Write a page; with names, only their parts of it."""
    if only:
        text = merge_pages(page.read_text(encoding="utf-8"), text, only)
    page.write_text(text, encoding="utf-8")


def write_section(page: Path, text: str) -> None:
    """Put a section in the place of the page's section of the same title, or at its end."""
    old, title = page.read_text(encoding="utf-8"), text.partition("\n")[0]
    found = re.search(rf"^{re.escape(title)}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    new = (
        old.rstrip() + "\n\n" + text
        if found is None
        else old[: found.start()] + text + "\n" + old[found.end() :]
    )
    page.write_text(new.rstrip() + "\n", encoding="utf-8")


def merge_pages(old: str, new: str, names: Sequence[str]) -> str:
    """Return the old page with the new rows, list items and sections of some names.

    A row or item is of a name that is in its first cell or before its colon. What is new is put where the old
    was, or at the end of its table or list.

    Raises:
        SystemExit: a name has no part in the new page.

    Example:
        >>> print(merge_pages("| a | 1 |\\n| b | 1 |", "| a | 2 |\\n| b | 2 |\\n| c | 2 |", ["b", "c"]))
        | a | 1 |
        | b | 2 |
        | c | 2 |
    """
    for name in names:
        if not any(_is_of(line, [name]) for line in new.splitlines()):
            raise SystemExit(f"--only {name}: the page has no part of this name")
    blocks, replaced = _split(new, names), set()
    lines: list[str] = []
    for place, own, block in _split(old, names):
        fresh = [each for key, is_own, each in blocks if key == place and is_own]
        if not own:
            lines += block
        elif fresh and place not in replaced:
            replaced.add(place)
            lines += [line for each in fresh for line in each]
    text = "\n".join(lines)
    # parts that the old page lacks, after the last line of their table or list
    for place, own, block in blocks:
        if own and place not in replaced:
            text = _append(text, place, block, names)
    return text + ("\n" if old.endswith("\n") else "")


Place = tuple[str, int]
"""A heading, and the number of a table or list under it; 0 for what is in none."""


def _split(page: str, names: Sequence[str]) -> list[tuple[Place, bool, list[str]]]:
    """Return the lines of a page in blocks, each with its place and whether it is of one of the names."""
    blocks: list[tuple[Place, bool, list[str]]] = []
    heading, number, listed, section, own = "", 0, False, 0, False
    for line in page.splitlines():
        if level := _level(line):
            heading, number, listed = line, 0, False
            if section and level <= section:
                section = 0
            if not section and _is_of(line, names):
                section = level
        if line.startswith(LISTED) and not listed:
            number += 1
        listed = line.startswith(LISTED)
        continues = own and line.startswith("| |")  # a row that goes with the row above it
        own = bool(section) or (listed and (_is_of(line, names) or continues))
        place = (heading, number if listed and not section else 0)
        if blocks and blocks[-1][:2] == (place, own):
            blocks[-1][2].append(line)
        else:
            blocks.append((place, own, [line]))
    return blocks


def _append(page: str, place: Place, block: Sequence[str], names: Sequence[str]) -> str:
    lines: list[str] = []
    *_, last = [number for number, (key, _, _) in enumerate(_split(page, names)) if key == place] or [None]
    for number, (_, _, each) in enumerate(_split(page, names)):
        lines += each
        if number == last:
            lines += block
    return "\n".join(lines if last is not None else [*lines, *block])


def _level(line: str) -> int:
    """Return the level of a heading; 0 for another line."""
    match = re.match(r"(#+) ", line)
    return len(match[1]) if match else 0


def _is_of(line: str, names: Sequence[str]) -> bool:
    """Return whether a row, an item or a heading is of one of the names."""
    if line.startswith("|"):
        first = line.split("|")[1]
    elif line.startswith("- "):
        first = line.partition(": ")[0]
    else:
        first = line if _level(line) else ""
    return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", first) for name in names)
