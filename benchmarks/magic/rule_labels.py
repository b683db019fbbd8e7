"""Labels of MagiC's answers by rules."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.answers.final_answers import final_answer, plain
from mmprobe.benchmarks.answers.yes_no import yes_no
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.labels import MagicLabels
from mmprobe.benchmarks.magic.steps import reasoning_steps, split_steps, stated_answer
from mmprobe.benchmarks.magic.synthetic import holds

_NOT = {"no", "not", "never", "without", "neither", "nor"}


def states(said: str, truth: str) -> bool:
    """Whether a text holds the words of another in a row, without a word such as `not` right before them.

    Case, punctuation and articles do not count.

    Example:
        >>> states("It is the Red one.", "red"), states("It is not red.", "red"), states("A red star.", "star red")
        (True, False, False)
    """
    words, wanted = plain(said), plain(truth)
    if not wanted:
        return False
    places = range(len(words) - len(wanted) + 1)
    return any(
        words[place : place + len(wanted)] == wanted and not (place and _denies(words[place - 1]))
        for place in places
    )


def _denies(word: str) -> bool:
    return word in _NOT or word.endswith(("n't", "n\u2019t"))


def is_answer(response: str, truth: str) -> bool:
    """Whether a response ends in the true answer; the rules are ours.

    Its answer is what follows the last `Answer:`, or what `final_answer` finds, or else its last sentence. It must
    state the truth. Where the truth is yes or no, the answer's first yes or no must be the same one, or that of
    the last sentence that has one where no answer is marked.

    Example:
        >>> is_answer("R1 is red.\\nAnswer: It is red.", "red"), is_answer("Yes, no cat is here.", "yes")
        (True, True)
    """
    marked = stated_answer(response) or final_answer(response)
    parts = split_steps(response) if marked is None else [marked]
    if truth.strip(" .!").lower() in ("yes", "no"):
        said = [word for part in parts if (word := yes_no(part)) != "unknown"]
        return bool(said) and said[-1] == truth.strip(" .!").lower()
    return bool(parts) and states(parts[-1], truth)


def label_by_rules(question: MagicQuestion, response: str | None) -> MagicLabels:
    """The answer by words; its steps as they were annotated, or as the synthetic world's objects say.

    Steps are labelled only where each is one of the question's annotated steps, or some tell of the synthetic world.
    Whether a continuation says a correction takes a judge.

    Args:
        response: None where there is none.

    Example:
        >>> one = {"id": "1", "image": "a.png", "question": "?", "answer": "cat", "objects": [[0, 0, 5, 5]]}
        >>> label_by_rules(MagicQuestion.model_validate(one), "In R1 there is a cat.")
        MagicLabels(short=True, full=None, steps=None, healed=(), unscored=())
    """
    if response is None:
        return MagicLabels()
    full = _full(response, question.full_answer) if question.full_answer else None
    return MagicLabels(
        is_answer(response, question.answer), full, _annotated(question, reasoning_steps(response))
    )


def _full(response: str, truth: str) -> bool:
    """Whether the answer states the full truth, which may run over sentences of it."""
    return states(stated_answer(response) or response, truth)


def _annotated(question: MagicQuestion, steps: Sequence[str]) -> tuple[bool | None, ...] | None:
    known = {" ".join(step.text.split()).casefold(): step.correct for step in question.steps}
    plain = [" ".join(step.split()).casefold() for step in steps]
    if steps and all(step in known for step in plain):
        return tuple(known[step] for step in plain)
    objects = question.metadata.get("objects")
    if isinstance(objects, list) and all(isinstance(one, str) and len(one.split()) == 3 for one in objects):
        found = tuple(holds(step, objects) for step in steps)
        return found if any(label is not None for label in found) else None
    return None
