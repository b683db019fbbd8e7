"""Compare short answers, and split texts into sentences."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from mmprobe.benchmarks.answers import numbers
from mmprobe.benchmarks.answers.forms import Decision, Verdict, decide, end_of_statement, is_open
from mmprobe.benchmarks.answers.wording import exclude_each_other

_ENDS = "\"'`*_,;:!?()[]{}\\\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002"
_ARTICLES = {"a", "an", "the"}
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
    quantity, other = numbers.parse_quantity(first), numbers.parse_quantity(second)
    if quantity and other and quantity[1] and quantity[1] == other[1]:  # 12cm is 12 cm
        return math.isclose(quantity[0], other[0], rel_tol=1e-9)
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

    Right: the same words, the same number, an equal expression, or a sentence that ends in the true words
    ("It is a couch"). Wrong: another number or expression, an opposite, or another colour. Other words are unread,
    since a couch is a sofa: a judge must tell.

    Example:
        >>> [judge_text(text, "2x+3") for text in ("Answer: 3+2x", "The answer is 5.", "It is not 5.")]
        ['right', 'wrong', 'unread']
    """
    decision: Decision[Verdict] = decide(response, lambda text: _judge_all(text, true))
    return "refused" if decision.refused else decision.value or "unread"


def _judge_all(text: str, true: Sequence[str]) -> Verdict | None:
    verdicts = [_judge(text, truth) for truth in true]
    return "right" if "right" in verdicts else "wrong" if "wrong" in verdicts else None


def _judge(text: str, truth: str) -> Verdict:
    if same_text(text, truth) and not text.endswith("?"):
        return "right"
    if text.endswith("?"):
        return "unread"
    sentence, endings = end_of_statement(text)
    if endings and not is_open(sentence):
        if any(same_text(ending, truth) for ending in endings):
            return "right"
        if exclude_each_other(endings[-1], truth):
            return "wrong"
    if is_open(text) and not is_expression(text):
        return "unread"
    quantity, true_quantity = numbers.parse_quantity(text), numbers.parse_quantity(truth)
    if quantity and true_quantity:
        equal = math.isclose(quantity[0], true_quantity[0], rel_tol=1e-9)
        if quantity[1] != true_quantity[1]:  # 24 cm is right where the truth is 24
            return "right" if equal and not true_quantity[1] else "unread"
        return "right" if equal else "wrong"
    same = numbers.same_expression(text, truth)
    if same is not None:
        return "right" if same else "wrong"
    return "wrong" if exclude_each_other(text, truth) else "unread"


def is_expression(text: str) -> bool:
    """Return whether a text has a digit or an operator and no words, so that its `/` is not an alternative."""
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
