"""Read yes or no."""

from __future__ import annotations

import re
from typing import Literal

from mmprobe.benchmarks.answers.forms import ALTERNATIVES, HEDGE, NEGATION, clean, find_answer

_BARE = re.compile(r"\W*(yes|no)\W*", re.IGNORECASE)
_FIRST = re.compile(
    r"\W*(yes|no)\s*(?:,(?!\s*no\b)|[.!;:](?!\s*\d)|\s[-\u2013\u2014]\s|\u2014|\n)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER = {"yes": re.compile(r"\bno\b\s*(?:[.,!;:]|$)", re.I), "no": re.compile(r"\byes\b", re.I)}
_BACK = re.compile(
    r"\b(?:wait|actually|however|on second thought|on the contrary|correction|kidding|"
    r"(?:this|that) is (?:wrong|incorrect|false|not))\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")


def read_yes_no(response: str) -> Literal["yes", "no"] | None:
    """Return the yes or no of a response; None for a refusal and where it is unread.

    The declared answer (`forms.find_answer`) is yes or no, or begins with it and a comma or stop. Its
    sentence may hold no hedge and no alternative, and with yes no negation; no later sentence may take it
    back.

    Example:
        >>> [read_yes_no(text) for text in ("**No**", "Answer: Yes, it is red.", "There is no image.")]
        ['no', 'yes', None]
    """
    answer = find_answer(response)
    if answer.text is None or answer.refused or answer.text.endswith("?"):
        return None
    bare = _BARE.fullmatch(answer.text)
    first = _FIRST.match(answer.text if answer.marked else clean(response))
    match = bare if bare and "?" not in answer.text else first
    if match is None:
        return None
    word: Literal["yes", "no"] = "yes" if match[1].lower() == "yes" else "no"
    if match is bare:
        return word
    rest = match[2]
    sentence = "" if re.match(r"\W*\w+\s*[.!\n]", answer.text) else _SENTENCE.split(rest)[0]
    is_unclear = HEDGE.search(sentence) or ALTERNATIVES.search(sentence)
    if is_unclear or (word == "yes" and NEGATION.search(sentence)):
        return None
    return None if _OTHER[word].search(rest) or _BACK.search(rest) else word


def first_word(response: str) -> Literal["yes", "no", "unknown"]:
    """Return the first word of a response if it is yes or no, in any case and with any punctuation.

    Example:
        >>> [first_word(text) for text in ("**No**, I see nothing.", "There is no dog.")]
        ['no', 'unknown']
    """
    word = re.match(r"[\W_]*([^\W_]+)", response)
    said = word[1].lower() if word else ""
    return "yes" if said == "yes" else "no" if said == "no" else "unknown"
