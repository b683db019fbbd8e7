"""Train Logos (arXiv:2505.24238, section 5): stages of GRPO on questions that a curriculum selects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmprobe.errors import InputError
from mmprobe.files import check_no_link
from mmprobe.ledger import fingerprint
from mmprobe.models import Model, load_model
from mmprobe.models.checkpoints import find_checkpoint, fingerprint_checkpoint
from mmprobe.samples import Sample
from mmprobe.training.checkpoints import (
    hold_training,
    last_checkpoint,
    place_model,
    start_training,
)
from mmprobe.training.curriculum import choose_questions, order_questions
from mmprobe.training.history import LogWriter
from mmprobe.training.logos import reward_response
from mmprobe.training.policy import RewardFunction, build_trainer
from mmprobe.training.settings import LogosSettings

MODEL = "model"  # folder of the trained weights, in the folder of a stage


def train_logos(
    model: str,
    samples: Sequence[Sample],
    out: str | Path,
    settings: LogosSettings = LogosSettings(),  # noqa: B008
    resume: bool = False,
    reward: RewardFunction = reward_response,
    device: str = "auto",
) -> Model:
    """Train a vision-language model with rewards for the format and the answer, and return it.

    Args:
        model: alias, local folder or hub id of a model of any family that TRL trains.
        samples: questions with true answers, with or without images.
        out: gets `stage-1/model/` and so on, `log.jsonl`, `training.json` and checkpoints.
        settings: how to train.
        resume: whether to continue an earlier call. The weights are the same as without the break.
        reward: returns both rewards of a response to a sample.
        device: as in `load_model`.

    Raises:
        InputError: a sample has no answer, the curriculum leaves no question, a reward is not finite, or `out` contains
            another training.

    Example:
        >>> samples = mp.load_samples("pairs/samples.jsonl")                         # doctest: +SKIP
        >>> train_logos("qwen2.5-vl-7b", samples, "logos", LogosSettings())          # doctest: +SKIP
    """
    check_questions(samples)
    with hold_training(Path(out), resume):
        return train_stages(model, samples, Path(out), settings, reward, device)


def check_questions(samples: Sequence[Sample]) -> None:
    """Check that there are questions, and that each has its answer.

    Raises:
        InputError: otherwise.
    """
    for sample in samples:
        if sample.answer is None:
            raise InputError(f"sample {sample.id}: has no 'answer', so no response can be rewarded")
    if not samples:
        raise InputError("logos: no question to train on")


def train_stages(
    model: str,
    samples: Sequence[Sample],
    out: Path,
    settings: LogosSettings,
    reward: RewardFunction = reward_response,
    device: str = "auto",
) -> Model:
    """Train as `train_logos` does, in a folder that the caller holds (`hold_training`)."""
    about = {"trained": "logos", "model": model, "questions": len(samples), **settings.model_dump()}
    start_training(out, about, fingerprint(fingerprint_checkpoint(find_checkpoint(model)), samples))
    trained = load_model(model, device=device, dtype="float32")
    for stage in range(settings.stages):
        folder = check_no_link(out / f"stage-{stage + 1}")
        if not (folder / MODEL).exists():
            _train_stage(trained, samples, stage, folder, settings, reward)
        trained = load_model(str(folder / MODEL), device=device, dtype="float32")
    return trained


def _train_stage(
    model: Model,
    samples: Sequence[Sample],
    stage: int,
    folder: Path,
    settings: LogosSettings,
    reward: RewardFunction,
) -> None:
    """Train one stage from its last whole checkpoint, and save its model."""
    chosen = choose_questions(model, samples, stage, settings, reward, folder)
    rows = order_questions(chosen, stage, settings)
    trainer = build_trainer(model, samples, rows, settings, reward, folder)
    checkpoint = last_checkpoint(folder)
    done = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    trainer.add_callback(LogWriter(folder.parent, stage, done))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    place_model(lambda part: save_model(model, part), folder / MODEL)


def save_model(model: Model, folder: Path) -> None:
    """Write a model and its processor, so that `load_model` reads them."""
    model.hf.save_pretrained(folder)
    model.processor.save_pretrained(folder)
