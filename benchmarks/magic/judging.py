"""The labels of MagiC's answers: by rules, or by a judge (paper 001, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mmprobe.benchmarks.judges import LONGEST_ANSWER, Asked, Judge, Judgement, ask_by_name
from mmprobe.benchmarks.judges.replies import Unusable, _read, _Strict
from mmprobe.benchmarks.magic.answers import is_answer, states
from mmprobe.benchmarks.magic.data import HealCase, MagicQuestion
from mmprobe.benchmarks.magic.prompts import ANSWER, HEALED, STEPS
from mmprobe.benchmarks.magic.steps import reasoning_steps, stated_answer
from mmprobe.benchmarks.magic.world import holds

AnswerLabel = Literal["correct", "incorrect"]
HealLabel = Literal["healed", "not_healed"]
StepLabel = Literal["correct", "wrong", "unknown"]


@dataclass(frozen=True)
class Labels:
    """What is said of a question's answer and continuations; None where nothing could be said.

    Attributes:
        short, full: whether the answer agrees with the short true answer, and with the full one.
        steps: whether each step of the answer is correct.
        healed: whether each continuation says a correction.
        unscored: why a judge gave no label, by what it was asked for.
    """

    short: bool | None = None
    full: bool | None = None
    steps: tuple[bool | None, ...] | None = None
    healed: tuple[bool | None, ...] = ()
    unscored: tuple[tuple[str, str], ...] = ()


class _Answer(_Strict):
    label: AnswerLabel


class _Healed(_Strict):
    label: HealLabel


class _Steps(_Strict):
    labels: list[StepLabel]


def read_answer(reply: str) -> tuple[AnswerLabel]:
    """The label of a reply to `ANSWER`.

    Raises:
        Unusable: its form is wrong.

    Example:
        >>> read_answer('{"label": "correct"}')
        ('correct',)
    """
    return (_read(reply, _Answer).label,)


def read_healed(reply: str) -> tuple[HealLabel]:
    """The label of a reply to `HEALED`.

    Raises:
        Unusable: its form is wrong.

    Example:
        >>> read_healed('{"label": "not_healed"}')
        ('not_healed',)
    """
    return (_read(reply, _Healed).label,)


def read_steps(reply: str, count: int) -> tuple[StepLabel, ...]:
    """The labels of a reply to `STEPS`, one for each of `count` steps.

    Raises:
        Unusable: its form, or the number of labels, is wrong.

    Example:
        >>> read_steps('{"labels": ["unknown"]}', 1)
        ('unknown',)
    """
    labels = _read(reply, _Steps).labels
    if len(labels) != count:
        raise Unusable(f"it holds {len(labels)} labels for {count} steps")
    return tuple(labels)


def label_by_rules(question: MagicQuestion, response: str | None) -> Labels:
    """The answer by words; its steps as they were annotated, or as the synthetic world's objects say.

    Steps are labelled only where each is one of the question's annotated steps, or some tell of the synthetic world.
    Whether a continuation says a correction takes a judge.

    Args:
        response: None where there is none.

    Example:
        >>> one = {"id": "1", "image": "a.png", "question": "?", "answer": "cat", "objects": [[0, 0, 5, 5]]}
        >>> label_by_rules(MagicQuestion.model_validate(one), "In R1 there is a cat.")
        Labels(short=True, full=None, steps=None, healed=(), unscored=())
    """
    if response is None:
        return Labels()
    full = _full(response, question.full_answer) if question.full_answer else None
    return Labels(is_answer(response, question.answer), full, _annotated(question, reasoning_steps(response)))


def _full(response: str, truth: str) -> bool:
    """Whether the answer states the full truth, which may run over sentences of it."""
    return states(stated_answer(response) or response, truth)


def _annotated(question: MagicQuestion, steps: Sequence[str]) -> tuple[bool | None, ...] | None:
    known = {" ".join(step.text.split()).casefold(): step.correct for step in question.steps}
    plain = [" ".join(step.split()).casefold() for step in steps]
    if steps and all(step in known for step in plain):
        return tuple(known[step] for step in plain)
    objects = question.metadata.get("objects")
    if isinstance(objects, list) and all(isinstance(one, str) and len(one.split()) == 3 for one in objects):
        found = tuple(holds(step, objects) for step in steps)
        return found if any(label is not None for label in found) else None
    return None


async def label_by_judge(
    judge: Judge,
    questions: Sequence[MagicQuestion],
    responses: Sequence[str | None],
    continued: Sequence[Sequence[tuple[HealCase, str | None]]],
) -> list[Labels]:
    """All labels by a judge; what is empty needs none of it.

    Args:
        responses: of each question; None where there is none.
        continued: of each question its cases of Self-Heal, each with its continuation, None where there is none.

    Example:
        >>> asyncio.run(label_by_judge(judge, questions, responses, continued))     # doctest: +SKIP
    """
    tasks: dict[tuple[int, str], Asked[str]] = {}
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


def _of_answer(question: MagicQuestion, response: str | None) -> dict[str, Asked[Any]]:
    if response is None or not response.strip():
        return {}
    asked: dict[str, Asked[Any]] = {}
    for name, truth in (("short", question.answer), ("full", question.full_answer)):
        if truth:
            data = {"question": question.question, "response": response, "true_answer": truth}
            asked[name] = Asked(ANSWER, data, read_answer)
    steps = reasoning_steps(response[:LONGEST_ANSWER])
    if steps:
        known = [step.text if step.correct else step.correction for step in question.steps]
        facts: dict[str, Any] = {
            "question": question.question,
            "known": [question.full_answer or question.answer, *known],
            "steps": [{"number": number, "text": step} for number, step in enumerate(steps, 1)],
        }
        asked["steps"] = Asked(STEPS, facts, partial(read_steps, count=len(steps)))
    return asked


def _asked_healed(question: MagicQuestion, case: HealCase, text: str) -> Asked[Any]:
    data = {
        "question": question.question,
        "reasoning": case.injected,
        "corrections": case.corrections,
        "continuation": text,
    }
    return Asked(HEALED, data, read_healed)


def _labels(
    question: MagicQuestion,
    response: str | None,
    continuations: Sequence[str | None],
    found: Mapping[str, Judgement[Any]],
) -> Labels:
    def verdict(name: str, good: str, text: str | None) -> bool | None:
        if text is None:
            return None
        if not text.strip():
            return False  # what says nothing says nothing right, and needs no judge
        items = found[name].items
        return None if items is None else items == (good,)

    steps = found["steps"].items if "steps" in found else None
    return Labels(
        verdict("short", "correct", response),
        verdict("full", "correct", response) if question.full_answer else None,
        None if steps is None else tuple(_STEP[label] for label in steps),
        tuple(verdict(f"healed {place}", "healed", text) for place, text in enumerate(continuations, 1)),
        tuple((name, judgement.unscored) for name, judgement in found.items() if judgement.unscored),
    )


_STEP: dict[str, bool | None] = {"correct": True, "wrong": False, "unknown": None}
