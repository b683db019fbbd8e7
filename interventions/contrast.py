"""What comes of contrasting an answer's logits with those of a second path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmprobe.interventions.base import MethodState
from mmprobe.interventions.contrast_path import SecondPath

Combine = Callable[[Tensor, Tensor], Tensor]
"""New logits from those of the answer and those of the second path, each [batch, vocabulary]."""


class Contrast(MethodState):
    """Combines the answer's logits with those of a second path.

    Args:
        second: makes the path when the first logits are there.
        combine: the method's equation.
    """

    def __init__(self, second: Callable[[], SecondPath], combine: Combine):
        self.second, self.combine = second, combine
        self.changed: list[Tensor] = []  # each bool [batch]

    def contrasts(self) -> bool:
        return True

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        if self.path is None:
            self.path = self.second()
        combined = self.combine(scores, self.path.follow(generated))
        self.changed.append(combined.argmax(-1) != scores.argmax(-1))
        return combined

    def report(self, row: int, steps: int) -> dict[str, Any]:
        """`changed`: the steps whose most likely token became another."""
        return {"changed": changed_steps(self.changed[:steps], row)}


def changed_steps(changed: list[Tensor], row: int) -> list[int]:
    """Steps, of bools [batch] each, at which a row's is true."""
    return torch.stack(changed)[:, row].nonzero()[:, 0].tolist() if changed else []


def plausible(combined: Tensor, main: Tensor, beta: float) -> Tensor:
    """Combined logits, -inf where the answer's own logit is below log(beta) + its largest; 0 leaves all.

    Example:
        >>> import torch
        >>> plausible(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), 0.1)
        tensor([1., -inf])
    """
    if beta == 0:
        return combined
    least = main.max(-1, keepdim=True).values + math.log(beta)
    return combined.masked_fill(main < least, float("-inf"))
