"""Steps and claims by rules: the sentences of a response, held against the true ones."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.final_answers import same_text
from mmprobe.benchmarks.mirage.parsing import Extraction, Match, Matches
from mmprobe.benchmarks.mmreason.steps import Fact, facts, sentences


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
