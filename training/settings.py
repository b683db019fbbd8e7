"""How Logos is trained, and what its ablations change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmprobe.errors import InputError, unknown_name
from mmprobe.training.logos import EPSILON

INSTRUCTION = (
    "Think first, then answer. Write <think>your reasoning</think><answer>your answer</answer> and nothing else. "
    "For example: <think>There are two cups on the table and one on the chair.</think><answer>3</answer>"
)


@dataclass(frozen=True)
class LogosSettings:
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

    stages: int = 2
    epochs: int = 10
    samples: int = 8
    batch_size: int = 128
    micro_batch: int = 8
    learning_rate: float = 1e-6
    warm_up: float = 0.03
    weight_decay: float = 0.0
    epsilon: float = EPSILON
    kl: float = 0.0
    filter: bool = True
    refill: int = 0
    curriculum: bool = True
    lower: float | None = None
    temperature: float = 1.0
    max_new_tokens: int = 1024
    instruction: str = INSTRUCTION
    seed: int = 0
    save_steps: int = 50
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size % self.micro_batch or self.batch_size % self.samples:
            raise InputError(
                f"batch size {self.batch_size}: must be a multiple of the micro batch {self.micro_batch} and of the "
                f"{self.samples} responses to a question"
            )
        if self.stages < 1 or self.samples < 1 or self.epochs < 1:
            raise InputError("stages, epochs and samples must each be 1 or more")
        if self.refill and not (self.filter and self.samples > 1):
            raise InputError(
                "refill: without the filter of groups nothing is dropped, so nothing can be filled in"
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
    return replace(settings, **ABLATIONS[name])


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
    return replace(settings, max_steps=steps)
