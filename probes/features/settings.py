"""How dictionaries are trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmprobe.settings import LARGEST_SEED, AskSettings, Option, Record


class DictionarySettings(Record):
    """How a dictionary is trained. All defaults are our choice.

    Attributes:
        features: of the dictionary; None for eight times the size of a state.
        active: features of a token.
        steps: of the training.
        batch_size: tokens a step.
        learning_rate: of Adam; it falls to 0 over the last fifth.
        dead_after: steps without firing after which a feature is dead, and learns what the others leave.
        held_out: share of the sets of images that the dictionary is measured on.
        seed: of the first directions, the tokens of each step, and what is held out.
    """

    features: int | None = Field(
        default=None, ge=2, description="Of the dictionary; default: eight times the size of a state."
    )
    active: int = Field(default=32, ge=1, description="Features of a token.")
    steps: int = Field(default=4000, ge=1, description="Of the training.")
    batch_size: Annotated[int, Option("--batch")] = Field(default=512, ge=1, description="Tokens a step.")
    learning_rate: float = Field(default=1e-3, gt=0, description="It falls to 0 over the last fifth.")
    dead_after: int = Field(default=100, ge=1, description="Steps after which a silent feature is dead.")
    held_out: float = Field(
        default=0.2, gt=0, lt=1, description="Share of the sets of images to measure it on."
    )
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description=AskSettings.model_fields["seed"].description
    )
