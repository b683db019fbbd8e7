"""The parser of yes and no that every benchmark uses."""

from __future__ import annotations

import re
from typing import Literal

_WORD = re.compile(r"[^\W_]+", re.UNICODE)


def parse_yes_no(text: str) -> Literal["yes", "no", "unknown"]:
    """Return the first word of an answer that is yes or no, in any case and with any punctuation.

    Example:
        >>> [parse_yes_no(text) for text in ("**No**, I see nothing.", "Well, YES!", "Nothing is known.")]
        ['no', 'yes', 'unknown']
    """
    for word in _WORD.findall(text):
        if word.lower() in ("yes", "no"):
            return "yes" if word.lower() == "yes" else "no"
    return "unknown"
