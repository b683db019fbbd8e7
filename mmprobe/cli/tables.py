"""Tables of commands: by rich in a terminal, in plain columns elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: wrapped to the width of the terminal, or one line a row where there is none.

    Example:
        >>> print(show_table(("Name", "About"), [("pope", "objects"), ("mme", "yes or no")]))
        pope  objects
        mme   yes or no
    """
    if sys.stdout.isatty():
        return _rich_table(heads, rows)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: names are no markup
    console = Console(file=io.StringIO(), force_terminal=True, width=shutil.get_terminal_size().columns)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")
