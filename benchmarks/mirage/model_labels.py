"""Label MIRAGE's answers by judges: answers, steps, claims, hallucinations, and LHS scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from mmprobe.benchmarks.answers.numbers import THRESHOLD
from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name, first_item
from mmprobe.benchmarks.judges.answers import correct_request
from mmprobe.benchmarks.mirage.data import MirageQuestion, true_chain, true_references
from mmprobe.benchmarks.mirage.labels import HINTED, KINDS, Extraction, Kind, Matches, MirageLabels, Scores
from mmprobe.benchmarks.mirage.parsing import (
    read_extraction,
    read_hallucinations,
    read_matches,
    read_scores,
)
from mmprobe.benchmarks.mirage.prompts import EXTRACT, HALLUCINATIONS, MATCH, SCORES

REQUESTS = ("correct", "hinted", "extraction", "steps", "claims", "kinds", "lhs")
"""The kinds of request, as the keys of `MirageLabels.unscored` name them."""


class _Judgements(NamedTuple):
    """The judgements of all questions, by id. `scores` is [judge][reference] for each question."""

    answers: Mapping[str, Judgement[Any]]
    extractions: Mapping[str, Judgement[Extraction]]
    steps: Mapping[str, Judgement[Any]]
    claims: Mapping[str, Judgement[Any]]
    kinds: Mapping[str, Judgement[bool]]
    scores: Mapping[str, list[list[Judgement[int]]]]


def label_by_judge(
    questions: Sequence[MirageQuestion],
    responses: Mapping[str, str],
    rule_labels: Sequence[MirageLabels],
    judge: Judge,
    threshold: float = THRESHOLD,
    decides: Literal["unread", "all"] = "unread",
) -> list[MirageLabels]:
    """Replace the labels by rules with those of a judge.

    - The judge compares free-form answers with the true answer. With `unread` it does so for multiple-choice
      and approximate answers that the rules could not read; with `all` for all of them, as in the paper.
    - The judge extracts steps and claims without seeing the truth. Then it matches them with the true ones,
      in one request for the steps and one for the claims.
    - For kinds of hallucination and for scores it sees the whole response and the true chain.
    - An empty response needs no request.

    In an ensemble, the first judge extracts, because two judges would not list the same items. The majority
    gives the labels. Each judge scores alone: these are the M judges of the LHS.

    `responses` are all responses by id, and `threshold` is the largest relative error of an approximate answer.
    """
    texts = {name: text for name, text in responses.items() if text.strip()}
    answers = {
        name: correct_request(
            question.question,
            texts[name],
            question.answer,
            question.choices,
            threshold if question.type == "approximate" else None,
        )
        for question, labels in zip(questions, rule_labels, strict=True)
        for suffix, by_rules in (("", labels.correct), (HINTED, labels.correct_hinted), *labels.again.items())
        if (name := question.id + suffix) in texts
        and (question.type == "free_form" or decides == "all" or by_rules is None)
    }
    judgements = asyncio.run(_ask_judge(questions, texts, answers, judge))
    return [
        _make_labels(question, labels, judgements)
        for question, labels in zip(questions, rule_labels, strict=True)
    ]


async def _ask_judge(
    questions: Sequence[MirageQuestion],
    texts: Mapping[str, str],
    answer_requests: Mapping[str, JudgeRequest[bool | None]],
    judge: Judge,
) -> _Judgements:
    answers = await ask_by_name(judge, answer_requests)
    answered = [question for question in questions if question.id in texts]
    annotated = [question for question in answered if question.steps or question.claims]
    extractions = await ask_by_name(
        judge_members(judge)[0],
        {question.id: _extraction_request(question, texts[question.id]) for question in annotated},
    )
    items = {name: judgement.items[0] for name, judgement in extractions.items() if judgement.items}
    step_requests, claim_requests = {}, {}
    for question in annotated:
        extraction = items.get(question.id)
        if extraction and question.steps:
            step_requests[question.id] = _match_request(question, extraction.steps, question.steps)
        if extraction and question.claims:
            claim_requests[question.id] = _match_request(question, extraction.claims, question.claims)
    steps = await ask_by_name(judge, step_requests)
    claims = await ask_by_name(judge, claim_requests)
    with_chain = [question for question in answered if true_chain(question)]
    kinds = await ask_by_name(
        judge, {question.id: _kinds_request(question, texts[question.id]) for question in with_chain}
    )
    scores = await _ask_scores(judge_members(judge), with_chain, texts)
    return _Judgements(answers, extractions, steps, claims, kinds, scores)


def judge_members(judge: Judge) -> list[Judge]:
    """Return the judges of an ensemble, or the judge itself."""
    return list(getattr(judge, "members", ())) or [judge]


async def _ask_scores(
    judges: Sequence[Judge], questions: Sequence[MirageQuestion], texts: Mapping[str, str]
) -> dict[str, list[list[Judgement[int]]]]:
    """Ask every judge to score every chain. Return [judge][reference] by question id."""
    requests = [
        (question.id, _score_request(question, texts[question.id], reference))
        for question in questions
        for reference in true_references(question)
    ]
    scores: dict[str, list[list[Judgement[int]]]] = {
        question.id: [[] for _ in judges] for question in questions
    }
    for number, judge in enumerate(judges):
        judgements = await judge.ask([request for _, request in requests])
        for (question_id, _), judgement in zip(requests, judgements, strict=True):
            scores[question_id][number].append(judgement)
    return scores


def _make_labels(
    question: MirageQuestion, rule_labels: MirageLabels, judgements: _Judgements
) -> MirageLabels:
    question_id, hinted_id = question.id, question.id + HINTED
    again = {suffix: judgements.answers.get(question_id + suffix) for suffix in rule_labels.again}
    by_request: dict[str, Judgement[Any] | None] = {
        "correct": judgements.answers.get(question_id),
        "hinted": judgements.answers.get(hinted_id),
        "extraction": judgements.extractions.get(question_id),
        "steps": judgements.steps.get(question_id),
        "claims": judgements.claims.get(question_id),
        "kinds": judgements.kinds.get(question_id),
    } | {suffix.removeprefix("--"): judgement for suffix, judgement in again.items()}
    unscored: dict[str, str] = {
        request: judgement.unscored
        for request, judgement in by_request.items()
        if judgement and judgement.unscored
    }
    score_judgements = judgements.scores.get(question_id)
    scores: Scores | None = None
    if score_judgements is not None:
        scores = [[judgement.items for judgement in row] for row in score_judgements]
        if not any(row for rows in scores for row in rows):
            unscored["lhs"] = next(
                judgement.unscored for row in score_judgements for judgement in row if judgement.unscored
            )
    is_empty = (
        rule_labels.answered
        and question_id not in judgements.extractions
        and bool(question.steps or question.claims)
    )
    return MirageLabels(
        answered=rule_labels.answered,
        correct=_correct_label(by_request["correct"], rule_labels.correct),
        answered_hinted=rule_labels.answered_hinted,
        correct_hinted=_correct_label(by_request["hinted"], rule_labels.correct_hinted),
        again={
            suffix: _correct_label(judgement, rule_labels.again[suffix])
            for suffix, judgement in again.items()
        },
        topic=rule_labels.topic,
        classified=rule_labels.classified,
        extraction=Extraction((), ()) if is_empty else first_item(by_request["extraction"]),
        steps=rule_labels.steps if is_empty else _split_matches(by_request["steps"], len(question.steps)),
        claims=rule_labels.claims if is_empty else _split_matches(by_request["claims"], len(question.claims)),
        kinds=_kind_verdicts(by_request["kinds"]),
        scores=scores,
        unscored=unscored,
    )


def _correct_label(judgement: Judgement[Any] | None, rule_label: bool | None) -> bool | None:
    return rule_label if judgement is None else first_item(judgement)


def _split_matches(judgement: Judgement[Any] | None, true: int) -> Matches | None:
    """Split the labels of a match request. The last `true` labels are those of the true items."""
    if judgement is None or judgement.items is None:
        return None
    return Matches(judgement.items[: len(judgement.items) - true], judgement.items[-true:])


def _kind_verdicts(judgement: Judgement[bool] | None) -> dict[Kind, bool] | None:
    if judgement is None or judgement.items is None:
        return None
    return dict(zip(KINDS, judgement.items, strict=True))


def _request_data(question: MirageQuestion, response: str) -> dict[str, Any]:
    data: dict[str, Any] = {"question": question.question}
    if question.choices:
        data["options"] = question.choices
    return data | {"response": response}


def _extraction_request(question: MirageQuestion, response: str) -> JudgeRequest[Extraction]:
    return JudgeRequest(EXTRACT, _request_data(question, response), lambda reply: (read_extraction(reply),))


def _match_request(
    question: MirageQuestion, predicted: Sequence[str], true: Sequence[str]
) -> JudgeRequest[Any]:
    data = {"question": question.question, "predicted": list(predicted), "true": list(true)}
    return JudgeRequest(MATCH, data, partial(_read_joined_matches, predicted=len(predicted), true=len(true)))


def _read_joined_matches(reply: str, predicted: int, true: int) -> tuple[Any, ...]:
    matches = read_matches(reply, predicted, true)
    return matches.predicted + matches.true


def _kinds_request(question: MirageQuestion, response: str) -> JudgeRequest[bool]:
    data = _request_data(question, response) | {"true": question.answer, "reference": true_chain(question)}
    return JudgeRequest(HALLUCINATIONS, data, lambda reply: tuple(read_hallucinations(reply).values()))


def _score_request(question: MirageQuestion, response: str, reference: str) -> JudgeRequest[int]:
    return JudgeRequest(SCORES, _request_data(question, response) | {"reference": reference}, read_scores)
