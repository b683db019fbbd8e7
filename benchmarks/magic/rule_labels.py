"""Label MagiC's answers by rules."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.answers.drawn import find_statement, is_drawn, judge_statement
from mmprobe.benchmarks.answers.forms import find_answer, is_right
from mmprobe.benchmarks.answers.texts import fold, same_text, split_sentences
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.labels import UNREAD, MagicLabels
from mmprobe.benchmarks.magic.steps import reasoning_steps
from mmprobe.benchmarks.magic.synthetic import step_is_true


def label_by_rules(question: MagicQuestion, response: str | None) -> MagicLabels:
    """Label the answer to one question by rules; a response of None gets no labels.

    Steps have labels only if each is one of the annotated steps, or if the objects of the synthetic world are
    known and a step is about them. Only a judge can tell whether a continuation states a correction.

    Example:
        >>> fields = {"id": "1", "image": "a.png", "question": "?", "answer": "cat"}
        >>> question = MagicQuestion.model_validate(fields | {"objects": [[0, 0, 5, 5]]})
        >>> label_by_rules(question, "R1 has ears.\\nAnswer: a cat").correct
        True
    """
    if response is None:
        return MagicLabels()
    correct = is_correct(response, question.answer, question.full_answer)
    return MagicLabels(
        correct=correct,
        correct_full=_is_full(response, question.full_answer) if question.full_answer else None,
        correct_steps=_label_steps(question, reasoning_steps(response)),
        unscored=() if correct is not None else (("correct", UNREAD),),
    )


def is_correct(
    response: str, true_answer: str, full_answer: str | None = None, judged: bool = False
) -> bool | None:
    """Return whether a response ends in the true answer; None if it is unread. A refusal is not right.

    The answer (docs/readers.md) must be the short or the full true answer, or begin with it where that is yes or no; `judged`
    is as in `forms.is_right`.

    Example:
        >>> is_correct("R1 is red.\\nAnswer: red", "red"), is_correct("Answer: Yes, it is a cat.", "yes")
        (True, True)
        >>> is_correct("It is not really red.", "red")
        False
    """
    true = true_answer.strip(" .!").lower()
    if true in ("yes", "no"):
        said = read_yes_no(response)
        return said == true if said else False if find_answer(response).refused else None
    verdict = judge_statement(response, true_answer, *([full_answer] if full_answer else []))
    return is_right(verdict, judged)


def _is_full(response: str, full_answer: str) -> bool | None:
    """Return whether a response is the full true answer; None if it is another sentence."""
    statement = find_statement(response)
    if statement is not None and same_text(statement, full_answer):
        return True
    marked = find_answer(response)
    if marked.text is not None and marked.marked and same_text(marked.text, full_answer):
        return True
    is_known = statement is not None and all(map(is_drawn, split_sentences(statement)))
    said, true = read_yes_no(response), read_yes_no(full_answer)
    return False if is_known or (said and true and said != true) or marked.refused else None


def _label_steps(question: MagicQuestion, steps: Sequence[str]) -> tuple[bool | None, ...] | None:
    annotated = {fold(step.text): step.correct for step in question.steps}
    if steps and all(fold(step) in annotated for step in steps):
        return tuple(annotated[fold(step)] for step in steps)
    objects = question.metadata.get("objects")
    if isinstance(objects, list) and all(
        isinstance(item, str) and len(item.split()) == 3 for item in objects
    ):
        labels = tuple(step_is_true(step, objects) for step in steps)
        return labels if any(label is not None for label in labels) else None
    return None
