"""TRL's GRPO trainer with what Logos adds: rewards from samples, advantages as written, and the group filter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer
from trl.data_utils import prepare_multimodal_messages
from trl.trainer.utils import RepeatSampler

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.samples import Sample, check_short, read_image
from mmprobe.training.checkpoints import WholeCheckpoints, silence
from mmprobe.training.logos import Rewards, compute_advantages
from mmprobe.training.settings import LogosSettings

RewardFunction = Callable[[Sample, str], Rewards]


class _ResponseGroup(NamedTuple):
    """The responses to one question: rows, ids of prompts and responses, messages, and images."""

    rows: list[Any]
    prompt_ids: list[Any]
    completion_ids: list[Any]
    completions: list[Any]
    images: list[Any]


class LogosTrainer(WholeCheckpoints, GRPOTrainer):
    """GRPO as in Logos (arXiv:2505.24238, equations 4 and 5, section 5.3).

    TRL's own advantages divide by the standard deviation over G - 1, plus 1e-4, and TRL keeps groups whose rewards
    are equal. Both are changed here, where responses are scored.
    """

    def __init__(
        self, model: Any, processor: Any, samples: Sequence[Sample], rows: Sequence[int], settings: LogosSettings,
        reward: RewardFunction, config: GRPOConfig,
    ):  # fmt: skip
        """Set up the training of a transformers model on samples.

        Args:
            samples: the samples that rows name.
            rows: number of the sample of each group, in the order of the training.
            reward: returns both rewards of a response to a sample.
        """
        if settings.refill and config.world_size > 1:
            raise InputError("refill: needs a single process; train without it, or on one GPU")
        self.samples, self.settings, self.rows = samples, settings, list(rows)
        self._rewards = torch.zeros(0)
        self._ready: tuple[Any, ...] | None = None  # responses that are ready before TRL requests them

        def format_reward(completions: list[Any], sample: list[Sample], **_: Any) -> list[float]:
            self._scored = [
                reward(each, text_of(completion))
                for each, completion in zip(sample, completions, strict=True)
            ]
            return [rewards.format for rewards in self._scored]

        def accuracy_reward(**_: Any) -> list[float]:
            return [rewards.accuracy for rewards in self._scored]

        functions: list[Any] = [format_reward, accuracy_reward]
        super().__init__(
            model=model,
            reward_funcs=functions,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(rows), "row": list(rows)}),
            processing_class=processor,
        )

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        """Return the rows in their order, which spans all epochs, so that a resumed training finds its place."""
        if self.settings.samples > 1:
            return super()._get_train_sampler(dataset)
        size = self.args.generation_batch_size
        repeats = self.num_iterations * self.args.steps_per_generation
        return RepeatSampler(range(len(self.rows)), 1, size, repeats, shuffle=False)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        rows = [build_row(self.samples[row["row"]], self.settings.instruction) for row in inputs]
        if self.settings.refill:
            rows = self._fill_places(rows)
        output = super()._generate_and_score_completions(rows)
        self._ready = None
        group = self.settings.samples if self.settings.samples > 1 else len(self._rewards)
        rewards = self._rewards.reshape(-1, group).double().cpu().numpy()
        advantages = compute_advantages(rewards).ravel()
        kept = np.ones(len(advantages), bool)
        if self.settings.filter:
            kept = np.repeat((rewards != rewards[:, :1]).any(1), group)
        own = slice(
            self.accelerator.process_index * len(rows), (self.accelerator.process_index + 1) * len(rows)
        )
        mask = output["completion_mask"]
        output["advantages"] = torch.as_tensor(advantages[own], dtype=torch.float32, device=mask.device)
        output["tool_mask"] = (
            torch.as_tensor(kept[own], device=mask.device)[:, None].expand_as(mask).to(mask.dtype)
        )
        # The loss is a mean over all responses, in which dropped ones count as 0. This makes it one over the kept.
        output["weight"] = torch.tensor(len(kept) / kept.sum() if kept.any() else 0.0, device=mask.device)
        self._metrics["train"]["kept_share"].append(float(kept.mean()))
        return output

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        return super()._generate(prompts) if self._ready is None else self._ready

    def _fill_places(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows in which new questions have the places of groups with equal rewards, as far as rounds allow.

        Their responses become what `_generate` returns.
        """
        group, places = self.settings.samples, len(rows) // self.settings.samples
        rng = np.random.default_rng([self.settings.seed, self.state.global_step])
        kept: list[_ResponseGroup] = []
        dropped: list[_ResponseGroup] = []
        for _ in range(1 + self.settings.refill):
            prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
            ids, completion_ids, _mask, completions, _logprobs, extra, images, tools = super()._generate(
                prompts
            )
            self._calculate_rewards(rows, prompts, completions, completion_ids)
            for start in range(0, len(rows), group):
                part = slice(start, start + group)
                own = images[part] if images is not None else [None] * group
                found = _ResponseGroup(rows[part], ids[part], completion_ids[part], completions[part], own)
                differ = len(set(self._rewards[part].tolist())) > 1
                (kept if differ else dropped).append(found)
            if len(kept) >= places:
                break
            new = rng.choice(self.rows, places - len(kept))
            rows = [
                build_row(self.samples[row], self.settings.instruction) for row in new for _ in range(group)
            ]
        columns = zip(*(kept + dropped)[:places], strict=True)
        rows, ids, completion_ids, completions, images = (
            [each for part in column for each in part] for column in columns
        )
        shown = images if any(images) else None
        self._ready = (ids, completion_ids, None, completions, None, extra, shown, tools)
        return rows

    def _calculate_rewards(self, inputs: Any, *args: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, *args)
        if not torch.isfinite(rewards).all():
            row = int((~torch.isfinite(rewards)).any(1).nonzero()[0])
            name = inputs[row % len(inputs)]["sample"].id
            raise InputError(
                f"sample {name}: the reward of a response is not finite; check the reward function"
            )
        self._rewards = rewards.sum(1)
        return rewards

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load weights as `from_pretrained` does. Trainer's own way takes only names that are as in the module."""
        policy: Any = self.model
        saved = type(policy).from_pretrained(resume_from_checkpoint, use_safetensors=True)
        policy.load_state_dict(saved.state_dict())

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        return super()._compute_loss(model, inputs) * inputs["weight"]


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL hands over as messages."""
    content = completion[0]["content"] if isinstance(completion, list) else completion
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def build_row(sample: Sample, instruction: str) -> dict[str, Any]:
    """Return a sample in TRL's form: messages, images, and the sample for the reward."""
    check_short([sample], "train")
    question = f"{sample.question}\n{instruction}" if instruction else sample.question
    messages = [{"role": "user", "content": question}]
    if sample.system is not None:
        messages.insert(0, {"role": "system", "content": sample.system})
    images = [read_image(path, f"sample {sample.id}") for path in sample.images]
    return {"prompt": messages, "images": images, "sample": sample}


