"""Labels by judges: answers, steps and claims and how they match, kinds of hallucination, scores of whole chains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name, first_item
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage.labels import HINTED, KINDS, Extraction, Matches, MirageLabels, Scores
from mmprobe.benchmarks.mirage.prompts import (
    CORRECT,
    EXTRACT,
    HALLUCINATIONS,
    MATCH,
    SCORES,
    parse_correct,
    parse_extraction,
    parse_hallucinations,
    parse_matches,
    parse_scores,
)
from mmprobe.benchmarks.mirage.scoring import chain_of, references_of

ASKED_FOR = ("correct", "hinted", "extraction", "steps", "claims", "kinds", "lhs")

_Found = dict[str, Judgement[Any]]


def by_judge(
    questions: Sequence[MirageQuestion],
    responses: Mapping[str, str],
    rules: Sequence[MirageLabels],
    judge: Judge,
) -> list[MirageLabels]:
    """Labels of each question's answers, as `labels.by_rules` has them, with a judge's in their place.

    Multiple choice and approximate answers stay with the rules. Free-form answers are held against the true one.
    Steps and claims are extracted without the truth in sight, then matched with the true ones in a call each. The
    kinds of hallucination and the scores rest on the whole response and the true chain. An empty response has none
    of these, without a call.

    Of an ensemble, the first judge extracts, since no two would list the same; of labels the majority counts; and each
    judge scores alone, which makes the M judges of the LHS.

    Args:
        responses: all of them, by id; the hinted one under `ID--hinted`.
        rules: what the rules say of each question.

    Example:
        >>> by_judge(questions, responses, rules, ModelJudge("openai/gpt-4o"))[0].kinds   # doctest: +SKIP
    """
    return asyncio.run(_by_judge(questions, responses, rules, judge))


async def _by_judge(
    questions: Sequence[MirageQuestion],
    responses: Mapping[str, str],
    rules: Sequence[MirageLabels],
    judge: Judge,
) -> list[MirageLabels]:
    said = {name: text for name, text in responses.items() if text.strip()}
    open_ones = [one for one in questions if one.type == "free_form"]
    told = [one for one in questions if one.id in said]
    checked = await ask_by_name(
        judge,
        {
            name: _check(one, said[name])
            for one in open_ones
            for name in (one.id, one.id + HINTED)
            if name in said
        },
    )
    annotated = [one for one in told if one.steps or one.claims]
    extracted = await ask_by_name(
        members(judge)[0], {one.id: _extract(one, said[one.id]) for one in annotated}
    )
    listed = {name: found.items[0] for name, found in extracted.items() if found.items}
    matched = {
        kind: await ask_by_name(
            judge,
            {
                one.id: _match(one.question, getattr(listed[one.id], kind), getattr(one, kind))
                for one in annotated
                if one.id in listed and getattr(one, kind)
            },
        )
        for kind in ("steps", "claims")
    }
    chained = [one for one in told if chain_of(one)]
    kinds = await ask_by_name(judge, {one.id: _kinds(one, said[one.id]) for one in chained})
    scored = await _score(members(judge), chained, said)
    return [
        _labels(one, rule, responses, checked, extracted, matched, kinds, scored)
        for one, rule in zip(questions, rules, strict=True)
    ]


def members(judge: Judge) -> list[Judge]:
    """The judges of an ensemble, if it tells them; else the one.

    Example:
        >>> len(members(ModelJudge("openai/gpt-4o")))                                    # doctest: +SKIP
        1
    """
    return list(getattr(judge, "members", ())) or [judge]


async def _score(
    judges: Sequence[Judge], questions: Sequence[MirageQuestion], said: Mapping[str, str]
) -> dict[str, list[list[Judgement[int]]]]:
    """Of each question's chain, [judge][reference]."""
    asked = [
        (one.id, JudgeRequest(SCORES, {**_shown(one, said[one.id]), "reference": text}, parse_scores))
        for one in questions
        for text in references_of(one)
    ]
    found: dict[str, list[list[Judgement[int]]]] = {one.id: [[] for _ in judges] for one in questions}
    for number, judge in enumerate(judges):
        given = await judge.ask([question for _, question in asked])
        for (name, _), judgement in zip(asked, given, strict=True):
            found[name][number].append(judgement)
    return found


