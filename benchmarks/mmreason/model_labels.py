"""Label MMReason's answers by a judge: final answers, steps, and types of error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from mmprobe.benchmarks.answers.texts import fold, same_text, split_sentences, stands_in
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.judges import (
    MAX_ANSWER_CHARS,
    Judge,
    Judgement,
    JudgeRequest,
    ask_by_name,
    first_item,
)
from mmprobe.benchmarks.judges.requests import (
    StrictReply,
    UnusableReply,
    reader,
)
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import TEXT, ErrorType, ReasonLabels, StepLabel
from mmprobe.benchmarks.mmreason.prompts import MMReasonPrompts

MAX_SENTENCES = 100  # sentences of a response that the judge labels, our choice

SentenceLabel = Literal["correct", "unverifiable", "incorrect", "none"]
"""The label of a step, or `none` for a sentence that is not a step."""


class _Sentence(StrictReply):
    step: int
    label: SentenceLabel


_read_answer = reader(answer=Annotated[str, Field(min_length=1, max_length=2000)] | None)
_read_sentences = reader(labels=list[_Sentence])
_read_equivalent = reader(equivalent=bool)
_read_error = reader(error=ErrorType)


class _ResponseVerdict(NamedTuple):
    """The verdict on one response: its final answer, whether it is right, and why it is unscored."""

    final_answer: str | None
    correct: bool | None
    unscored: str | None = None


def label_by_judge(
    questions: Sequence[ReasonQuestion],
    responses: Mapping[str, str],
    judge: Judge,
    prompts: MMReasonPrompts | None = None,
) -> list[ReasonLabels]:
    """Label the answers to each question by a judge; a label that it cannot give is None, with a reason.

    The judge extracts the final answer without seeing the truth, then compares it with the true one; one that
    differs only in notation needs no second request. It labels each sentence and says which are steps, so
    that all judges label the same items, and names the type of error of each wrong answer.
    """
    return asyncio.run(_label(questions, responses, judge, prompts or default_prompts(MMReasonPrompts)))


def judge_correct(
    questions: Mapping[str, ReasonQuestion],
    responses: Mapping[str, str],
    judge: Judge,
    prompts: MMReasonPrompts | None = None,
) -> dict[str, bool | None]:
    """Return whether each response is right, as `label_by_judge` does; None without a verdict."""
    verdicts = asyncio.run(
        _ask_verdicts(questions, responses, judge, prompts or default_prompts(MMReasonPrompts))
    )
    return {name: verdict.correct for name, verdict in verdicts.items()}


async def _label(
    questions: Sequence[ReasonQuestion],
    responses: Mapping[str, str],
    judge: Judge,
    prompts: MMReasonPrompts,
) -> list[ReasonLabels]:
    question_of = {question.id + suffix: question for question in questions for suffix in ("", TEXT)}
    answers = {name: responses[name] for name in question_of if name in responses}
    verdicts = await _ask_verdicts(question_of, answers, judge, prompts)
    step_requests = {
        question.id: _step_request(question, responses[question.id], prompts.steps)
        for question in questions
        if question.solution and _judged_sentences(responses.get(question.id, ""))
    }
    steps = await ask_by_name(judge, step_requests)
    error_requests = {
        question.id: _error_request(question, responses[question.id], prompts.error)
        for question in questions
        if question.id in verdicts
        and verdicts[question.id].correct is False
        and responses[question.id].strip()
    }
    errors = await ask_by_name(judge, error_requests)
    return [
        _make_labels(question, responses, verdicts, steps.get(question.id), errors.get(question.id))
        for question in questions
    ]


async def _ask_verdicts(
    questions: Mapping[str, ReasonQuestion],
    responses: Mapping[str, str],
    judge: Judge,
    prompts: MMReasonPrompts,
) -> dict[str, _ResponseVerdict]:
    answers = await ask_by_name(
        judge,
        {
            name: _answer_request(questions[name], text, prompts.answer)
            for name, text in responses.items()
            if text.strip()
        },
    )
    final_answers = {name: first_item(judgement) for name, judgement in answers.items()}
    comparisons = await ask_by_name(
        judge,
        {
            name: _equivalent_request(questions[name], answer, prompts.equivalent)
            for name, answer in final_answers.items()
            if answer is not None and not same_text(answer, questions[name].answer)
        },
    )
    verdicts = {}
    for name in responses:
        final_answer = final_answers.get(name)
        last_judgement = comparisons.get(name) or answers.get(name)
        unscored = None if last_judgement is None else last_judgement.unscored
        correct: bool | None
        if unscored:
            correct = None
        elif final_answer is None:
            correct = False
        else:
            correct = first_item(comparisons[name]) if name in comparisons else True
        verdicts[name] = _ResponseVerdict(final_answer, correct, unscored)
    return verdicts


def _make_labels(
    question: ReasonQuestion,
    responses: Mapping[str, str],
    verdicts: Mapping[str, _ResponseVerdict],
    steps: Judgement[SentenceLabel] | None,
    error: Judgement[ErrorType] | None,
) -> ReasonLabels:
    no_verdict = _ResponseVerdict(None, None)
    verdict = verdicts.get(question.id, no_verdict)
    verdict_text = verdicts.get(question.id + TEXT, no_verdict)
    unscored = {
        "answer": verdict.unscored,
        "text": verdict_text.unscored,
        "steps": steps and steps.unscored,
        "error": error and error.unscored,
    }
    return ReasonLabels(
        answered=question.id in responses,
        answered_text=question.id + TEXT in responses,
        final_answer=verdict.final_answer,
        correct=verdict.correct,
        correct_text=verdict_text.correct,
        steps=_select_steps(question, responses, steps),
        error=first_item(error),
        unscored={request: reason for request, reason in unscored.items() if reason},
    )


def _select_steps(
    question: ReasonQuestion, responses: Mapping[str, str], judgement: Judgement[SentenceLabel] | None
) -> tuple[tuple[str, StepLabel], ...] | None:
    """Return the sentences that are steps, each with its label."""
    if not question.solution or question.id not in responses:
        return None
    if judgement is None:
        return ()  # the response has no sentences
    if judgement.items is None:
        return None
    sentences = _judged_sentences(responses[question.id])
    return tuple(
        (text, label) for text, label in zip(sentences, judgement.items, strict=True) if label != "none"
    )


def _judged_sentences(response: str) -> list[str]:
    return split_sentences(response[:MAX_ANSWER_CHARS])[:MAX_SENTENCES]


def _answer_request(question: ReasonQuestion, response: str, prompt: str) -> JudgeRequest[str | None]:
    data = {"question": question.question, "response": response}
    return JudgeRequest(prompt, data, partial(read_answer, response=response))


def read_answer(reply: str, response: str) -> tuple[str | None]:
    """Return the final answer of a response, which a reply to the prompt `answer` must quote; None if it states none."""
    (answer,) = _read_answer(reply)
    if answer is None:
        return (None,)
    if not fold(answer) or not stands_in(answer, response):
        raise UnusableReply("the answer does not stand in the response letter by letter")
    return (" ".join(answer.split()),)


def _equivalent_request(question: ReasonQuestion, final_answer: str, prompt: str) -> JudgeRequest[bool]:
    data = {"question": question.question, "true": question.answer, "given": final_answer}
    return JudgeRequest(prompt, data, _read_equivalent)


def _step_request(question: ReasonQuestion, response: str, prompt: str) -> JudgeRequest[SentenceLabel]:
    sentences = _judged_sentences(response)
    data = {
        "question": question.question,
        "solution": question.solution,
        "response": [{"step": number, "text": text} for number, text in enumerate(sentences, 1)],
    }
    return JudgeRequest(prompt, data, partial(read_steps, count=len(sentences)))


def read_steps(reply: str, count: int) -> tuple[SentenceLabel, ...]:
    """Return the labels of a reply to the prompt `steps`, one for each of `count` sentences."""
    (labels,) = _read_sentences(reply)
    if [label.step for label in labels] != list(range(1, count + 1)):
        raise UnusableReply(
            f"it holds {len(labels)} labels; it must hold one for each of the {count} steps, in order"
        )
    return tuple(label.label for label in labels)


def _error_request(question: ReasonQuestion, response: str, prompt: str) -> JudgeRequest[ErrorType]:
    data = {
        "question": question.question,
        "true": question.answer,
        "solution": question.solution,
        "response": response,
    }
    return JudgeRequest(prompt, data, _read_error)
