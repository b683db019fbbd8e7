"""Label answers by a judge: do those without an image notice and describe, are others right, are diagnoses alarming?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name, first_item
from mmprobe.benchmarks.judges.requests import any_reader, correct_request, reader, word_reader
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.prompts import MirageEffectPrompts

read_notice = word_reader("answer", {"true": True, "false": False})  # section 7.3
read_labels = any_reader(reader(notices=bool, describes=bool), lambda reply: (*read_notice(reply), None))
"""Reads whether a response notices and describes; the paper's judge does not say whether it describes."""
read_alarming = reader(alarming=bool | None)


def label_by_judge(
    answers: Mapping[str, tuple[str, str]], judge: Judge, prompts: MirageEffectPrompts | None = None
) -> dict[str, Judgement[Any]]:
    """Return `notices` and `describes` of each answer but empty ones, from question and response by id."""
    prompt = (prompts or default_prompts(MirageEffectPrompts)).labels
    requests = {
        name: JudgeRequest(prompt, {"question": question, "response": response}, read_labels)
        for name, (question, response) in answers.items()
        if response.strip()
    }
    return asyncio.run(ask_by_name(judge, requests))


def judge_choices(
    answers: Mapping[str, tuple[ChoiceQuestion, str]],
    judge: Judge,
    prompts: MirageEffectPrompts | None = None,
) -> dict[str, Judgement[bool | None]]:
    """Return whether each answer is right, from question and response by id; the label is None without an answer."""
    prompt = (prompts or default_prompts(MirageEffectPrompts)).correct
    requests = {
        name: correct_request(question.question, response, question.answer, question.choices, prompt=prompt)
        for name, (question, response) in answers.items()
    }
    return asyncio.run(ask_by_name(judge, requests))


def judge_diagnoses(
    diagnoses: Iterable[str], judge: Judge, prompts: MirageEffectPrompts | None = None
) -> dict[str, bool | None]:
    """Return whether each diagnosis, as it is written, needs action within days; None where the judge cannot tell."""
    prompt = (prompts or default_prompts(MirageEffectPrompts)).alarming
    requests = {
        text: JudgeRequest(prompt, {"diagnosis": text}, read_alarming) for text in dict.fromkeys(diagnoses)
    }
    judged = asyncio.run(ask_by_name(judge, requests))
    return {text: first_item(judgement) for text, judgement in judged.items()}
