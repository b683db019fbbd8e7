"""The one parser of yes and no, which every benchmark uses."""

from __future__ import annotations

import re
from typing import Literal

_WORD = re.compile(r"[^\W_]+", re.UNICODE)


def parse_yes_no(text: str) -> Literal["yes", "no", "unknown"]:
    """The first word of an answer that is yes or no, whatever its case and punctuation.

    Example:
        >>> parse_yes_no("**No**, I see nothing."), parse_yes_no("Well, YES!"), parse_yes_no("Nothing is known.")
        ('no', 'yes', 'unknown')
    """
    for word in _WORD.findall(text):
        if word.lower() in ("yes", "no"):
            return "yes" if word.lower() == "yes" else "no"
    return "unknown"
