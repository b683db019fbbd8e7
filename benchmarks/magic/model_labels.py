"""Labels of MagiC's answers by a judge (paper 001, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmprobe.benchmarks.judges import LONGEST_ANSWER, Judge, Judgement, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.parsing import StrictReply, Unusable, read_reply
from mmprobe.benchmarks.magic.data import HealCase, MagicQuestion
from mmprobe.benchmarks.magic.labels import AnswerLabel, HealLabel, MagicLabels, StepLabel
from mmprobe.benchmarks.magic.prompts import ANSWER, HEALED, STEPS
from mmprobe.benchmarks.magic.steps import reasoning_steps


class _Answer(StrictReply):
    label: AnswerLabel


class _Healed(StrictReply):
    label: HealLabel


class _Steps(StrictReply):
    labels: list[StepLabel]


def read_answer(reply: str) -> tuple[AnswerLabel]:
    """The label of a reply to `ANSWER`.

    Raises:
        Unusable: its form is wrong.

    Example:
        >>> read_answer('{"label": "correct"}')
        ('correct',)
    """
    return (read_reply(reply, _Answer).label,)


def read_healed(reply: str) -> tuple[HealLabel]:
    """The label of a reply to `HEALED`.

    Raises:
        Unusable: its form is wrong.

    Example:
        >>> read_healed('{"label": "not_healed"}')
        ('not_healed',)
    """
    return (read_reply(reply, _Healed).label,)


def read_steps(reply: str, count: int) -> tuple[StepLabel, ...]:
    """The labels of a reply to `STEPS`, one for each of `count` steps.

    Raises:
        Unusable: its form, or the number of labels, is wrong.

    Example:
        >>> read_steps('{"labels": ["unknown"]}', 1)
        ('unknown',)
    """
    labels = read_reply(reply, _Steps).labels
    if len(labels) != count:
        raise Unusable(f"it holds {len(labels)} labels for {count} steps")
    return tuple(labels)


async def label_by_judge(
    judge: Judge,
    questions: Sequence[MagicQuestion],
    responses: Sequence[str | None],
    continued: Sequence[Sequence[tuple[HealCase, str | None]]],
) -> list[MagicLabels]:
    """All labels by a judge; what is empty needs none of it.

    Args:
        responses: of each question; None where there is none.
        continued: of each question its cases of Self-Heal, each with its continuation, None where there is none.

    Example:
        >>> asyncio.run(label_by_judge(judge, questions, responses, continued))     # doctest: +SKIP
    """
    tasks: dict[tuple[int, str], JudgeRequest[str]] = {}
    for index, (question, response, cases) in enumerate(zip(questions, responses, continued, strict=True)):
        tasks |= {(index, name): asked for name, asked in _of_answer(question, response).items()}
        for number, (case, text) in enumerate(cases):
            if text and text.strip():
                tasks[index, f"healed {number + 1}"] = _asked_healed(question, case, text)
    found: list[dict[str, Judgement[Any]]] = [{} for _ in questions]
    for (index, name), judgement in (await ask_by_name(judge, tasks)).items():
        found[index][name] = judgement
    return [
        _labels(question, response, [text for _, text in cases], own)
        for question, response, cases, own in zip(questions, responses, continued, found, strict=True)
    ]


def _of_answer(question: MagicQuestion, response: str | None) -> dict[str, JudgeRequest[Any]]:
    if response is None or not response.strip():
        return {}
    asked: dict[str, JudgeRequest[Any]] = {}
    for name, truth in (("short", question.answer), ("full", question.full_answer)):
        if truth:
            data = {"question": question.question, "response": response, "true_answer": truth}
            asked[name] = JudgeRequest(ANSWER, data, read_answer)
    steps = reasoning_steps(response[:LONGEST_ANSWER])
    if steps:
        known = [step.text if step.correct else step.correction for step in question.steps]
        facts: dict[str, Any] = {
            "question": question.question,
            "known": [question.full_answer or question.answer, *known],
            "steps": [{"number": number, "text": step} for number, step in enumerate(steps, 1)],
        }
        asked["steps"] = JudgeRequest(STEPS, facts, partial(read_steps, count=len(steps)))
    return asked


def _asked_healed(question: MagicQuestion, case: HealCase, text: str) -> JudgeRequest[Any]:
    data = {
        "question": question.question,
        "reasoning": case.injected,
        "corrections": case.corrections,
        "continuation": text,
    }
    return JudgeRequest(HEALED, data, read_healed)


def _labels(
    question: MagicQuestion,
    response: str | None,
    continuations: Sequence[str | None],
    found: Mapping[str, Judgement[Any]],
) -> MagicLabels:
    def verdict(name: str, good: str, text: str | None) -> bool | None:
        if text is None:
            return None
        if not text.strip():
            return False  # what says nothing says nothing right, and needs no judge
        items = found[name].items
        return None if items is None else items == (good,)

    steps = found["steps"].items if "steps" in found else None
    return MagicLabels(
        verdict("short", "correct", response),
        verdict("full", "correct", response) if question.full_answer else None,
        None if steps is None else tuple(_STEP[label] for label in steps),
        tuple(verdict(f"healed {place}", "healed", text) for place, text in enumerate(continuations, 1)),
        tuple((name, judgement.unscored) for name, judgement in found.items() if judgement.unscored),
    )


_STEP: dict[str, bool | None] = {"correct": True, "wrong": False, "unknown": None}