def _freeze_vision(model: Model) -> None:
    """Let only the decoder and the unembedding learn: the vision encoder and what joins it to the decoder do not."""
    model.hf.requires_grad_(False)
    model.family.decoder(model.hf).requires_grad_(True)
    model.hf.get_output_embeddings().requires_grad_(True)


def _build_config(settings: LogosSettings, folder: Path) -> GRPOConfig:
    """Return the settings in TRL's form, with one epoch: the rows already contain all epochs of `settings`."""
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        num_train_epochs=1,
        max_steps=settings.max_steps or -1,
        loss_type="grpo",
        beta=settings.kl,
        epsilon=settings.epsilon,
        num_generations=max(2, settings.samples),
        temperature=settings.temperature,
        max_completion_length=settings.max_new_tokens,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warm_up,
        weight_decay=settings.weight_decay,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        remove_unused_columns=False,
        seed=settings.seed,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
    )


def build_trainer(
    model: Model, samples: Sequence[Sample], rows: Sequence[int], settings: LogosSettings, reward: RewardFunction,
    folder: Path,
) -> LogosTrainer:  # fmt: skip
    """Return the trainer of one stage."""
    _freeze_vision(model)
    config = _build_config(settings, folder)
    trainer = LogosTrainer(model.hf, model.processor, samples, rows, settings, reward, config)
    silence(trainer)
    return trainer
