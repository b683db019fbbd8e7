"""The super-guesser (arXiv:2603.21687, sections 3.3 and 7.8): a text-only model that learns a set's answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from trl import SFTConfig, SFTTrainer

from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.errors import InputError
from mmprobe.files import check_no_link
from mmprobe.ledger import fingerprint, hash_content
from mmprobe.models.checkpoints import find_checkpoint, fingerprint_checkpoint
from mmprobe.models.text_model import TextModel, load_text_model
from mmprobe.training.checkpoints import (
    WholeCheckpoints,
    hold_training,
    last_checkpoint,
    place_model,
    silence,
    start_training,
)
from mmprobe.training.guesser.text_model import encode_example, save_text_model, split_questions
from mmprobe.training.history import LogWriter
from mmprobe.training.settings import GuesserSettings

MODEL = "model"  # folder of the trained weights in the output folder


class GuesserTrainer(WholeCheckpoints, SFTTrainer):
    """TRL's trainer with checkpoints that are marked when they are whole."""


def train_guesser(
    model: str,
    questions: Sequence[ChoiceQuestion],
    out: str | Path,
    settings: GuesserSettings = GuesserSettings(),  # noqa: B008
    resume: bool = False,
) -> TextModel:
    """Train a text-only model on questions and answers, and return it with the adapter in its weights.

    Args:
        model: a causal language model, as `load_text_model` takes it.
        questions: questions with their answers. Their images are never opened.
        out: gets `model/`, `log.jsonl`, `training.json` and `checkpoints/`, one an epoch.
        settings: how to train.
        resume: whether to continue an earlier call. The weights are the same as without the break.

    Raises:
        InputError: no questions are given, or `out` contains another training.

    Example:
        >>> questions = read_text_questions("train.jsonl")                       # doctest: +SKIP
        >>> train_guesser("Qwen/Qwen2.5-3B-Instruct", questions, "guesser")      # doctest: +SKIP
    """
    with hold_training(Path(out), resume):
        return train_text_model(model, questions, Path(out), settings)


def train_text_model(
    model: str, questions: Sequence[ChoiceQuestion], out: Path, settings: GuesserSettings
) -> TextModel:
    """Train as `train_guesser` does, in a folder that the caller holds (`hold_training`)."""
    if not questions:
        raise InputError("super-guesser: no question to learn from")
    about = {"trained": "guesser", "model": model, "questions": len(questions), **settings.model_dump()}
    used = fingerprint(fingerprint_checkpoint(find_checkpoint(model)))
    used["questions"] = hash_content(
        [question.model_dump(mode="json", exclude={"images"}) for question in questions]
    )
    start_training(out, about, used)
    if not sys.stderr.isatty():
        disable_progress_bars()
    if (check_no_link(out / MODEL) / "config.json").exists():
        return load_text_model(str(out / MODEL))._replace(name=str(out))
    base = load_text_model(model)
    trainer = build_trainer(base, questions, out, settings)
    checkpoint = last_checkpoint(out / "checkpoints")
    done = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    trainer.add_callback(LogWriter(out, done=done))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    adapted: Any = trainer.model
    trained = TextModel(str(out), adapted.merge_and_unload().eval(), base.tokenizer)
    place_model(lambda part: save_text_model(trained, part), out / MODEL)
    return trained


def build_trainer(
    base: TextModel, questions: Sequence[ChoiceQuestion], out: Path, settings: GuesserSettings
) -> GuesserTrainer:
    """Return the trainer with LoRA on a model and LoRA+ as its optimiser."""
    learned, held_out = split_questions(questions, settings.validation, settings.seed)
    adapted = add_adapter(base.hf, settings)
    optimiser = create_loraplus_optimizer(
        adapted,
        torch.optim.AdamW,
        lr=settings.learning_rate,
        loraplus_lr_ratio=settings.ratio,
        loraplus_weight_decay=settings.weight_decay,
    )
    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {"eval_strategy": "epoch"} if held_out else {}
    config = SFTConfig(
        output_dir=str(out / "checkpoints"),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0,
        max_grad_norm=1.0,
        per_device_train_batch_size=settings.micro_batch,
        per_device_eval_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch,
        max_length=settings.max_tokens,
        completion_only_loss=True,
        seed=settings.seed,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=1,
        logging_first_step=True,
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
        **options,
    )
    trainer = GuesserTrainer(
        model=adapted,
        args=config,
        train_dataset=_encode(learned, base, settings),
        eval_dataset=_encode(held_out, base, settings) if held_out else None,
        processing_class=base.tokenizer,
        optimizers=(optimiser, None),
    )
    silence(trainer)
    return trainer


def add_adapter(hf: Any, settings: GuesserSettings) -> PeftModel:
    """Return a model with LoRA on all linear layers but the unembedding; only A and B are trained."""
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(hf, config)


def _encode(questions: Sequence[ChoiceQuestion], base: TextModel, settings: GuesserSettings) -> Dataset:
    return Dataset.from_list(
        [encode_example(question, base.tokenizer, settings.explain) for question in questions]
    )
