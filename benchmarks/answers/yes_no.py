"""Read yes or no."""

from __future__ import annotations

import re
from typing import Literal

from mmprobe.benchmarks.answers.forms import Decision, decide

_WORDS = {
    "yeah": "yes",
    "yep": "yes",
    "nope": "no",
    "not at all": "no",
    "\u662f": "yes",
    "\u662f\u7684": "yes",
    "\u5bf9": "yes",
    "\u6709": "yes",
    "\u6709\u7684": "yes",
    "\u5bf9\u7684": "yes",
    "\u4e0d\u662f\u7684": "no",
    "\u4e0d\u5bf9": "no",
    "\u6ca1\u6709\u7684": "no",
    "\u5426": "no",
    "\u4e0d\u662f": "no",
    "\u6ca1\u6709": "no",
    "\u4e0d": "no",
}
_WORD = rf"(yes|no|{'|'.join(sorted(_WORDS, key=len, reverse=True))})"
_BARE = re.compile(rf"\W*{_WORD}\W*", re.IGNORECASE)
_FIRST = re.compile(
    r"\W*(?:(?:based on|from|in|according to|looking at|judging by) [^,.!?\n]{1,60}, )?"
    rf"{_WORD}[*_'\"]?\s*(?:,(?!\s*no\b)|[.!;:\u3002](?!\s*\d)|\s[-\u2013\u2014]\s|\u2014|\n)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER = {"yes": re.compile(r"\bno\b\s*(?:[.,!;:]|$)", re.I), "no": re.compile(r"\byes\b", re.I)}
_BACK = re.compile(
    r"\b(?:wait|actually|on second thought|on the contrary|correction|kidding|"
    r"(?:this|that) is (?:wrong|incorrect|false|not (?:right|correct|true)))\b",
    re.IGNORECASE,
)
# The word decides, whatever its sentence describes ("No, the lungs appear clear"), but for a doubt about itself.
_DOUBT = re.compile(
    r"\b(?:if|unless|whether|depend\w*|maybe|perhaps|probabl[ye]|possibly|might|may be|could be|not sure|unsure|uncertain"
    r"|guess|think|believe|suppose|assum\w+|it seems|it appears so|presumabl[ye]|yes|sort of|kind of|hard to|difficult to)\b|\?|\.\.\.|\u2026",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:no|not|never|none|neither|nothing|cannot)\b|n't\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n|(?<=\u3002)")


def read_yes_no(response: str) -> Literal["yes", "no"] | None:
    """Return the yes or no of a response; None for a refusal and where it is unread.

    The declared answer (`forms.decide`) is yes or no, or begins with it and a comma or stop. Its sentence may
    hold no doubt or condition, and with yes no denial; no later sentence may take it back.

    Example:
        >>> [read_yes_no(text) for text in ("**No**", "Answer: Yes, it is red.", "There is no image.")]
        ['no', 'yes', None]
    """
    decision: Decision[Literal["yes", "no"]] = decide(response, _say)
    return decision.value


def _say(text: str) -> Literal["yes", "no"] | None:
    bare = _BARE.fullmatch(text)
    match = bare if bare and "?" not in text else _FIRST.match(text)
    if match is None or text.endswith("?"):
        return None
    said = match[1].lower()
    word: Literal["yes", "no"] = "yes" if _WORDS.get(said, said) == "yes" else "no"
    if match is bare:
        return word
    rest = match[2]
    is_whole = text[match.end(1) : match.start(2)].strip()[:1] not in (",", ";", ":", "-", "\u2013", "\u2014")
    sentence = "" if is_whole else _SENTENCE.split(rest)[0]
    if _DOUBT.search(sentence) or (word == "yes" and _DENIAL.search(sentence)):
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
