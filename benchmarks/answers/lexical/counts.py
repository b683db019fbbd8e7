"""Read how many differences an answer says there are."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.answers.lexical.wording import conclusion, iter_sentences
from mmprobe.benchmarks.answers.numbers import WORDS

_NUMBER = rf"(?:\d{{1,4}}|{'|'.join(WORDS)})"
_NOUN = r"(?:differences?|changes?)"
_BETWEEN = r"(?: (?:in total|between (?:the |these )?(?:two |2 )?(?:images|pictures|photos)))?"
_COUNTED = re.compile(
    rf"(?:(?:there (?:is|are)|(?:i|we)(?: can)? (?:see|found|find|count|counted|spot|spotted)) "
    rf")?(?:exactly )?"
    rf"(?P<number>{_NUMBER}|no|one) {_NOUN}{_BETWEEN}\s*[.!:]?",
    re.IGNORECASE,
)
_ANY_COUNT = re.compile(rf"\b({_NUMBER}|no) (?:\w+ )?{_NOUN}\b", re.IGNORECASE)
_ALONE = re.compile(rf"(?P<number>{_NUMBER}|none)(?: {_NOUN})?[.!]?", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:another|also|more|additional\w*|however|but|wait|actually|except|besides|other)\b", re.IGNORECASE
)
_ITEM = re.compile(r"^\s*\(?(\d{1,2})[.)]\s", re.MULTILINE)
NOTHING = re.compile(
    r"nothing (?:has )?changed\.?|(?:the |these )?(?:two )?(?:images|pictures|photos) are (?:identical"
    r"|the same)\.?",
    re.IGNORECASE,
)


def parse_count(text: str) -> int | None:
    """Return the number of differences that an answer states; None for a refusal and where it is unread.

    It is a declared number, or a first sentence such as "There are 3 differences between the two images."
    without another count behind it. "Nothing changed." and "The images are identical." are 0.

    Example:
        >>> [parse_count(text) for text in ("There are **two** differences.", "No differences!", "2 or 3")]
        [2, 0, None]
    """
    answer = find_answer(text)
    if answer.text is None or answer.refused:
        return None
    alone = _ALONE.fullmatch(answer.text.strip())
    if alone:
        return _value(alone["number"])
    sentences = list(iter_sentences(conclusion(text) if not answer.marked else answer.text))
    if sentences and all(NOTHING.fullmatch(sentence) for sentence in sentences):
        return 0
    first = _COUNTED.match(sentences[0]) if sentences else None
    if first is None or not (first.end() == len(sentences[0]) or sentences[0][first.end() - 1] == ":"):
        return None
    items = _ITEM.findall(text)
    if _MORE.search(" ".join(sentences[1:]) + sentences[0][first.end() :]) or len(items) not in (
        0,
        _value(first["number"]),
    ):
        return None
    stated = {_value(word) for word in _ANY_COUNT.findall(" ".join(sentences))}
    return _value(first["number"]) if len(stated) == 1 else None


def _value(word: str) -> int:
    word = word.lower()
    return 0 if word in ("no", "none") else int(word) if word.isdigit() else WORDS[word]
