"""How Logos and the super-guesser are trained, and what the ablations of Logos change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from mmprobe.errors import InputError, name_option, unknown_name
from mmprobe.settings import LARGEST_SEED, AskSettings, Option, Record

EPSILON = 0.2  # clipping range, our choice; the paper gives none
INSTRUCTION = (
    "Think first, then answer. Write <think>your reasoning</think><answer>your answer</answer> and nothing else. "
    "For example: <think>There are two cups on the table and one on the chair.</think><answer>3</answer>"
)


class _InBatches(Record):
    """Settings with a batch that is read in parts. Without a size of the parts, the default's largest divisor is taken."""

    @model_validator(mode="before")
    @classmethod
    def _fit_parts(cls, values: dict[str, Any]) -> dict[str, Any]:
        size, usual = values.get("batch_size"), cls.model_fields["micro_batch"].default
        if isinstance(size, int) and "micro_batch" not in values:
            return values | {"micro_batch": math.gcd(size, usual)}
        return values

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        size, part = self.batch_size, self.micro_batch  # type: ignore[attr-defined]
        if size % part:
            raise ValueError(
                f"{name_option('micro_batch')} {part}: does not divide the batch size, {size}; change one"
            )
        return self


class LogosSettings(_InBatches):
    """The settings of Logos' training (sections 5.1 to 5.3, appendix B.1). What the paper does not state is our choice.

    Attributes:
        stages: of the curriculum. The paper counts them in four ways; the default, the first and one more, is our choice.
        epochs: passes over a stage's questions; 10 in the paper.
        samples: responses to a question, G; 8 in the paper. 1 is the ablation without groups: an advantage is then
            taken over the whole batch, in place of PPO's value model.
        batch_size: responses a step. The paper's batch is 128, of questions or responses.
        micro_batch: responses in memory at a time, a divisor of `batch_size`; our choice.
        learning_rate: at its peak; our choice, since its exponent is lost in print.
        warm_up: share of the steps; our choice. A cosine brings the rate to 0.
        weight_decay: our choice.
        epsilon: of the clipping; our choice.
        kl: weight of the KL term; 0 in the paper, and table 13 varies it.
        filter: whether groups with equal rewards are dropped (section 5.3).
        refill: how often new questions are sampled for the places of dropped groups; the default, never, is our choice, since the paper says
            only that a question is discarded for that iteration.
        curriculum: whether questions are selected before a stage (section 5.2).
        lower: later stages keep questions whose mean accuracy is above it; our choice. None keeps those at 0, as the text.
        temperature, max_new_tokens: of the responses; our choice.
        instruction: is added to each question, in our words; the paper also describes the format in context.
        seed: our choice.
        save_steps: a checkpoint is written every so many steps.
        max_steps: of each stage, in place of the epochs; our choice.
    """

    stages: int = Field(default=2, ge=1, description="Stages of the curriculum.")
    epochs: int = Field(default=10, ge=1, description="Passes over a stage's questions.")
    samples: int = Field(default=8, ge=1, description="Responses to a question.")
    batch_size: Annotated[int, Option("--batch")] = Field(default=128, ge=1, description="Responses a step.")
    micro_batch: int = Field(default=8, ge=1, description="Responses in memory at a time.")
    learning_rate: float = Field(default=1e-6, ge=0, description="At its peak.")
    warm_up: float = Field(default=0.03, ge=0, le=1, description="Share of the steps before the peak.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decay of the weights.")
    epsilon: float = Field(default=EPSILON, ge=0, description="Range of the clipping.")
    kl: float = Field(default=0.0, ge=0, description="Weight of the KL term.")
    filter: bool = Field(
        default=True, description="Drop groups of responses with equal rewards, or keep them."
    )
    refill: int = Field(
        default=0, ge=0, description="Rounds that sample new questions for the places of dropped groups."
    )
    curriculum: bool = Field(default=True, description="Select questions before a stage, or take all.")
    lower: float | None = Field(
        default=None, description="Later stages keep questions with a mean accuracy above it."
    )
    temperature: float = Field(default=1.0, gt=0, description="Of the responses.")
    max_new_tokens: int = Field(default=1024, ge=1, description="Longest response.")
    instruction: str = Field(
        default=INSTRUCTION, description="What is added to each question; '' for nothing."
    )
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description=AskSettings.model_fields["seed"].description
    )
    save_steps: int = Field(default=50, ge=1, description="Steps between checkpoints.")
    max_steps: int | None = Field(
        default=None, ge=1, description="Steps of each stage, in place of --epochs."
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.batch_size % self.samples:
            raise ValueError(
                f"batch size {self.batch_size}: must be a multiple of the {self.samples} responses to a question"
            )
        if self.refill and not (self.filter and self.samples > 1):
            raise ValueError(
                "refill: without the filter of groups nothing is dropped, so nothing can be filled in"
            )
        return self


class GuesserSettings(_InBatches):
    """How the super-guesser is trained. The defaults are those of section 7.8 unless they are called our choice.

    Attributes:
        epochs: passes over the questions.
        learning_rate: of LoRA's A at the start; a cosine brings it to 0, without warm-up.
        ratio: LoRA+: the learning rate of B is so many times that of A.
        rank, alpha: of LoRA, on all linear layers but the unembedding, without dropout.
        batch_size: questions a step.
        micro_batch: questions in memory at a time; a divisor of `batch_size`.
        max_tokens: longer questions are cut off.
        validation: share of the questions for the validation loss. Questions about the same images stay together, which is our choice.
        explain: whether the target is the explanation and then the answer.
        weight_decay: our choice; the paper gives none.
        seed: of LoRA's first weights and the order of the questions; our choice.
    """

    epochs: int = Field(default=3, ge=1, description="Passes over the questions.")
    learning_rate: float = Field(default=5e-5, ge=0, description="Of LoRA's A, at the start.")
    ratio: float = Field(default=16.0, gt=0, description="LoRA+: the learning rate of B by that of A.")
    rank: int = Field(default=8, ge=1, description="Of LoRA.")
    alpha: int = Field(default=16, ge=1, description="Of LoRA.")
    batch_size: Annotated[int, Option("--batch")] = Field(default=256, ge=1, description="Questions a step.")
    micro_batch: int = Field(default=32, ge=1, description="Questions in memory at a time.")
    max_tokens: int = Field(default=2048, ge=1, description="Longer questions are cut off.")
    validation: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the questions for the validation loss."
    )
    explain: bool = Field(default=False, description="Learn metadata.explanation before the answer.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decay of the weights.")
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description=AskSettings.model_fields["seed"].description
    )


ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "no-filter": {"filter": False, "refill": 0},
    "no-curriculum": {"curriculum": False},
    "plain": {"filter": False, "refill": 0, "curriculum": False},
    "single-sample": {"samples": 1, "filter": False, "refill": 0, "curriculum": False},
    "kl-1e-2": {"kl": 1e-2},
    "kl-1e-3": {"kl": 1e-3},
    "kl-1e-4": {"kl": 1e-4},
}
"""What each ablation changes (tables 11 to 13)."""


def ablate(settings: LogosSettings, name: str) -> LogosSettings:
    """Return the settings of an ablation.

    Raises:
        InputError: the ablation is unknown.

    Example:
        >>> ablate(LogosSettings(), "no-filter").filter
        False
    """
    if name not in ABLATIONS:
        raise unknown_name("ablation", name, ABLATIONS)
    return settings.replace(**ABLATIONS[name])


def share_budget(settings: LogosSettings, questions: int, completions: int) -> LogosSettings:
    """Return settings under which a training takes so many responses in all, those of the curriculum among them.

    Args:
        questions: number of questions before the curriculum selects.
        completions: the budget.

    Raises:
        InputError: the budget is less than a step.

    Example:
        >>> settings = LogosSettings(stages=2, samples=8, batch_size=128)
        >>> share_budget(settings, questions=64, completions=4096).max_steps
        12
    """
    sampled = settings.samples * questions if settings.curriculum else 0
    steps = (completions // settings.stages - sampled) // settings.batch_size
    if steps < 1:
        raise InputError(
            f"completions {completions}: less than a step of {settings.batch_size} in each of {settings.stages} stages "
            f"beside {sampled} for the curriculum; give more"
        )
    return settings.replace(max_steps=steps)
