"""Questions to causal language models that read text alone. No image is looked at, and none needs to exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.samples import build_choice_answer, build_choice_prompt
from mmprobe.benchmarks.mirage_effect.synthetic import synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.files import read_records
from mmprobe.models.prompt import list_control_tokens, split_control_tokens
from mmprobe.models.text_model import TextModel, answer_texts, render_text
from mmprobe.samples import Sample

_BATCH = 32  # questions asked together


def read_text_questions(path: str | Path) -> list[ChoiceQuestion]:
    """Read the questions of a file, or of the `samples.jsonl` in a folder, and open no image.

    Args:
        path: questions with options or short answers, as `mmprobe bench mirage-effect` reads and writes them, or
            `samples.jsonl` of `make-pairs`.

    Raises:
        InputError: the first invalid line. The message names line and field.

    Example:
        >>> len(read_text_questions("pairs/samples.jsonl"))                 # doctest: +SKIP
        24
    """
    path = Path(path)
    file = path / "samples.jsonl" if path.is_dir() else path
    if is_synthetic(file):
        samples = {sample.id: sample for _, sample in read_records(file, Sample)}
        return [
            question.model_copy(update={"metadata": {"response": samples[question.id].answer}})
            for question in synthetic_questions(list(samples.values()))
        ]
    return [question for _, question in read_records(file, ChoiceQuestion)]


def split_questions(
    questions: Sequence[ChoiceQuestion], share: float, seed: int
) -> tuple[list[ChoiceQuestion], list[ChoiceQuestion]]:
    """Split questions into a part for training and one for validation. Questions about the same images stay together.

    Args:
        share: of the questions that are for validation, 0 to below 1; at least one set of images is for training.
        seed: of the draw.

    Example:
        >>> questions = [ChoiceQuestion(id=name, question="?", answer="1") for name in "abcdefghij"]
        >>> [len(part) for part in split_questions(questions, 0.1, seed=0)]
        [9, 1]
    """
    groups: dict[tuple[str, ...], list[ChoiceQuestion]] = {}
    for question in questions:
        key = tuple(map(str, question.images)) or (question.id,)
        groups.setdefault(key, []).append(question)
    order = np.random.default_rng(seed).permutation(len(groups))
    members = list(groups.values())
    validation: set[str] = set()
    for number in order[:-1]:
        if len(validation) + len(members[number]) > share * len(questions):
            break
        validation |= {question.id for question in members[number]}
    return (
        [question for question in questions if question.id not in validation],
        [question for question in questions if question.id in validation],
    )


def _render_prompt(question: ChoiceQuestion, tokenizer: Any) -> str:
    """Return a question as a prompt: in the tokenizer's chat template, or as a line where it has none.

    Control tokens in its texts are split, as in a chat with images (`models/prompt.py`).
    """
    return render_text(build_choice_prompt(question), question.system, tokenizer, f"question {question.id!r}")


def _split(text: str | None, question: ChoiceQuestion, tokenizer: Any) -> str:
    return split_control_tokens(text or "", list_control_tokens(tokenizer), f"question {question.id!r}")


def encode_example(question: ChoiceQuestion, tokenizer: Any, explain: bool) -> dict[str, list[int]]:
    """Return the ids of a question with its answer, and a mask that is 1 on what is learned: the answer and its end.

    The answer is `metadata["response"]`, where the question has one, and else its letter or short answer.

    Args:
        explain: whether the target begins with `metadata["explanation"]`.

    Raises:
        InputError: an explanation is to be learned and there is none.
    """
    target = str(question.metadata.get("response") or build_choice_answer(question))
    if explain:
        explanation = question.metadata.get("explanation")
        if not isinstance(explanation, str) or not explanation.strip():
            raise InputError(
                f"question {question.id!r}: has no 'explanation' in its metadata; train without explanations"
            )
        target = f"{explanation.strip()}\n{target}"
    prompt = tokenizer(
        _render_prompt(question, tokenizer), add_special_tokens=tokenizer.chat_template is None
    )
    answer = tokenizer(_split(target, question, tokenizer), add_special_tokens=False)["input_ids"] + [
        tokenizer.eos_token_id
    ]
    ids = prompt["input_ids"]
    return {"input_ids": ids + answer, "completion_mask": [0] * len(ids) + [1] * len(answer)}


def save_text_model(model: TextModel, folder: Path) -> None:
    """Write a model and its tokenizer, so that `load_text_model` reads them."""
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def answer_questions(model: TextModel, questions: Sequence[ChoiceQuestion], max_new_tokens: int) -> list[str]:
    """Return the model's greedy answers, each from its question's text alone."""
    answers: list[str] = []
    for start in tqdm(range(0, len(questions), _BATCH), desc="answers", disable=None):
        part = questions[start : start + _BATCH]
        answers += answer_texts(
            model, [_render_prompt(each, model.tokenizer) for each in part], max_new_tokens
        )
    return answers
