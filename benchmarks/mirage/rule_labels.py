"""Labels of MIRAGE's answers by rules: final answers, and the sentences of a response held against true steps and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmprobe.benchmarks.answers.facts import Fact, facts, sentences
from mmprobe.benchmarks.answers.final_answers import same_text
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic, is_correct
from mmprobe.benchmarks.mirage.labels import HINTED, Extraction, Match, Matches, MirageLabels


def extract_by_rules(response: str, steps: Sequence[str], claims: Sequence[str]) -> Extraction:
    """The sentences of a response as steps and as claims; rules are ours.

    Nobody can tell a step from a claim by its form, so every sentence is both, but for one that tells a true step and
    no true claim, which is a step alone, and the other way round.

    Args:
        response: what was answered.
        steps, claims: the true ones.

    Example:
        >>> extract_by_rules("I halve 6. So it is 3. Nice.", ["Halve 6.", "I halve 6."], ["It is 3."]).claims
        ('So it is 3.', 'Nice.')
    """
    said = sentences(response)

    def without(those: Sequence[str], these: Sequence[str]) -> tuple[str, ...]:
        return tuple(one for one in said if _stands_in(one, these) or not _stands_in(one, those))

    return Extraction(without(claims, steps), without(steps, claims))


def match_by_rules(predicted: Sequence[str], true: Sequence[str]) -> Matches:
    """MATCH where the other list says the same but for case, articles, numbering and a "therefore"; else CONFLICT.

    Rules know neither other words for the same nor what is reasonable; a judge sees more.

    Args:
        predicted, true: items of the response and of the annotation.

    Example:
        >>> match_by_rules(["Therefore: the area is 12."], ["The area is 12.", "So is 3."]).true
        ('MATCH', 'CONFLICT')
    """

    def labels(mine: Sequence[str], others: Sequence[str]) -> tuple[Match, ...]:
        return tuple("MATCH" if _stands_in(one, others) else "CONFLICT" for one in mine)

    return Matches(labels(predicted, true), labels(true, predicted))


def _stands_in(text: str, others: Sequence[str]) -> bool:
    told = facts(text)
    return any(same_text(text, one) or _same_facts(told, facts(one)) for one in others)


def _same_facts(one: Sequence[Fact], two: Sequence[Fact]) -> bool:
    return 0 < len(one) == len(two) and all(
        mine.frame == other.frame
        and (mine.values == other.values or same_text(" ".join(mine.values), " ".join(other.values)))
        for mine, other in zip(one, two, strict=True)
    )


def by_rules(
    question: MirageQuestion, responses: Mapping[str, str], topic: Topic | None, classified: bool
) -> MirageLabels:
    """Labels without a model: answers, and sentences that say the same as a true step or claim.

    Rules see neither kinds of hallucination nor the quality of a chain.

    Args:
        responses: all of them, by id; the hinted one under `ID--hinted`.
        topic, classified: what the classifier said, and whether it was asked.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> by_rules(MirageQuestion(id="1", **fields), {"1": "The answer is 4."}, None, False).correct
        True
    """
    response, again = responses.get(question.id), responses.get(question.id + HINTED)
    extraction = steps = claims = None
    if response is not None and (question.steps or question.claims):
        extraction = extract_by_rules(response, question.steps, question.claims)
        steps = match_by_rules(extraction.steps, question.steps) if question.steps else None
        claims = match_by_rules(extraction.claims, question.claims) if question.claims else None
    return MirageLabels(
        answered=response is not None,
        correct=None if response is None else is_correct(question, response),
        answered_hinted=again is not None,
        correct_hinted=None if again is None else is_correct(question, again),
        topic=topic,
        classified=classified,
        extraction=extraction,
        steps=steps,
        claims=claims,
    )
