"""True answers read: how unlikely the model finds what is true about each attribute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmprobe.diagnosis.battery.answers import Answer, make_answer
from mmprobe.diagnosis.battery.attributes import locate_attributes
from mmprobe.diagnosis.battery.reading import Reading, read_answers
from mmprobe.models import Model
from mmprobe.models.chat import build_chat


def measure_truth(
    model: Model, answers: Sequence[Answer], own: Sequence[Reading]
) -> list[dict[str, float] | None]:
    """Return by attribute the chance that the model says something else than what is true of it.

    It is the largest over the places where the true answer names the attribute, and graded where answers err by a
    hair or are right by a hair. One forward pass over the answers that differ from the true ones. None where the
    true answer is not known.

    Args:
        own: the readings of the answers with their own images.
    """
    results: list[dict[str, float] | None] = [None] * len(answers)
    left: list[tuple[int, Answer]] = []
    for row, (answer, reading) in enumerate(zip(answers, own, strict=True)):
        truth = answer.sample.answer
        if truth is None:
            continue
        if truth == answer.text.strip():
            results[row] = measure_doubt(answer, reading.logprobs)
        else:
            ids = model.tokenizer(truth, add_special_tokens=False)["input_ids"]
            left.append((row, make_answer(model, answer.sample, ids)))
    if left:
        chats = [build_chat(true.sample) for _, true in left]
        readings = read_answers(model, chats, [true.ids for _, true in left])
        for (row, true), reading in zip(left, readings, strict=True):
            results[row] = measure_doubt(true, reading.logprobs)
    return results


def measure_doubt(true: Answer, logprobs: np.ndarray) -> dict[str, float]:
    """Return by attribute the chance of other words, the largest over the places that name it.

    Args:
        true: the true answer.
        logprobs: of its tokens, [step].
    """
    ends = np.cumsum([len(token) for token in true.tokens])
    starts = ends - [len(token) for token in true.tokens]
    doubt: dict[str, float] = {}
    for attribute, start, end in locate_attributes(true.sample, true.text):
        inside = (ends > start) & (starts < end)
        chance = 1 - float(np.exp(logprobs[inside].sum()))
        doubt[attribute] = round(max(doubt.get(attribute, 0.0), chance), 4)
    return doubt
