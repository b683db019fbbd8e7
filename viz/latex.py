"""Text as LaTeX takes it."""

from __future__ import annotations

import re

from mmprobe.errors import printable

_SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "…": r"\ldots{}",
    "\N{OPEN BOX}": r"\textvisiblespace{}",
}


def escape(text: str) -> str:
    """Return a text for LaTeX, on one line: signs that LaTeX obeys are printed, and other control characters are `?`.

    Example:
        >>> escape("50 % of a_b\\n& more")
        '50 \\\\% of a\\\\_b \\\\& more'
    """
    line = printable(" ".join(text.split()))
    return re.sub("|".join(map(re.escape, _SPECIAL)), lambda match: _SPECIAL[match[0]], line)
