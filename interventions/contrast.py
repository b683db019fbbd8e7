"""Combine the logits of the answer with those of a contrast path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmprobe.interventions.base import MethodState
from mmprobe.interventions.contrast_path import ContrastPath

Combine = Callable[[Tensor, Tensor], Tensor]
"""Returns new logits from those of the answer and those of the contrast path; all are [batch, vocabulary]."""


class ContrastState(MethodState):
    """Combines the answer's logits with those of a contrast path at each step.

    Args:
        create_path: returns the contrast path; called when the logits of the first token are known.
        combine: the method's equation.
    """

    def __init__(self, create_path: Callable[[], ContrastPath], combine: Combine):
        self.create_path, self.combine = create_path, combine
        self.changed: list[Tensor] = []  # bool [batch] for each step: the most likely token became another

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        if self.contrast_path is None:
            self.contrast_path = self.create_path()
        combined = self.combine(logits, self.contrast_path.read_answer(generated))
        self.changed.append(combined.argmax(-1) != logits.argmax(-1))
        return combined

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return `changed`: the steps at which the most likely token became another."""
        return {"changed": list_changed_steps(self.changed[:n_steps], row)}


def list_changed_steps(changed: list[Tensor], row: int) -> list[int]:
    """Return the steps at which one row is true.

    Args:
        changed: bool [batch] for each step.
        row: row of the batch.
    """
    return torch.stack(changed)[:, row].nonzero()[:, 0].tolist() if changed else []


def mask_implausible(combined: Tensor, main: Tensor, beta: float) -> Tensor:
    """Return the combined logits with -inf for tokens that the model itself finds implausible.

    A token is implausible if its own logit is below max(main) + log(beta), so if its probability is below
    beta times the largest one.

    Args:
        combined: logits of answer and contrast path combined, [batch, vocabulary].
        main: logits of the answer, [batch, vocabulary].
        beta: 0 to 1; 0 masks nothing.

    Example:
        >>> import torch
        >>> mask_implausible(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), 0.1)
        tensor([1., -inf])
    """
    if beta == 0:
        return combined
    threshold = main.max(-1, keepdim=True).values + math.log(beta)
    return combined.masked_fill(main < threshold, float("-inf"))
