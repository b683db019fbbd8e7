"""Label MIRAGE's answers by rules: the final answer, and each sentence against the true steps and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmprobe.benchmarks.answers.facts import Fact, parse_facts, split_sentences
from mmprobe.benchmarks.answers.final_answers import same_text
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic, is_correct
from mmprobe.benchmarks.mirage.labels import HINTED, Extraction, Matches, MatchLabel, MirageLabels


def label_by_rules(
    question: MirageQuestion, responses: Mapping[str, str], topic: Topic | None, classified: bool
) -> MirageLabels:
    """Label the answers to one question by rules. Rules cannot see hallucinations or score a chain.

    Args:
        question: the question.
        responses: all responses by id; the hinted one has the id `ID--hinted`.
        topic: the topic that the classifier named.
        classified: whether the classifier was asked.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> label_by_rules(MirageQuestion(id="1", **fields), {"1": "The answer is 4."}, None, False).correct
        True
    """
    response = responses.get(question.id)
    hinted_response = responses.get(question.id + HINTED)
    extraction = steps = claims = None
    if response is not None and (question.steps or question.claims):
        extraction = extract_by_rules(response, question.steps, question.claims)
        steps = match_by_rules(extraction.steps, question.steps) if question.steps else None
        claims = match_by_rules(extraction.claims, question.claims) if question.claims else None
    return MirageLabels(
        answered=response is not None,
        correct=None if response is None else is_correct(question, response),
        answered_hinted=hinted_response is not None,
        correct_hinted=None if hinted_response is None else is_correct(question, hinted_response),
        topic=topic,
        classified=classified,
        extraction=extraction,
        steps=steps,
        claims=claims,
    )


def extract_by_rules(response: str, steps: Sequence[str], claims: Sequence[str]) -> Extraction:
    """Return the sentences of a response as steps and as claims; the rules are ours.

    The form of a sentence does not show whether it is a step or a claim, so every sentence counts as both.
    The exception: a sentence that states a true step and no true claim is only a step, and vice versa.

    Args:
        response: the response.
        steps, claims: the true steps and claims.

    Example:
        >>> extract_by_rules("I halve 6. So it is 3. Nice.", ["Halve 6.", "I halve 6."], ["It is 3."]).claims
        ('So it is 3.', 'Nice.')
    """
    response_sentences = split_sentences(response)

    def keep(wanted: Sequence[str], unwanted: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            sentence
            for sentence in response_sentences
            if _is_stated(sentence, wanted) or not _is_stated(sentence, unwanted)
        )

    return Extraction(steps=keep(steps, claims), claims=keep(claims, steps))


def match_by_rules(predicted: Sequence[str], true: Sequence[str]) -> Matches:
    """Label each item MATCH if the other list states it, else CONFLICT.

    Two items are the same if they differ only in case, articles, numbering, or a leading "therefore". Rules
    know no synonyms, and cannot tell whether an item is reasonable. A judge sees more.

    Args:
        predicted, true: the items of the response and of the annotation.

    Example:
        >>> match_by_rules(["Therefore: the area is 12."], ["The area is 12.", "So is 3."]).true
        ('MATCH', 'CONFLICT')
    """

    def label(items: Sequence[str], others: Sequence[str]) -> tuple[MatchLabel, ...]:
        return tuple("MATCH" if _is_stated(item, others) else "CONFLICT" for item in items)

    return Matches(label(predicted, true), label(true, predicted))


def _is_stated(text: str, others: Sequence[str]) -> bool:
    """Return whether one of the other texts says the same."""
    facts = parse_facts(text)
    return any(same_text(text, other) or _same_facts(facts, parse_facts(other)) for other in others)


def _same_facts(first: Sequence[Fact], second: Sequence[Fact]) -> bool:
    return 0 < len(first) == len(second) and all(
        a.frame == b.frame and (a.values == b.values or same_text(" ".join(a.values), " ".join(b.values)))
        for a, b in zip(first, second, strict=True)
    )
