"""Label answers by a judge: do those without an image notice and describe, are others right, are diagnoses alarming?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name, first_item
from mmprobe.benchmarks.judges.requests import correct_request, reader
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.prompts import ALARMING, LABELS

read_labels = reader(notices=bool, describes=bool)
read_alarming = reader(alarming=bool | None)


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


def judge_diagnoses(diagnoses: Iterable[str], judge: Judge) -> dict[str, bool | None]:
    """Return whether each diagnosis, as it is written, needs action within days; None where the judge cannot tell."""
    requests = {
        text: JudgeRequest(ALARMING, {"diagnosis": text}, read_alarming) for text in dict.fromkeys(diagnoses)
    }
    judged = asyncio.run(ask_by_name(judge, requests))
    return {text: first_item(judgement) for text, judgement in judged.items()}
