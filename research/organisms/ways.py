"""What a way to plant is: how it changes a model, what its check measures, and what a diagnosis should name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmprobe.models import Model

DEVELOPMENT, OTHER = "development", "other ways"
CHEAP = ("weight edit", "noisy", "rounded", "tempered")  # kinds that take seconds, so they come first
Make = Callable[[Any, Model, np.random.Generator], None]
WayCheck = Callable[[Model, int], Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class PlantingWay:
    """One way to plant.

    Attributes:
        causes: what a diagnosis should name; none for a control.
        kind: of a control, else of what was planted.
        about: one sentence for the card.
        make: changes the model in place. It gets the transformers model, the loaded model and random numbers.
        check: measures by name, each with its bound; None to measure nothing.
        split: `development` for those that rules may be chosen on.
        seeds: how often it is planted.
        accepts: verdicts that are right, too.
        also: verdicts that are right, too, where a check passes. It is not part of the manipulation check.
        fixed: whether the model is the same for every seed, so that it is planted once.
    """

    causes: tuple[str, ...]
    kind: str
    about: str
    make: Make
    check: WayCheck | None
    split: str = OTHER
    seeds: int = 1
    accepts: tuple[str, ...] = ()
    also: tuple[tuple[str, WayCheck], ...] = ()
    fixed: bool = False
