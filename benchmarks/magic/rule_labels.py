"""Label MagiC's answers by rules."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.answers.final_answers import find_final_answer, normalize_words
from mmprobe.benchmarks.answers.yes_no import parse_yes_no
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.benchmarks.magic.labels import MagicLabels
from mmprobe.benchmarks.magic.steps import find_stated_answer, reasoning_steps, split_steps
from mmprobe.benchmarks.magic.synthetic import step_is_true

_NEGATIONS = {"no", "not", "never", "without", "neither", "nor"}


def label_by_rules(question: MagicQuestion, response: str | None) -> MagicLabels:
    """Label the answer to one question by rules.

    The steps have labels only if each is one of the annotated steps, or if the objects of the synthetic world
    are known and a step is about them. Only a judge can tell whether a continuation states a correction.

    Args:
        question: the question.
        response: the response; None without one.

    Example:
        >>> fields = {"id": "1", "image": "a.png", "question": "?", "answer": "cat"}
        >>> question = MagicQuestion.model_validate(fields | {"objects": [[0, 0, 5, 5]]})
        >>> label_by_rules(question, "In R1 there is a cat.").correct
        True
    """
    if response is None:
        return MagicLabels()
    correct_full = None
    if question.full_answer:  # the full answer may span several sentences
        correct_full = contains_phrase(find_stated_answer(response) or response, question.full_answer)
    return MagicLabels(
        correct=is_correct(response, question.answer),
        correct_full=correct_full,
        correct_steps=_label_steps(question, reasoning_steps(response)),
    )


def is_correct(response: str, true_answer: str) -> bool:
    """Return whether a response ends in the true answer; the rules are ours.

    The answer is the text after the last `Answer:`, or the result of `find_final_answer`, or the last
    sentence. It must contain the true answer. If the true answer is yes or no, the first yes or no of the
    answer must be the same. Without a marked answer, the last sentence with a yes or no counts.

    Example:
        >>> is_correct("R1 is red.\\nAnswer: It is red.", "red"), is_correct("Yes, no cat is here.", "yes")
        (True, True)
    """
    marked_answer = find_stated_answer(response) or find_final_answer(response)
    parts = split_steps(response) if marked_answer is None else [marked_answer]
    if true_answer.strip(" .!").lower() in ("yes", "no"):
        words = [word for part in parts if (word := parse_yes_no(part)) != "unknown"]
        return bool(words) and words[-1] == true_answer.strip(" .!").lower()
    return bool(parts) and contains_phrase(parts[-1], true_answer)


def contains_phrase(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase without a negation right before it.

    Case, punctuation and articles do not count.

    Example:
        >>> contains_phrase("It is the Red one.", "red"), contains_phrase("It is not red.", "red")
        (True, False)
    """
    words, phrase_words = normalize_words(text), normalize_words(phrase)
    if not phrase_words:
        return False
    length = len(phrase_words)
    return any(
        words[start : start + length] == phrase_words and not (start and _is_negation(words[start - 1]))
        for start in range(len(words) - length + 1)
    )


def _is_negation(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "n\u2019t"))


def _label_steps(question: MagicQuestion, steps: Sequence[str]) -> tuple[bool | None, ...] | None:
    annotated = {_fold(step.text): step.correct for step in question.steps}
    if steps and all(_fold(step) in annotated for step in steps):
        return tuple(annotated[_fold(step)] for step in steps)
    objects = question.metadata.get("objects")
    if isinstance(objects, list) and all(
        isinstance(item, str) and len(item.split()) == 3 for item in objects
    ):
        labels = tuple(step_is_true(step, objects) for step in steps)
        return labels if any(label is not None for label in labels) else None
    return None


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()
