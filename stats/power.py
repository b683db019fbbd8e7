"""How many questions show a difference between two models, given how often they are right and how often they differ."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

LEVEL = 0.05  # two-sided
POWER = 0.8


class Needed(NamedTuple):
    """How many questions show a difference with 80 % power at the 5 % level, two-sided.

    Attributes:
        paired: both models answer the same questions.
        independent: each model answers so many questions of its own.
        disagreeing: share of the questions that exactly one of the two gets right, as `paired` assumes.
    """

    paired: int
    independent: int
    disagreeing: float


def questions_for(
    difference: float, accuracy: float, disagreeing: float | None = None, design: float = 1.0
) -> Needed:
    """Return how many questions show that a second model is right more often by a difference.

    The paired number is that of McNemar's test (Connor, 1987, Sample size for testing differences in proportions for the paired-sample
    design), the independent one that of two shares.

    Args:
        difference: between the shares of right answers.
        accuracy: of the first model.
        disagreeing: share of questions that exactly one of the two gets right; None for that of answers that are
            independent, which is the most that can be expected.
        design: how many times as many questions are needed since some are about the same images.

    Example:
        >>> questions_for(0.05, 0.7)
        Needed(paired=1254, independent=1248, disagreeing=0.4)
        >>> questions_for(0.05, 0.7, disagreeing=0.1).paired
        312
    """
    other = accuracy + difference
    if disagreeing is None:
        disagreeing = accuracy * (1 - other) + other * (1 - accuracy)
    first, second = NormalDist().inv_cdf(1 - LEVEL / 2), NormalDist().inv_cdf(POWER)
    spread = math.sqrt(max(disagreeing - difference**2, 0.0))
    paired = (first * math.sqrt(disagreeing) + second * spread) ** 2 / difference**2
    variance = accuracy * (1 - accuracy) + other * (1 - other)
    independent = (first + second) ** 2 * variance / difference**2
    return Needed(math.ceil(design * paired), math.ceil(design * independent), round(disagreeing, 6))


def design_effect(value: float, low: float, high: float, n: int) -> float:
    """Return how many times as many questions an interval needs as it would if each were about images of its own; 1 at least.

    Example:
        >>> round(design_effect(0.5, 0.36, 0.64, 98), 1)
        2.0
    """
    error = (high - low) / 2 / NormalDist().inv_cdf(1 - LEVEL / 2)
    alone = value * (1 - value) / n
    return max(1.0, float(error**2 / alone)) if alone > 0 else 1.0
