"""Read by rules whether an answer to a question of one's own is right."""

from __future__ import annotations

from mmprobe.benchmarks.answers.forms import VALUES, Verdict, find_answer
from mmprobe.benchmarks.answers.options import find_mark, read_choice, split_options
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.vqa.data import VqaQuestion


def read_verdict(question: VqaQuestion, response: str) -> Verdict:
    """Return whether a response is right, by rules.

    Yes and no, an option, a number, a colour and a place are right or wrong. Other words are right if they contain an
    accepted answer, and else `other`: they count as wrong, and a judge may know them as a synonym.

    Example:
        >>> from mmprobe.benchmarks.vqa.data import make_question
        >>> from mmprobe.samples import Sample
        >>> question = make_question(Sample(id="1", question="What is it?", answer="a cat"))
        >>> [read_verdict(question, text) for text in ("It is a cat.", "A dog.", "I cannot see it.", "")]
        ['right', 'other', 'refused', 'unread']
        >>> question = make_question(Sample(id="1", question="Is it a cat?", answer="no"))
        >>> [read_verdict(question, text) for text in ("No, a dog.", "Yes.", "Perhaps")]
        ['right', 'wrong', 'unread']
    """
    if not response.strip():
        return "unread"
    asked = question.sample.question
    if question.kind == "yes-no":
        said = read_yes_no(response, asked)
        if said is None:
            return "refused" if find_answer(response).refused else "unread"
        return "right" if said in {text.strip(" .!").casefold() for text in question.accepted} else "wrong"
    options, accepted = question.options, question.accepted
    if not options:  # they may stand in the question
        listed = split_options(asked, accepted[0]).choices
        marks = [find_mark(text, listed) for text in accepted]
        if all(marks):
            options, accepted = listed, tuple(mark for mark in marks if mark)
    if not options:
        return judge_text(response, *accepted, question=asked)
    chosen, refused = read_choice(response, options, question=split_options(asked).question)
    if chosen is not None:
        return "right" if chosen in accepted else "wrong"
    return "refused" if refused else "unread"


def read_answer(question: VqaQuestion, response: str) -> bool | None:
    """Return whether a response is right, as `read_verdict`; None if it is unread. A refusal is wrong."""
    return VALUES[read_verdict(question, response)]
