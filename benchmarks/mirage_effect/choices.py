"""What an answer to a question with options says: which option, and whether it is right."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.final_answers import choice_of, final_answer, same_text
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion


def chosen(question: ChoiceQuestion, response: str) -> str | None:
    """The option that a response chooses, by its letter or else by its text; None if none, or several.

    Letters count only where they were shown, so not for a question with a `prompt` of its own. An option within the
    text of another one that is named, such as "cell" in "nerve cell", does not count.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> chosen(question, "[[B]]"), chosen(question, "It is a dog."), chosen(question, "A cat or a dog.")
        ('B', 'B', None)
    """
    if question.prompt is None:
        letter = choice_of(response, question.choices)
        if letter is not None:
            return letter
    said = (final_answer(response) or response).casefold()
    named = {
        letter: text.casefold()
        for letter, text in question.choices.items()
        if text.strip() and re.search(rf"(?<!\w){re.escape(text.casefold())}(?!\w)", said)
    }
    whole = [
        letter
        for letter, text in named.items()
        if not any(text in other and text != other for other in named.values())
    ]
    return whole[0] if len(whole) == 1 else None


def is_right(question: ChoiceQuestion, response: str | None) -> bool | None:
    """Whether a response is right; one that chooses no option is wrong. None for no response.

    Example:
        >>> question = ChoiceQuestion(id="1", question="How many?", answer="three")
        >>> is_right(question, "The answer is three."), is_right(question, ""), is_right(question, None)
        (True, False, None)
    """
    if response is None:
        return None
    if question.choices:
        return chosen(question, response) == question.answer
    return same_text(final_answer(response) or response, question.answer)


def said(question: ChoiceQuestion, response: str) -> str | None:
    """The answer as text, folded, for distributions over questions; None where no option is chosen.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "Cat", "B": "dog"}, answer="B")
        >>> said(question, "(A)")
        'cat'
    """
    if question.choices:
        letter = chosen(question, response)
        return None if letter is None else question.choices[letter].casefold()
    return (final_answer(response) or response).strip(" .").casefold() or None
