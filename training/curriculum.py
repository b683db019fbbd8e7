"""Curriculum reinforcement fine-tuning (section 5.2): which questions a stage trains on, and in which order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.files import make_folders, read_json, write_atomic
from mmprobe.models import Model
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import GREEDY
from mmprobe.samples import Sample
from mmprobe.training.logos import select_for_stage
from mmprobe.training.policy import RewardFunction
from mmprobe.training.settings import LogosSettings

SAMPLED_TOGETHER = 64  # responses at least; sampling needs far less memory than learning
CHOSEN = "questions.json"  # in the folder of a stage: mean accuracies and the questions that it trains on


def sample_responses(
    model: Model, samples: Sequence[Sample], count: int, settings: LogosSettings, seed: int
) -> list[list[str]]:
    """Return `count` responses to each sample; greedy answers, and one each, for count 0.

    Sampling is TRL's: from the whole vocabulary, at the settings' temperature.

    Args:
        seed: of the random numbers, so that a resumed training draws the same responses.
    """
    torch.manual_seed(seed)
    options = GREEDY
    if count:
        options = GREEDY | {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
    each = max(1, count)
    asked = [_with_instruction(sample, settings.instruction) for sample in samples for _ in range(each)]
    responses: list[str] = []
    step = max(settings.micro_batch, SAMPLED_TOGETHER)
    for start in tqdm(range(0, len(asked), step), desc="responses", disable=None):
        batch = model.batch(asked[start : start + step])
        with torch.inference_mode(), watch_finite(model, batch.inputs, samples=bool(count)):
            ids = model.hf.generate(**batch.inputs, max_new_tokens=settings.max_new_tokens, **options)
        length = batch.inputs["input_ids"].shape[1]
        responses += model.tokenizer.batch_decode(ids[:, length:], skip_special_tokens=True)
    return [responses[start : start + each] for start in range(0, len(responses), each)]


def _with_instruction(sample: Sample, instruction: str) -> Sample:
    """Return a sample whose question requests the think/answer format."""
    question = f"{sample.question}\n{instruction}" if instruction else sample.question
    return sample.model_copy(update={"question": question})


def choose_questions(
    model: Model,
    samples: Sequence[Sample],
    stage: int,
    settings: LogosSettings,
    reward: RewardFunction,
    folder: Path,
) -> list[int]:
    """Return the numbers of the samples that a stage trains on, and write them with each mean accuracy.

    Without the curriculum these are all. An earlier choice in the folder is read, not made again.

    Raises:
        InputError: no question is left.
    """
    file = folder / CHOSEN
    if file.exists():
        chosen = set(read_json(file)["chosen"])
    elif not settings.curriculum:
        chosen = {sample.id for sample in samples}
    else:
        model.hf.eval()
        responses = sample_responses(
            model, samples, settings.samples, settings, seed=settings.seed * 1000 + stage
        )
        means = {
            sample.id: float(np.mean([reward(sample, response).accuracy for response in group]))
            for sample, group in zip(samples, responses, strict=True)
        }
        chosen = set(select_for_stage(means, stage, settings.lower))
        ordered = [sample.id for sample in samples if sample.id in chosen]
        make_folders(folder)
        write_atomic(file, json.dumps({"mean_accuracy": means, "chosen": ordered}, indent=1) + "\n")
    if not chosen:
        bound = "above 0" if stage == 0 else "below 0.5"
        raise InputError(
            f"logos, stage {stage + 1}: no question has a mean accuracy {bound}, so there is nothing to train on; "
            "train fewer stages, without the curriculum, or from a better model"
        )
    return [number for number, sample in enumerate(samples) if sample.id in chosen]


def order_questions(chosen: Sequence[int], stage: int, settings: LogosSettings) -> list[int]:
    """Return the questions of all epochs of a stage in the order of the training, whole batches only.

    Each epoch has its own permutation. Batches may span two epochs; the last questions are left out if they do
    not fill a batch. `max_steps` takes the place of the epochs.

    Raises:
        InputError: all epochs together do not fill one batch.

    Example:
        >>> settings = LogosSettings(epochs=2, samples=2, batch_size=4, micro_batch=2)
        >>> sorted(order_questions([3, 5], 0, settings))
        [3, 3, 5, 5]
    """
    rng = np.random.default_rng([settings.seed, stage])
    groups = settings.batch_size // settings.samples
    count = settings.epochs * len(chosen) // groups * groups
    if settings.max_steps is not None:
        count = settings.max_steps * groups
    rows: list[int] = []
    while len(rows) < count:
        rows += [chosen[index] for index in rng.permutation(len(chosen))]
    if not rows:
        raise InputError(
            f"logos, stage {stage + 1}: {settings.epochs * len(chosen)} groups of responses do not fill a batch of "
            f"{groups}; give more questions or epochs, or a smaller batch"
        )
    return rows[:count]
