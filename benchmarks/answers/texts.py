"""Compare short answers, and split texts into sentences."""

from __future__ import annotations

import math
import re
import unicodedata

from mmprobe.benchmarks.answers import numbers
from mmprobe.benchmarks.answers.forms import Verdict, find_answer, is_open
from mmprobe.benchmarks.answers.wording import COLOUR_WORD

_ENDS = "\"'`*_,;:!?()[]{}\\\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002"
_ARTICLES = {"a", "an", "the"}
_LONGEST = 6  # words of a declared answer that can be wrong; ours
_PROSE = re.compile(
    r"\b(?:in|on|at|given|shown|visible|that|which|because|since|i|we|you|he|she|it|they|is|are|was|were"
    r"|answer|image|picture)\b"
)
_END = re.compile(r"(?<=[.!?])\s+")
_NUMBERING = re.compile(r"\s*(?:[*_#>-]+\s*)?\(?\d{1,2}[.)]\s+")


def fold(text: str) -> str:
    """Fold the case of a text, and join its words with single spaces."""
    return " ".join(text.split()).casefold()


def normalize_words(text: str) -> tuple[str, ...]:
    """Return the casefolded words of a short answer, without punctuation, articles and dollars."""
    text = unicodedata.normalize("NFKC", numbers.remove_tex(text)).replace("$", " ")
    stripped = (
        word.rstrip(_ENDS + ".").lstrip(_ENDS) for word in text.casefold().split()
    )  # .5 keeps its point
    words = tuple(word for word in stripped if word)
    return tuple(word for word in words if word not in _ARTICLES) or words  # an answer may be the letter A


def same_text(first: str, second: str) -> bool:
    """Return whether two short answers are equal up to case, punctuation, articles and number format.

    Example:
        >>> same_text("The Red Star.", "red star"), same_text("1,500", "1500.0"), same_text("3 cm", "3 m")
        (True, True, False)
    """
    words, other_words = normalize_words(first), normalize_words(second)
    if words == other_words:
        return bool(words)
    return len(words) == len(other_words) and all(map(_same_word, words, other_words))


def _same_word(first: str, second: str) -> bool:
    if first == second:
        return True
    one, other = numbers.parse_quantity(first), numbers.parse_quantity(second)
    if one is None or other is None or one[1] or other[1]:
        return False
    return math.isclose(one[0], other[0], rel_tol=1e-9)


def judge_text(response: str, *true: str) -> Verdict:
    """Return whether the declared answer of a response is one of the true answers.

    Right: the same words, the same number, or an equal expression. Wrong: another number, expression or
    colour; or, behind a mark, other words, at most six, none of them from a true answer. Else it is unread.

    Example:
        >>> [judge_text(text, "2x+3") for text in ("Answer: 3+2x", "The answer is 5.", "It is not 5.")]
        ['right', 'wrong', 'unread']
    """
    answer = find_answer(response)
    if answer.refused:
        return "refused"
    if answer.text is None:
        return "unread"
    verdicts = [_judge(answer.text, truth, answer.marked) for truth in true]
    return "right" if "right" in verdicts else "wrong" if set(verdicts) == {"wrong"} else "unread"


def _judge(text: str, truth: str, marked: bool) -> Verdict:
    if same_text(text, truth) and not text.endswith("?"):
        return "right"
    if text.endswith("?") or (is_open(text) and not is_expression(text)):
        return "unread"
    quantity, true_quantity = numbers.parse_quantity(text), numbers.parse_quantity(truth)
    if quantity and true_quantity:
        if quantity[1] != true_quantity[1]:
            return "unread"
        return "right" if math.isclose(quantity[0], true_quantity[0], rel_tol=1e-9) else "wrong"
    same = numbers.same_expression(text, truth)
    if same is not None:
        return "right" if same else "wrong"
    words, true_words = normalize_words(text), normalize_words(truth)
    if not words or set(words) & set(true_words):
        return "unread"
    if COLOUR_WORD.fullmatch("-".join(words)) and COLOUR_WORD.fullmatch("-".join(true_words)):
        return "wrong"
    if re.search(r"\d", text + truth):
        return "unread"
    is_short = marked and len(words) <= _LONGEST and not _PROSE.search(text.lower())
    return "wrong" if is_short and text.isascii() == truth.isascii() else "unread"


def is_expression(text: str) -> bool:
    """Return whether a text has a digit or an operator and no words, so that its `/` is no alternative."""
    return bool(re.search(r"\d|[-+^=]", text)) and not re.search(
        r"[A-Za-z]{4,}|\?", re.sub(r"\\[a-z]+", "", text)
    )


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text. A sentence ends with its line. Sentences without a word are left out.

    Example:
        >>> split_sentences("1. AB is 3.5 cm. So the area is 7.\\n\\n***\\nAnswer: 7")
        ['1. AB is 3.5 cm.', 'So the area is 7.', 'Answer: 7']
    """
    parts = []
    for line in text.split("\n"):
        number = _NUMBERING.match(line)
        start = number.end() if number else 0
        first, *others = _END.split(line[start:])
        parts += [part.strip() for part in (line[:start] + first, *others)]
    return [part for part in parts if any(letter.isalnum() for letter in part)]
