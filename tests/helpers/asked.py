"""Tests of a diagnosis asked without a model: who answers is a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.choices import Choice
from mmprobe.diagnosis.schedule import AnswerReading, Request, Task
from mmprobe.diagnosis.study import Case


def drive(task: Task[Any], answer: Callable[[Request], Any]) -> Any:
    """Return what a task measures where a function answers each of its requests."""
    try:
        requests = next(task)
        while True:
            requests = task.send([answer(request) for request in requests])
    except StopIteration as stop:
        return stop.value


def saying(says: Callable[[Any], int]) -> Callable[[Request], AnswerReading]:
    """Return what answers requests as a model that says one of six tokens after each chat."""
    return lambda request: read([1.0])._replace(last=np.eye(6)[says(request.chat)])


def read(margins: list[float], **changes: Any) -> AnswerReading:
    """Return the reading of an answer whose tokens have these margins."""
    own = np.array(margins)
    return AnswerReading(-np.log1p(np.exp(-own)), (own < 0).astype(int), own, np.zeros(3), **changes)


def case(
    answer: ParsedAnswer,
    number: int = 0,
    choice: Choice | None = None,
    example: ParsedAnswer | None = None,
    given: Sequence[ParsedAnswer] = (),
    readings: Mapping[str, AnswerReading] | None = None,
    model: Any = None,
) -> Case:
    """Return an answer of a study in which what the others tell of it is said here.

    Args:
        given: all answers of the model.
    """
    study: Any = SimpleNamespace(
        model=model,
        answers=given,
        numbers={answer.sample.id: number},
        choice=lambda answer: choice,
        example=lambda answer: example,
    )
    return Case(study, answer, readings or {})
