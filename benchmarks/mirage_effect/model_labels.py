"""Label answers by a judge: do those without an image notice and describe, and are unread ones right?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.requests import correct_request, reader
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.prompts import LABELS

read_labels = reader(notices=bool, describes=bool)


def label_by_judge(answers: Mapping[str, tuple[str, str]], judge: Judge) -> dict[str, Judgement[bool]]:
    """Return `notices` and `describes` of each answer but empty ones, from question and response by id."""
    requests = {
        name: JudgeRequest(LABELS, {"question": question, "response": response}, read_labels)
        for name, (question, response) in answers.items()
        if response.strip()
    }
    return asyncio.run(ask_by_name(judge, requests))


def judge_choices(
    answers: Mapping[str, tuple[ChoiceQuestion, str]], judge: Judge
) -> dict[str, Judgement[bool | None]]:
    """Return whether each answer is right, from question and response by id; the label is None without an answer."""
    requests = {
        name: correct_request(question.question, response, question.answer, question.choices)
        for name, (question, response) in answers.items()
    }
    return asyncio.run(ask_by_name(judge, requests))