def _labels(
    question: MirageQuestion,
    rule: MirageLabels,
    responses: Mapping[str, str],
    checked: _Found,
    extracted: _Found,
    matched: Mapping[str, _Found],
    kinds: _Found,
    scored: Mapping[str, list[list[Judgement[int]]]],
) -> MirageLabels:
    name, again = question.id, question.id + HINTED
    judgements = {
        "correct": checked.get(name),
        "hinted": checked.get(again),
        "extraction": extracted.get(name),
        "steps": matched["steps"].get(name),
        "claims": matched["claims"].get(name),
        "kinds": kinds.get(name),
    }
    unscored = {what: made.unscored for what, made in judgements.items() if made and made.unscored}
    scores = _scores(scored[name]) if name in scored else None
    if scores is not None and not any(row for rows in scores for row in rows):
        reasons = [one.unscored for rows in scored[name] for one in rows if one.unscored]
        unscored["lhs"] = reasons[0]
    empty = rule.answered and name not in extracted and (question.steps or question.claims)
    return MirageLabels(
        answered=rule.answered,
        correct=first_item(checked[name]) if name in checked else rule.correct,
        answered_hinted=rule.answered_hinted,
        correct_hinted=first_item(checked[again]) if again in checked else rule.correct_hinted,
        topic=rule.topic,
        classified=rule.classified,
        extraction=Extraction((), ()) if empty else first_item(extracted.get(name)),
        steps=rule.steps if empty else _matches(matched["steps"].get(name), len(question.steps)),
        claims=rule.claims if empty else _matches(matched["claims"].get(name), len(question.claims)),
        kinds=_verdicts(kinds.get(name)),
        scores=scores,
        unscored=unscored,
    )


def _matches(judgement: Judgement[Any] | None, true: int) -> Matches | None:
    """From the labels of both lists in a row."""
    if judgement is None or judgement.items is None:
        return None
    return Matches(judgement.items[: len(judgement.items) - true], judgement.items[-true:])


def _verdicts(judgement: Judgement[Any] | None) -> dict[Any, bool] | None:
    if judgement is None or judgement.items is None:
        return None
    return dict(zip(KINDS, judgement.items, strict=True))


def _scores(judgements: Sequence[Sequence[Judgement[int]]]) -> Scores:
    return [[one.items for one in row] for row in judgements]


def _shown(question: MirageQuestion, response: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"question": question.question}
    if question.choices:
        shown["options"] = question.choices
    return shown | {"response": response}


def _check(question: MirageQuestion, response: str) -> JudgeRequest[bool | None]:
    data = _shown(question, response) | {"true": question.answer}
    return JudgeRequest(CORRECT, data, lambda reply: (parse_correct(reply),))


def _extract(question: MirageQuestion, response: str) -> JudgeRequest[Extraction]:
    return JudgeRequest(EXTRACT, _shown(question, response), lambda reply: (parse_extraction(reply),))


def _match(question: str, predicted: Sequence[str], true: Sequence[str]) -> JudgeRequest[Any]:
    data = {"question": question, "predicted": list(predicted), "true": list(true)}
    return JudgeRequest(MATCH, data, partial(_read_matches, predicted=len(predicted), true=len(true)))


def _read_matches(reply: str, predicted: int, true: int) -> tuple[Any, ...]:
    found = parse_matches(reply, predicted, true)
    return found.predicted + found.true


def _kinds(question: MirageQuestion, response: str) -> JudgeRequest[bool]:
    data = _shown(question, response) | {"true": question.answer, "reference": chain_of(question)}
    return JudgeRequest(HALLUCINATIONS, data, lambda reply: tuple(parse_hallucinations(reply).values()))
