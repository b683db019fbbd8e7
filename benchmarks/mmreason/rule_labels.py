"""Label MMReason's answers by rules: the final answer, and each sentence against the true solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmprobe.benchmarks.answers.drawn import find_statement, is_drawn, parse_facts, same_statement
from mmprobe.benchmarks.answers.texts import split_sentences
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.labels import TEXT, UNREAD, ReasonLabels, StepLabel

_MIN_SHARED_WORDS = 2  # words apart from values that two sentences must share to contradict each other


def label_by_rules(question: ReasonQuestion, responses: Mapping[str, str]) -> ReasonLabels:
    """Label the answers to one question by rules, from all responses by id.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> label_by_rules(question, {"1": "The answer is 4."}).correct
        True
    """
    texts = {"answer": responses.get(question.id), "text": responses.get(question.id + TEXT)}
    correct = {name: None if text is None else is_correct(question, text) for name, text in texts.items()}
    response = texts["answer"]
    steps = label_steps(response, question.solution) if response is not None and question.solution else None
    return ReasonLabels(
        answered=response is not None,
        answered_text=texts["text"] is not None,
        final_answer=None if response is None else find_statement(response),
        correct=correct["answer"],
        correct_text=correct["text"],
        steps=None if steps is None else tuple(steps),
        unscored={name: UNREAD for name, text in texts.items() if text is not None and correct[name] is None},
    )


def label_steps(response: str, solution: Sequence[str]) -> list[tuple[str, StepLabel]] | None:
    """Label each sentence of a response against the true solution (section 4.3); None if one is unread.

    Our rules read the drawn world's sentences, and those of the solution. A sentence is correct if the
    solution says the same, incorrect if it says so with another number, colour or cell, and unverifiable
    otherwise. After a label (`Picture one: red star B2, blue ring C3.`) each item must be correct, and one
    incorrect item makes it incorrect.

    Example:
        >>> label_steps("The star is red. The ring is blue.", ["The star is red.", "The ring is green."])
        [('The star is red.', 'correct'), ('The ring is blue.', 'incorrect')]
        >>> label_steps("I think it is red.", ["The star is red."]) is None
        True
    """
    true = [sentence for step in solution for sentence in split_sentences(step)]
    labels = [(sentence, _label_sentence(sentence, true)) for sentence in split_sentences(response)]
    if any(label is None for _, label in labels):
        return None
    return [(sentence, label) for sentence, label in labels if label is not None]


def _label_sentence(sentence: str, true: Sequence[str]) -> StepLabel | None:
    if any(same_statement(sentence, other) for other in true):
        return "correct"
    if not is_drawn(sentence):
        return None
    true_facts = [fact for other in true if is_drawn(other) for fact in parse_facts(other)]
    labels: list[StepLabel] = []
    for fact in parse_facts(sentence):
        comparable = [other for other in true_facts if other.frame == fact.frame]
        n_words = sum(any(letter.isalpha() for letter in word) for word in fact.frame)
        differs = comparable and n_words >= _MIN_SHARED_WORDS
        labels.append("correct" if fact in comparable else "incorrect" if differs else "unverifiable")
    if "incorrect" in labels:
        return "incorrect"
    return "correct" if labels and set(labels) == {"correct"} else "unverifiable"
