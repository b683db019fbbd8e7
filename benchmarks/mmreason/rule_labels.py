"""Label MMReason's answers by rules: the final answer, and each sentence against the true solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mmprobe.benchmarks.answers.facts import Fact, parse_facts, split_sentences
from mmprobe.benchmarks.answers.final_answers import find_answer, same_text
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.labels import TEXT, ReasonLabels, StepLabel

_MIN_SHARED_WORDS = 2  # words apart from values that two sentences must share to contradict each other


def label_by_rules(question: ReasonQuestion, responses: Mapping[str, str]) -> ReasonLabels:
    """Label the answers to one question by rules.

    Args:
        question: the question.
        responses: all responses by id; the one without images has the id `ID--text`.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> label_by_rules(question, {"1": "2 + 2 makes 4."}).correct
        True
    """
    response_text = responses.get(question.id + TEXT)
    correct_text = None if response_text is None else is_correct(question, response_text)
    response = responses.get(question.id)
    if response is None:
        return ReasonLabels(answered=False, correct_text=correct_text)
    return ReasonLabels(
        answered=True,
        final_answer=find_answer(response),
        correct=is_correct(question, response),
        correct_text=correct_text,
        steps=tuple(label_steps(response, question.solution)) if question.solution else None,
    )


def label_steps(response: str, solution: Sequence[str]) -> list[tuple[str, StepLabel]]:
    """Label each sentence of a response against the true solution (section 4.3); the rules are ours.

    - correct: the solution says the same, apart from case, articles, number, and the notation of values
    - incorrect: the solution says it with other values, such as another number or colour, or with a "not"
    - unverifiable: otherwise. Rules do not recognise other valid words or ways to solve it; a judge does.

    After a label (`Picture one: a red star, a blue ring`) each listed item must be correct. One incorrect
    item makes the sentence incorrect.

    Args:
        response: the response.
        solution: the true steps. Each may hold several sentences.

    Example:
        >>> response = "The area is 12. It looks nice. So the side is 3 cm."
        >>> labelled_steps = label_steps(response, ["The side is 4 cm.", "Area is 12.0"])
        >>> [label for _, label in labelled_steps]
        ['correct', 'unverifiable', 'incorrect']
    """
    true_facts = [
        fact for step in solution for sentence in split_sentences(step) for fact in parse_facts(sentence)
    ]
    return [
        (sentence, _label_sentence(parse_facts(sentence), true_facts))
        for sentence in split_sentences(response)
    ]


def _label_sentence(facts: Sequence[Fact], true_facts: Iterable[Fact]) -> StepLabel:
    labels = [_label_fact(fact, true_facts) for fact in facts]
    if "incorrect" in labels:
        return "incorrect"
    return "correct" if labels and all(label == "correct" for label in labels) else "unverifiable"


def _label_fact(fact: Fact, true_facts: Iterable[Fact]) -> StepLabel:
    comparable = [true_fact for true_fact in true_facts if true_fact.frame == fact.frame]
    if any(_same_values(fact, true_fact) for true_fact in comparable):
        return "correct"
    n_words = sum(any(letter.isalpha() for letter in word) for word in fact.frame)
    return "incorrect" if comparable and n_words >= _MIN_SHARED_WORDS else "unverifiable"


def _same_values(first: Fact, second: Fact) -> bool:
    return first.values == second.values or same_text(" ".join(first.values), " ".join(second.values))
