"""The drawn world's own language, which rules read exactly."""

from __future__ import annotations

import re
from typing import NamedTuple

from mmprobe.benchmarks.answers.forms import Verdict, find_answer
from mmprobe.benchmarks.answers.texts import conclusion, normalize_words, same_text, split_sentences
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES

_S, _C, _P = f"(?:{'|'.join(SHAPES)})", f"(?:{'|'.join(COLOURS)})", "[A-D][1-4]"
_ITEM, _LISTED = rf"an? {_C} {_S} at {_P}", rf"{_C} {_S} {_P}"
_CHANGE = rf"the {_S} (?:was removed|changed from {_C} to {_C}|moved from {_P} to {_P})|nothing changed"
_SENTENCE = re.compile(
    rf"(?:(?:therefore: |picture (?:one|two): )?(?:{_CHANGE})|yes|no|there is 1 difference|there are "
    rf"(?:\d+|no) differences"
    rf"|(?:yes, )?the {_S} is (?:at {_P}|{_C})|(?:no, )?there is no {_S}"
    rf"|(?:picture (?:one|two): )?{_LISTED}(?:, {_LISTED})*|{_ITEM}(?:(?:, | and ){_ITEM})*)\.?",
    re.IGNORECASE,
)
_COLOURED = re.compile(rf"the {_S} is ({_C})\.?", re.IGNORECASE)
_LABEL = re.compile(r"^\s*((?:\w+ ){0,2}\w+)\s*:\s+(.+)$", re.DOTALL)
_OPENING = re.compile(r"^\s*therefore\b[,:]?\s*", re.IGNORECASE)
_LIST = re.compile(r",\s+(?:and\s+)?")
_PLURALS = {"are": "is", "differences": "difference"}
_NUMBERS = {"no": "0"}


class Fact(NamedTuple):
    """A statement: its words without the values, and the values (numbers, colours, cells, yes)."""

    frame: tuple[str, ...]
    values: tuple[str, ...]


def is_drawn(sentence: str) -> bool:
    """Return whether a sentence is one of the drawn world's.

    Example:
        >>> is_drawn("The star moved from A1 to B2."), is_drawn("The star moved to the left.")
        (True, False)
    """
    return _SENTENCE.fullmatch(sentence.strip()) is not None


def drawn_colour(response: str) -> str | None:
    """Return the colour in `The star is red.`; None for any other text."""
    match = _COLOURED.fullmatch(response.strip())
    return match[1].lower() if match else None


def parse_facts(sentence: str) -> list[Fact]:
    """Return the facts of a sentence. A list after a label, such as `Picture one:`, gives one fact an item.

    Example:
        >>> parse_facts("Picture one: red star B2, blue ring C3.")[1]
        Fact(frame=('picture', 'one', 'ring'), values=('blue', 'c3'))
    """
    text = _OPENING.sub("", sentence, count=1)
    labelled = _LABEL.match(text)
    label = normalize_words(labelled[1]) if labelled else ()
    facts = []
    for item in _LIST.split(labelled[2]) if labelled else [text]:
        words = [_PLURALS.get(word, _NUMBERS.get(word, word)) for word in normalize_words(item)]
        if words:
            frame = tuple(word for word in words if not _is_value(word))
            facts.append(Fact(label + frame, tuple(filter(_is_value, words))))
    return facts


def _is_value(word: str) -> bool:
    return word == "yes" or word in COLOURS or any(letter.isdigit() for letter in word)


def same_statement(first: str, second: str) -> bool:
    """Return whether two sentences say the same: equal words, or equal facts of the drawn world.

    Example:
        >>> same_statement("Therefore: The star was removed.", "the star was removed")
        True
    """
    if same_text(_OPENING.sub("", first), _OPENING.sub("", second)):
        return True
    return is_drawn(first) and is_drawn(second) and parse_facts(first) == parse_facts(second) != []


def find_statement(response: str) -> str | None:
    """Return the answer that a response declares, also after `Therefore:` in the drawn world; or None."""
    text = conclusion(response)
    if text and all(map(is_drawn, split_sentences(text))):
        return text
    answer = find_answer(response)
    return answer.text if answer.marked or len((answer.text or "").split()) <= 3 else None


def judge_statement(response: str, *true: str, question: str = "") -> Verdict:
    """Return whether a response is one of the true answers: exactly in the drawn world, else as `judge_text`.

    Example:
        >>> [judge_statement("The star is red.", truth) for truth in ("red", "The star is blue.")]
        ['right', 'wrong']
    """
    text = conclusion(response)
    if text and all(map(is_drawn, split_sentences(text))):
        said = {text, drawn_colour(text) or text, text.partition(",")[0].partition(".")[0]}
        return "right" if any(same_text(words, truth) for words in said for truth in true) else "wrong"
    return judge_text(response, *true, question=question)
