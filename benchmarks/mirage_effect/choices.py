"""Read answers to questions with options: the option that an answer names, and whether it is right."""

from __future__ import annotations

from mmprobe.benchmarks.answers.drawn import drawn_colour, find_statement
from mmprobe.benchmarks.answers.forms import VALUES, find_answer
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.texts import judge_text
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion


def find_option(question: ChoiceQuestion, response: str) -> str | None:
    """Return the letter of the option that a response declares, by letter or by text; None if it is unread.

    Letters count only if the model saw them, so not for a question with its own `prompt`. There, the drawn
    world's "The star is red." also names an option.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> [find_option(question, text) for text in ("[[B]]", "Answer: a dog.", "Not B.")]
        ['B', 'B', None]
    """
    lettered = question.prompt is None
    colour = None if lettered else drawn_colour(response)
    return read_choice(colour or response, question.choices, lettered)[0]


def is_correct(question: ChoiceQuestion, response: str | None) -> bool | None:
    """Return whether a response is right; None without a response or if it is unread. A refusal is not right.

    Example:
        >>> question = ChoiceQuestion(id="1", question="How many?", answer="three")
        >>> is_correct(question, "The answer is three."), is_correct(question, ""), is_correct(question, None)
        (True, False, None)
    """
    if response is None:
        return None
    if not question.choices:
        return VALUES[judge_text(response, question.answer)]
    letter = find_option(question, response)
    return letter == question.answer if letter else False if find_answer(response).refused else None


def normalize_answer(question: ChoiceQuestion, response: str) -> str | None:
    """Return the declared answer as text with its case folded, to count equal answers; None if it is unread.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "Cat", "B": "dog"}, answer="B")
        >>> normalize_answer(question, "(A)")
        'cat'
    """
    if question.choices:
        letter = find_option(question, response)
        return None if letter is None else question.choices[letter].casefold()
    answer = find_statement(response)
    return answer.strip(" .").casefold() if answer else None
