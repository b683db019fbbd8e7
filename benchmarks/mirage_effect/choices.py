"""Read answers to questions with options: the option that an answer names, and whether it is right."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.final_answers import find_final_answer, parse_choice, same_text
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion


def find_option(question: ChoiceQuestion, response: str) -> str | None:
    """Return the letter of the option that a response names, by letter or by text; None for none or several.

    Letters count only if the model saw them, so not for a question with its own `prompt`. An option inside
    the text of another named option does not count, such as "cell" in "nerve cell".

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> find_option(question, "[[B]]"), find_option(question, "It is a dog.")
        ('B', 'B')
        >>> find_option(question, "A cat or a dog.") is None
        True
    """
    if question.prompt is None:
        letter = parse_choice(response, question.choices)
        if letter is not None:
            return letter
    answer = (find_final_answer(response) or response).casefold()
    named = {
        letter: text.casefold()
        for letter, text in question.choices.items()
        if text.strip() and re.search(rf"(?<!\w){re.escape(text.casefold())}(?!\w)", answer)
    }
    letters = [
        letter
        for letter, text in named.items()
        if not any(text in other and text != other for other in named.values())
    ]
    return letters[0] if len(letters) == 1 else None


def is_correct(question: ChoiceQuestion, response: str | None) -> bool | None:
    """Return whether a response is right; None without a response. A response that names no option is wrong.

    Example:
        >>> question = ChoiceQuestion(id="1", question="How many?", answer="three")
        >>> is_correct(question, "The answer is three."), is_correct(question, ""), is_correct(question, None)
        (True, False, None)
    """
    if response is None:
        return None
    if question.choices:
        return find_option(question, response) == question.answer
    return same_text(find_final_answer(response) or response, question.answer)


def normalize_answer(question: ChoiceQuestion, response: str) -> str | None:
    """Return the answer as text with its case folded, to count equal answers; None if it names no option.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "Cat", "B": "dog"}, answer="B")
        >>> normalize_answer(question, "(A)")
        'cat'
    """
    if question.choices:
        letter = find_option(question, response)
        return None if letter is None else question.choices[letter].casefold()
    return (find_final_answer(response) or response).strip(" .").casefold() or None
