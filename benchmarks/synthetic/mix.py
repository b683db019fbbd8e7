"""The mix of SPD-Faith Bench (arXiv:2602.07833, appendix A.2): difficulties and numbers of differences.

Two thirds of its pairs have one difference, and the others have 2 to 5. 10 % of the former are easy, 50 % medium
and 40 % hard; that this holds for the latter is ours. The paper gives the shares of 2 and 3 differences; that the
others are equal is ours.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mmprobe.benchmarks.synthetic.scene import Difficulty

Mix = Literal["even", "paper"]
LEVELS: dict[Difficulty, float] = {"easy": 0.1, "medium": 0.5, "hard": 0.4}
COUNTS = {1: 2 / 3, 2: 0.187 / 3, 3: 0.275 / 3, 4: 0.269 / 3, 5: 0.269 / 3}


def draw_count(rng: np.random.Generator, most: int) -> int:
    """Return a number of differences. Pairs with more than `most` are left out of the mix."""
    counts = [count for count in COUNTS if count <= most]
    single, others = COUNTS[1], np.array([COUNTS[count] for count in counts[1:]])
    shares = [single, *((1 - single) * others / others.sum())]
    return int(rng.choice(counts, p=shares))


def draw_level(rng: np.random.Generator) -> Difficulty:
    """Return a difficulty."""
    return list(LEVELS)[rng.choice(len(LEVELS), p=list(LEVELS.values()))]


def count_levels(n: int) -> dict[Difficulty, int]:
    """Return how many of n pairs have each difficulty.

    Example:
        >>> count_levels(25)
        {'easy': 2, 'medium': 13, 'hard': 10}
    """
    easy, hard = round(LEVELS["easy"] * n), round(LEVELS["hard"] * n)
    return {"easy": easy, "medium": n - easy - hard, "hard": hard}
