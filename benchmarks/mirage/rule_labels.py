"""Label MIRAGE's answers by rules: the final answer, and each sentence against the true steps and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmprobe.benchmarks.answers.drawn import is_drawn, same_statement
from mmprobe.benchmarks.answers.numbers import THRESHOLD
from mmprobe.benchmarks.answers.texts import split_sentences
from mmprobe.benchmarks.mirage.data import MirageProfile, MirageQuestion, Topic, is_correct
from mmprobe.benchmarks.mirage.labels import (
    CORRECTED,
    HINTED,
    OWN_CHAIN,
    UNREAD,
    Extraction,
    Matches,
    MatchLabel,
    MirageLabels,
)


def label_by_rules(
    question: MirageQuestion,
    responses: Mapping[str, str],
    topic: Topic | None = None,
    classified: bool = False,
    threshold: float = THRESHOLD,
    profile: MirageProfile = "paper",
    judged: bool = False,
) -> MirageLabels:
    """Label the answers to one question by rules. Rules cannot see hallucinations or score a chain.

    Steps and claims are labelled only where each sentence of the response is one of the drawn world's or says
    the same as a true one: only a judge compares free prose. An answer that rules cannot read is unscored, as
    `unread`; with `judged`, so are other words than the true ones. `responses` are all responses by id; `topic` is what the classifier named, if it was asked
    (`classified`).

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> label_by_rules(MirageQuestion(id="1", **fields), {"1": "The answer is 4."}).correct
        True
    """
    response = responses.get(question.id)
    texts = {
        suffix: responses[question.id + suffix]
        for suffix in ("", HINTED, CORRECTED, OWN_CHAIN)
        if question.id + suffix in responses
    }
    correct = {
        suffix: is_correct(question, text, threshold, profile, judged) for suffix, text in texts.items()
    }
    extraction = steps = claims = None
    if response is not None and (question.steps or question.claims):
        extraction = extract_by_rules(response, question.steps, question.claims)
        if extraction is not None:
            steps = match_by_rules(extraction.steps, question.steps) if question.steps else None
            claims = match_by_rules(extraction.claims, question.claims) if question.claims else None
    return MirageLabels(
        answered=response is not None,
        silent=response is not None and not response.strip(),
        correct=correct.get(""),
        answered_hinted=HINTED in texts,
        correct_hinted=correct.get(HINTED),
        again={suffix: correct[suffix] for suffix in (CORRECTED, OWN_CHAIN) if suffix in correct},
        topic=topic,
        classified=classified,
        extraction=extraction,
        steps=steps,
        claims=claims,
        unscored={
            suffix.removeprefix("--") or "correct": UNREAD
            for suffix, text in texts.items()
            if text.strip() and correct[suffix] is None
        },
    )


def extract_by_rules(response: str, steps: Sequence[str], claims: Sequence[str]) -> Extraction | None:
    """Return the sentences of a response as steps and as claims; None if one is unread. We wrote the rules.

    Every sentence counts as both, but one that states a true step and no true claim is only a step, and vice
    versa.

    Example:
        >>> extract_by_rules("I halve 6. So it is 3.", ["I halve 6."], ["So it is 3."]).claims
        ('So it is 3.',)
        >>> extract_by_rules("I halve 6. Nice.", ["I halve 6."], []) is None
        True
    """
    sentences = split_sentences(response)
    if not all(is_drawn(sentence) or _is_stated(sentence, (*steps, *claims)) for sentence in sentences):
        return None

    def keep(wanted: Sequence[str], unwanted: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            sentence
            for sentence in sentences
            if _is_stated(sentence, wanted) or not _is_stated(sentence, unwanted)
        )

    return Extraction(steps=keep(steps, claims), claims=keep(claims, steps))


def match_by_rules(predicted: Sequence[str], true: Sequence[str]) -> Matches:
    """Label each item MATCH if the other list states it, else CONFLICT.

    Example:
        >>> match_by_rules(["Therefore: The star was removed."], ["The star was removed.", "No."]).true
        ('MATCH', 'CONFLICT')
    """

    def label(items: Sequence[str], others: Sequence[str]) -> tuple[MatchLabel, ...]:
        return tuple("MATCH" if _is_stated(item, others) else "CONFLICT" for item in items)

    return Matches(label(predicted, true), label(true, predicted))


def _is_stated(text: str, others: Sequence[str]) -> bool:
    return any(same_statement(text, other) for other in others)
