"""What the checks share: answers to drawn questions, and shares with intervals.

A check looks at answers only, and uses none of the tools that organisms are to test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from recipes import TrainingExample, draw_any_pair, make_row

from mmprobe.benchmarks.synthetic.check import check_answer
from mmprobe.benchmarks.synthetic.questions import SYSTEM, Question, describe_edit, draw_question
from mmprobe.benchmarks.synthetic.scene import Scene, ScenePair, render
from mmprobe.models import Model
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.prompt import Chat, build_batch
from mmprobe.stats.estimate import estimate_mean

HELD_OUT_SEED = 10**6  # training draws from seeds below
BATCH = 32
MAX_NEW_TOKENS = 112
TRUE_PAIRS = 16


def held_out_numbers(seed: int) -> np.random.Generator:
    """Return the random numbers of a check. No batch of the training has them."""
    return np.random.default_rng([HELD_OUT_SEED, seed])


def answer_rows(model: Model, rows: Sequence[TrainingExample]) -> list[str]:
    """Return the model's greedy answers, each from the row's `given` on, which is not part of it."""
    answers = [""] * len(rows)
    order = sorted(range(len(rows)), key=lambda number: (len(rows[number].scenes), len(rows[number].answer)))
    for start in range(0, len(rows), BATCH):
        numbers = order[start : start + BATCH]
        batch = build_batch(model, [_chat(rows[number]) for number in numbers])
        with torch.inference_mode():
            ids = model.hf.generate(**batch.inputs, **build_generation_kwargs(model, MAX_NEW_TOKENS))
        length = batch.inputs["input_ids"].shape[1]
        texts = model.tokenizer.batch_decode(ids[:, length:], skip_special_tokens=True)
        for number, text in zip(numbers, texts, strict=True):
            answers[number] = text.strip()
    return answers


def _chat(row: TrainingExample) -> Chat:
    question: list[dict[str, Any]] = [{"type": "image"}] * len(row.scenes)
    question.append({"type": "text", "text": row.question})
    messages = [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM}]},
        {"role": "user", "content": question},
    ]
    images = [Image.fromarray(render(scene)) for scene in row.scenes]
    return Chat(messages, images, row.question, row.given)


def share(
    outcomes: Sequence[bool],
    least: float | None = None,
    most: float | None = None,
    pairs: Sequence[int] | None = None,
    differences: bool = False,
) -> dict[str, Any]:
    """Return the share of an outcome with its 95 % interval, and whether it keeps its one bound.

    Args:
        outcomes: one for each answer.
        least, most: the bound; one of them.
        pairs: the pair of scenes of each answer; None: each has its own.
        differences: whether the outcomes are differences of two shares, -1 to 1.

    Example:
        >>> share([True, True, False, True], least=0.7)["passed"]            # doctest: +SKIP
        True
    """
    values = np.asarray(outcomes, float)
    sets = None if pairs is None else np.asarray(pairs)
    mean = estimate_mean(values, sets, (-1.0, 1.0) if differences else None)
    if least is not None:
        bound, passed = f">= {least}", mean.value >= least
    elif most is not None:
        bound, passed = f"<= {most}", mean.value <= most
    else:
        raise ValueError("a check needs a bound")
    return {
        **{name: round(getattr(mean, name), 4) for name in ("value", "low", "high")},
        "n": mean.n,
        "bound": bound,
        "passed": passed,
    }


def true_share(
    model: Model,
    rng: np.random.Generator,
    types: Sequence[str],
    draw: Callable[[np.random.Generator], ScenePair] = draw_any_pair,
) -> dict[str, Any]:
    """Return the share of answers in which nothing is false, which must be 85 % or more (our bound).

    Args:
        types: of the questions, all of which are asked about each pair.
        draw: function from random numbers to a pair.
    """
    asked = []
    for number in range(TRUE_PAIRS):
        pair = draw(rng)
        asked += [(number, pair, draw_question(rng, kind, pair)) for kind in types]
    rows = [make_row(question, pair) for _, pair, question in asked]
    true = [
        is_faithful(answer, question, pair)
        for answer, (_, pair, question) in zip(answer_rows(model, rows), asked, strict=True)
    ]
    return share(true, least=0.85, pairs=[number for number, _, _ in asked])


def is_faithful(answer: str, question: Question, pair: ScenePair) -> bool:
    """Return whether nothing in an answer is false of its images."""
    facts = {
        "type": question.type,
        "objects": [_name_objects(scene) for scene in (pair.first, pair.second)],
        "differences": [{"sentence": describe_edit(edit)} for edit in pair.edits],
    }
    return check_answer(answer, question.answer, facts).faithful


def _name_objects(scene: Scene) -> list[str]:
    return [f"{thing.colour} {thing.shape} {thing.cell}" for thing in scene.objects]
