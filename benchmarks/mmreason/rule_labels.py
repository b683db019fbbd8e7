"""Labels of MMReason's answers by rules: the final answer, and each sentence held against those of the true solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mmprobe.benchmarks.answers.facts import Fact, facts, sentences
from mmprobe.benchmarks.answers.final_answers import given_answer, same_text
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.labels import TEXT, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    Judgement,
)

_FEWEST_WORDS = 2  # beside the values, that two sentences must share to contradict each other


def label_steps(response: str, solution: Sequence[str]) -> list[tuple[str, Judgement]]:
    """Each sentence of a response with its label against the true solution (section 4.3); rules are ours.

    A step is correct if the solution says the same but for case, articles, number and how a value is written. It is
    incorrect if the solution says it with other values, such as another number or colour, or a "not", and unverifiable
    otherwise. After a label (`Picture one: a red star, a blue ring`) each thing listed must be correct, and one
    that is incorrect is enough. Another valid way to say or to solve it is unverifiable to rules; a judge sees more.

    Args:
        response: what was answered.
        solution: the true steps; each may hold several sentences.

    Example:
        >>> label_steps("The area is 12. It looks nice. So the side is 3 cm.", ["The side is 4 cm.", "Area is 12.0"])
        [('The area is 12.', 'correct'), ('It looks nice.', 'unverifiable'), ('So the side is 3 cm.', 'incorrect')]
    """
    true = [fact for step in solution for sentence in sentences(step) for fact in facts(sentence)]
    return [(sentence, _label(facts(sentence), true)) for sentence in sentences(response)]


def _label(said: Sequence[Fact], true: Iterable[Fact]) -> Judgement:
    kinds = [_known(fact, true) for fact in said]
    if "incorrect" in kinds:
        return "incorrect"
    return "correct" if kinds and all(kind == "correct" for kind in kinds) else "unverifiable"


def _known(fact: Fact, true: Iterable[Fact]) -> Judgement:
    alike = [one for one in true if one.frame == fact.frame]
    if any(_same_values(fact, one) for one in alike):
        return "correct"
    words = sum(any(letter.isalpha() for letter in word) for word in fact.frame)
    return "incorrect" if alike and words >= _FEWEST_WORDS else "unverifiable"


def _same_values(one: Fact, two: Fact) -> bool:
    return one.values == two.values or same_text(" ".join(one.values), " ".join(two.values))


def by_rules(question: ReasonQuestion, responses: Mapping[str, str]) -> ReasonLabels:
    """Labels without a model: sameness of the final answer but for its form, steps found in the solution.

    Args:
        responses: all of them, by id; the one without pictures under `ID--text`.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> by_rules(question, {"1": "2 + 2 makes 4."}).right
        True
    """
    alone = responses.get(question.id + TEXT)
    right_text = None if alone is None else is_correct(question, alone)
    response = responses.get(question.id)
    if response is None:
        return ReasonLabels(False, right_text=right_text)
    steps = tuple(label_steps(response, question.solution)) if question.solution else None
    return ReasonLabels(True, given_answer(response), is_correct(question, response), right_text, steps)
