"""Read by rules whether an answer to a question of one's own is right."""

from __future__ import annotations

from mmprobe.benchmarks.answers.forms import VALUES
from mmprobe.benchmarks.answers.numbers import parse_quantity, read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.texts import judge_text
from mmprobe.benchmarks.vqa.data import YES_NO, VqaQuestion


def read_answer(question: VqaQuestion, response: str) -> bool | None:
    """Return whether a response is right; None if rules cannot tell. A refusal is wrong.

    Yes and no, an option and a number are right or wrong. Words are right if they are those of an accepted answer, and
    else wrong only if they exclude it: a couch is a sofa, so other words are left to a judge.

    Example:
        >>> from mmprobe.benchmarks.vqa.data import make_question
        >>> from mmprobe.samples import Sample
        >>> question = make_question(Sample(id="1", question="What is it?", answer="a cat"))
        >>> [read_answer(question, text) for text in ("It is a cat.", "A tomcat.", "I cannot see it.")]
        [True, None, False]
        >>> question = make_question(Sample(id="1", question="Is it a cat?", answer="no"))
        >>> [read_answer(question, text) for text in ("No, a dog.", "Yes.", "Perhaps")]
        [True, False, None]
    """
    if not response.strip():
        return False
    if question.kind in ("options", "yes-no"):
        options = question.options or YES_NO
        accepted = (
            question.accepted
            if question.options
            else [text.strip(" .!").casefold() for text in question.accepted]
        )
        chosen, refused = read_choice(response, options, lettered=bool(question.options))
        return chosen in accepted if chosen else False if refused else None
    verdict = VALUES[judge_text(response, *question.accepted)]
    if verdict is None and question.kind == "number":
        quantities = [parse_quantity(text) for text in question.accepted]
        said = read_number(response)
        if said is not None and all(quantity is not None and not quantity[1] for quantity in quantities):
            return said in {quantity[0] for quantity in quantities if quantity is not None}
    return verdict
