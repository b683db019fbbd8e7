"""Label MagiC's answers by a judge (arXiv:2507.07297, sections 4.2 and 4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.judges import MAX_ANSWER_CHARS, Judge, Judgement, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.requests import any_reader, list_reader, reader, word_reader
from mmprobe.benchmarks.magic.data import HealCase, MagicQuestion
from mmprobe.benchmarks.magic.labels import AnswerLabel, HealLabel, MagicLabels, MagicStepLabel
from mmprobe.benchmarks.magic.prompts import MagicPrompts
from mmprobe.benchmarks.magic.rule_labels import is_correct
from mmprobe.benchmarks.magic.steps import reasoning_steps

_HEAL_PROMPTS = ("healed", "healed_explicit")
_STEP_LABELS: dict[str, bool | None] = {"correct": True, "wrong": False, "unknown": None}
read_answer = any_reader(
    reader(label=AnswerLabel),
    word_reader("Correctness", {"correct": "correct", "incorrect": "incorrect"}),  # figures 15 and 16
)
read_healed = any_reader(
    reader(label=HealLabel),
    word_reader("Correctness", {"yes": "healed", "no": "not_healed"}),  # figure 17
)


def label_by_judge(
    questions: Sequence[MagicQuestion],
    responses: Sequence[str | None],
    continuations: Sequence[Sequence[tuple[HealCase, str | None]]],
    judge: Judge,
    prompts: MagicPrompts | None = None,
) -> list[MagicLabels]:
    """Label the answers and their continuations by a judge. An empty text is wrong and needs no request.

    Responses are by question, and so are the cases of Self-Heal with their continuations; None without one.
    """
    prompts = prompts or default_prompts(MagicPrompts)
    requests: dict[tuple[int, str], JudgeRequest[Any]] = {}
    for index, (question, response, cases) in enumerate(
        zip(questions, responses, continuations, strict=True)
    ):
        for name, request in _answer_requests(question, response, prompts).items():
            requests[index, name] = request
        for number, (case, text) in enumerate(cases, 1):
            if text and text.strip():
                for name in _HEAL_PROMPTS:
                    prompt = getattr(prompts, name)
                    requests[index, f"{name} {number}"] = _heal_request(prompt, question, case, text)
                if is_correct(text, question.answer, question.full_answer, judged=True) is None:
                    requests[index, f"final {number}"] = _answer_request(
                        question, text, question.answer, prompts.answer_short
                    )
    judgements: list[dict[str, Judgement[Any]]] = [{} for _ in questions]
    for (index, name), judgement in asyncio.run(ask_by_name(judge, requests)).items():
        judgements[index][name] = judgement
    return [
        _make_labels(question, response, [text for _, text in cases], by_name)
        for question, response, cases, by_name in zip(
            questions, responses, continuations, judgements, strict=True
        )
    ]


def _answer_requests(
    question: MagicQuestion, response: str | None, prompts: MagicPrompts
) -> dict[str, JudgeRequest[Any]]:
    if response is None or not response.strip():
        return {}
    requests: dict[str, JudgeRequest[Any]] = {}
    for name, true_answer, prompt in (
        ("short", question.answer, prompts.answer_short),
        ("full", question.full_answer, prompts.answer_full),
    ):
        if true_answer:
            requests[name] = _answer_request(question, response, true_answer, prompt)
    steps = reasoning_steps(response[:MAX_ANSWER_CHARS])
    if steps:
        known = [step.text if step.correct else step.correction for step in question.steps]
        step_data = {
            "question": question.question,
            "known": [question.full_answer or question.answer, *known],
            "steps": [{"number": number, "text": step} for number, step in enumerate(steps, 1)],
        }
        requests["steps"] = JudgeRequest(
            prompts.steps, step_data, list_reader(MagicStepLabel, len(steps), "steps")
        )
    return requests


def _answer_request(
    question: MagicQuestion, response: str, true_answer: str, prompt: str
) -> JudgeRequest[Any]:
    data = {"question": question.question, "response": response, "true_answer": true_answer}
    return JudgeRequest(prompt, data, read_answer)


def _heal_request(prompt: str, question: MagicQuestion, case: HealCase, text: str) -> JudgeRequest[Any]:
    data = {
        "question": question.question,
        "reasoning": case.injected,
        "corrections": case.corrections,
        "continuation": text,
    }
    return JudgeRequest(prompt, data, read_healed)


def _make_labels(
    question: MagicQuestion,
    response: str | None,
    continuations: Sequence[str | None],
    judgements: Mapping[str, Judgement[Any]],
) -> MagicLabels:
    def verdict(name: str, good_label: str, text: str | None) -> bool | None:
        if text is None:
            return None
        if not text.strip():
            return False
        items = judgements[name].items
        return None if items is None else items == (good_label,)

    def heal_verdicts(name: str) -> tuple[bool | None, ...]:
        return tuple(
            verdict(f"{name} {number}", "healed", text) for number, text in enumerate(continuations, 1)
        )

    steps = judgements["steps"].items if "steps" in judgements else None
    return MagicLabels(
        correct=verdict("short", "correct", response),
        correct_full=verdict("full", "correct", response) if question.full_answer else None,
        correct_steps=None if steps is None else tuple(_STEP_LABELS[label] for label in steps),
        healed=heal_verdicts("healed"),
        healed_explicit=heal_verdicts("healed_explicit"),
        right=tuple(
            verdict(f"final {number}", "correct", text) if f"final {number}" in judgements else None
            for number, text in enumerate(continuations, 1)
        ),
        unscored=tuple(
            (name, judgement.unscored) for name, judgement in judgements.items() if judgement.unscored
        ),
    )
