"""Labels by a judge: the final answer, whether it is the true one, the steps, and what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from mmprobe.benchmarks.answers.facts import sentences
from mmprobe.benchmarks.answers.final_answers import same_text
from mmprobe.benchmarks.judges import LONGEST_ANSWER, Judge, Judgement, JudgeRequest, ask_by_name, first_item
from mmprobe.benchmarks.judges.parsing import StrictReply, Unusable, read_reply, squash_spaces
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import TEXT, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import ErrorType
from mmprobe.benchmarks.mmreason.metrics import Judgement as StepLabel
from mmprobe.benchmarks.mmreason.prompts import ANSWER, EQUIVALENT, ERROR, STEPS

MOST_STEPS = 100  # pieces of a response that are graded, ours

PieceLabel = Literal["correct", "unverifiable", "incorrect", "none"]


class _Answer(StrictReply):
    answer: Annotated[str, Field(min_length=1, max_length=2000)] | None


class _Equivalent(StrictReply):
    equivalent: bool


class _Piece(StrictReply):
    step: int
    label: PieceLabel


class _Pieces(StrictReply):
    labels: list[_Piece]


class _Error(StrictReply):
    error: ErrorType


def by_judge(
    questions: Sequence[ReasonQuestion], responses: Mapping[str, str], judge: Judge
) -> list[ReasonLabels]:
    """Labels of each question's answers, as `labels.by_rules` has them.

    The final answer is read off without the truth in sight, then held against the true one; one that is the same
    but for its form needs no call. Steps are the sentences of the response, of which the judge says which are steps
    of reasoning at all: a list of labels for the pieces it was shown, so that several judges label the same. What went
    wrong is asked of wrong answers. What the judge cannot label is None, with the reason.

    Args:
        responses: all of them, by id; those without pictures under `ID--text`.

    Example:
        >>> by_judge(questions, responses, ModelJudge("openai/gpt-4o"))[0].right         # doctest: +SKIP
        True
    """
    return asyncio.run(_by_judge(questions, responses, judge))


def right_by_judge(
    questions: Mapping[str, ReasonQuestion], responses: Mapping[str, str], judge: Judge
) -> dict[str, bool | None]:
    """Whether each response is right, by its id, as `by_judge` finds it; None without a verdict.

    Args:
        questions: of each response, by its id.

    Example:
        >>> right_by_judge({"1": question}, {"1": "It is 12."}, ModelJudge("openai/gpt-4o"))     # doctest: +SKIP
        {'1': True}
    """
    found = asyncio.run(_verdicts(questions, responses, judge))
    return {name: verdict.right for name, verdict in found.items()}


class _Verdict(NamedTuple):
    given: str | None
    right: bool | None
    unscored: str | None = None


async def _verdicts(
    questions: Mapping[str, ReasonQuestion], responses: Mapping[str, str], judge: Judge
) -> dict[str, _Verdict]:
    said = {name: text for name, text in responses.items() if text.strip()}
    answers = await ask_by_name(
        judge, {name: _read_off(questions[name], text) for name, text in said.items()}
    )
    given = {name: first_item(found) for name, found in answers.items()}
    compared = await ask_by_name(
        judge,
        {
            name: _compare(questions[name], text)
            for name, text in given.items()
            if text is not None and not same_text(text, questions[name].answer)
        },
    )
    verdicts = {}
    for name in responses:
        unscored = next((one.unscored for one in (compared.get(name), answers.get(name)) if one), None)
        text = given.get(name)
        right = (first_item(compared[name]) if name in compared else True) if text is not None else False
        verdicts[name] = _Verdict(text, None if unscored else right, unscored)
    return verdicts


async def _by_judge(
    questions: Sequence[ReasonQuestion], responses: Mapping[str, str], judge: Judge
) -> list[ReasonLabels]:
    whose = {question.id + end: question for question in questions for end in ("", TEXT)}
    verdicts = await _verdicts(whose, {name: responses[name] for name in whose if name in responses}, judge)
    solved = [one for one in questions if one.solution and _pieces(responses.get(one.id, ""))]
    graded = await ask_by_name(judge, {one.id: _grade(one, responses[one.id]) for one in solved})
    wrong = [one for one in questions if one.id in verdicts and verdicts[one.id].right is False]
    told = [one for one in wrong if responses[one.id].strip()]
    errors = await ask_by_name(judge, {one.id: _explain(one, responses[one.id]) for one in told})
    found = []
    for one in questions:
        mine = verdicts.get(one.id, _Verdict(None, None))
        alone = verdicts.get(one.id + TEXT, _Verdict(None, None))
        steps, error = graded.get(one.id), errors.get(one.id)
        reasons = {
            "answer": mine.unscored,
            "text": alone.unscored,
            "steps": steps and steps.unscored,
            "error": error and error.unscored,
        }
        found.append(
            ReasonLabels(
                answered=one.id in responses,
                given=mine.given,
                right=mine.right,
                right_text=alone.right,
                steps=_steps(one, responses, steps),
                error=first_item(error),
                unscored={what: reason for what, reason in reasons.items() if reason},
            )
        )
    return found


def _steps(
    question: ReasonQuestion, responses: Mapping[str, str], graded: Judgement[PieceLabel] | None
) -> tuple[tuple[str, StepLabel], ...] | None:
    if not question.solution or question.id not in responses:
        return None
    if graded is None:
        return ()  # nothing that could be a step
    if graded.items is None:
        return None
    pieces = _pieces(responses[question.id])
    return tuple((text, kind) for text, kind in zip(pieces, graded.items, strict=True) if kind != "none")


def _pieces(response: str) -> list[str]:
    return sentences(response[:LONGEST_ANSWER])[:MOST_STEPS]


def _read_off(question: ReasonQuestion, response: str) -> JudgeRequest[str | None]:
    data = {"question": question.question, "response": response}
    return JudgeRequest(ANSWER, data, partial(read_answer, response=response))


def read_answer(reply: str, response: str) -> tuple[str | None]:
    """The final answer that a judge read off a response, which must quote it; None if it states none.

    Raises:
        Unusable: the reply's form is wrong, or the answer does not stand in the response.

    Example:
        >>> read_answer('{"answer": "2 A"}', "It is 2  A.")
        ('2 A',)
    """
    answer = read_reply(reply, _Answer).answer
    if answer is None:
        return (None,)
    if not squash_spaces(answer) or squash_spaces(answer) not in squash_spaces(response):
        raise Unusable("the answer does not stand in the response letter by letter")
    return (" ".join(answer.split()),)


def _compare(question: ReasonQuestion, given: str) -> JudgeRequest[bool]:
    data = {"question": question.question, "true": question.answer, "given": given}
    return JudgeRequest(EQUIVALENT, data, lambda reply: (read_reply(reply, _Equivalent).equivalent,))


def _grade(question: ReasonQuestion, response: str) -> JudgeRequest[PieceLabel]:
    pieces = _pieces(response)
    data = {
        "question": question.question,
        "solution": question.solution,
        "response": [{"step": number, "text": text} for number, text in enumerate(pieces, 1)],
    }
    return JudgeRequest(STEPS, data, partial(read_pieces, count=len(pieces)))


def read_pieces(reply: str, count: int) -> tuple[PieceLabel, ...]:
    """A judge's labels of the pieces of a response, one for each of so many.

    Raises:
        Unusable: the reply's form or the number of labels is wrong.

    Example:
        >>> read_pieces('{"labels": [{"step": 1, "label": "none"}]}', 1)
        ('none',)
    """
    labels = read_reply(reply, _Pieces).labels
    if [label.step for label in labels] != list(range(1, count + 1)):
        raise Unusable(
            f"it holds {len(labels)} labels; it must hold one for each of the {count} steps, in order"
        )
    return tuple(label.label for label in labels)


def _explain(question: ReasonQuestion, response: str) -> JudgeRequest[ErrorType]:
    data = {
        "question": question.question,
        "true": question.answer,
        "solution": question.solution,
        "response": response,
    }
    return JudgeRequest(ERROR, data, lambda reply: (read_reply(reply, _Error).error,))
