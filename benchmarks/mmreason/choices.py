"""Multiple-choice questions in their two forms: open, and with their options (arXiv:2506.23563, table 2)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import NamedTuple

from mmprobe.benchmarks.answers.options import find_mark, read_choice, split_options
from mmprobe.benchmarks.answers.texts import fold
from mmprobe.benchmarks.mmreason.data import ReasonQuestion

_NEEDS_OPTIONS = re.compile(
    r"\b(?:which|what)\s+(?:one\s+)?(?:of|among)\s+(?:the\s+)?(?:following|these|those|above|below|options|choices)\b|"
    r"\bamong\s+(?:the\s+)?(?:following|options|choices)\b|\bof the (?:following|above|options|choices|statements?)\b|"
    r"\bthe following (?:statements?|options?|choices?|claims?|pictures?|images?|figures?|graphs?)\b|"
    r"\b(?:which|what) (?:statement|option|choice|answer|claim)\b|"
    r"\b(?:all|none|both) of (?:the above|these|them)\b",
    re.IGNORECASE,
)
_BARE_MARK = re.compile(
    r"[(\[]?[A-Ja-j][)\].:]{0,2}|[(\[][1-9][)\]]|[1-9]\)|[\u2460-\u2468]"
    r"|[(\[][ivxIVX]{1,4}[)\]]|[ivxIVX]{2,4}[)\].:]{0,2}"
)  # a number alone is an answer


class QuestionOptions(NamedTuple):
    """A question without its options, the options by their marks, and the mark of the right one.

    The mark is empty where the true answer names one option by its mark, and another by its text.
    """

    question: str
    choices: dict[str, str]
    mark: str


def _find_options(question: ReasonQuestion) -> QuestionOptions | None:
    """Return the options of a question, from its field `choices` or from its text; None if it has none.

    A run of marks in the text is a list of options if the true answer is one of its marks, or the text of
    exactly one.

    Example:
        >>> fields = {"id": "1", "answer": "b", "discipline": "math", "source": "own"}
        >>> _find_options(ReasonQuestion(question="How long is AB? (a) 2 cm (b) 3 cm", **fields)).mark
        'b'
    """
    text, choices_in_text = split_options(question.question, question.answer)
    choices = question.choices or choices_in_text
    mark = find_mark(question.answer, choices)
    by_text = [name for name, option in choices.items() if fold(option) == fold(question.answer)]
    if mark is None and len(by_text) != 1:
        return None
    if mark is None:
        return QuestionOptions(text, choices, by_text[0])
    return QuestionOptions(text, choices, mark if by_text in ([], [mark]) else "")


def to_open_question(question: ReasonQuestion) -> ReasonQuestion | None:
    """Return a multiple-choice question as an open one (section 4.1); None if it needs its options.

    An open question is returned as it is. Its true answer must be more than a mark such as `b` or `(2)`: the
    options of such a question were not recognised.

    Example:
        >>> text = "How long is AB? (A) 2 cm (B) 3 cm"
        >>> question = ReasonQuestion(id="1", question=text, answer="B", discipline="math", source="own")
        >>> open_question = to_open_question(question)
        >>> open_question.question, open_question.answer
        ('How long is AB?', '3 cm')
    """
    options = _find_options(question)
    if options is None:
        return None if _BARE_MARK.fullmatch(question.answer.strip()) else question
    if not is_open_without_choices(options.question, options.choices, options.mark):
        return None
    answer = options.choices[options.mark]
    return question.model_copy(update={"question": options.question, "answer": answer, "choices": {}})


def is_open_without_choices(question: str, choices: Mapping[str, str], answer: str) -> bool:
    """Return whether a question has one answer without its options.

    It has not if it refers to the options ("which of the following"), if an option refers to others ("none of
    the above"), or if two options differ only in case. We chose coarse rules; the authors chose by hand.

    Example:
        >>> is_open_without_choices("How long is AB?", {"A": "2 cm", "B": "3 cm"}, "B")
        True
        >>> is_open_without_choices("Which of the following statements is true?", {"A": "x", "B": "y"}, "A")
        False
    """
    texts = [fold(text) for text in choices.values()]
    if answer not in choices or not all(texts) or len(set(texts)) < len(texts):
        return False
    return not any(_NEEDS_OPTIONS.search(text) for text in (question, *choices.values()))


def to_choice_question(question: ReasonQuestion) -> ReasonQuestion | None:
    """Return a question with its options as A, B, C ... each on its own line; None if it has no options.

    Example:
        >>> text = "How long is AB? \u2460 2 cm \u2461 3 cm"
        >>> question = ReasonQuestion(id="1", question=text, answer="\u2461", discipline="math", source="own")
        >>> with_options = to_choice_question(question)
        >>> with_options.answer, with_options.question
        ('B', 'How long is AB?\\nA. 2 cm\\nB. 3 cm')
    """
    options = _find_options(question)
    if options is None or options.mark not in options.choices:
        return None
    letters = dict(zip(options.choices, string.ascii_uppercase, strict=False))
    choices = {letters[mark]: text for mark, text in options.choices.items()}
    lines = [options.question, *(f"{letter}. {text}" for letter, text in choices.items())]
    return question.model_copy(
        update={"question": "\n".join(lines), "choices": choices, "answer": letters[options.mark]}
    )


def is_right_choice(question: ReasonQuestion, response: str) -> bool | None:
    """Return whether a response to a question with options chooses the right one; None if it is unread."""
    letter, refused = read_choice(response, question.choices)
    return None if letter is None and not refused else letter == question.answer
