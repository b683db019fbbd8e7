"""What answers lose when the updates of attention or of the FFNs are replaced by their mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.probes.components.components import change_component
from mmprobe.probes.teacher_forcing import float32_logits, force_answer
from mmprobe.samples import Sample

KINDS = ("attention", "ffn")
Means = dict[tuple[str, int], Tensor]


def lose_updates(
    model: Model, answers: Sequence[tuple[Sample, Sequence[int]]], layers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return what each answer loses with updates replaced by their mean, nat a token [answer], by kind.

    Mean ablation (Wang et al., 2023): at the queries of the answer's steps, the update of each layer is
    replaced by its mean over the queries of all answers. All layers are replaced at once, attention and FFNs
    apart. It takes three forward passes an answer.

    Args:
        answers: samples with the token ids of their answers.
        layers: layers to change.

    Example:
        >>> lose_updates(model, [(trace.sample, trace.steps["id"].values) for trace in run], [6, 7])["ffn"]
        ... # doctest: +SKIP
        array([0.31, 0.44])
    """
    sums: Means = {}
    own, losses = [], {kind: np.empty(len(answers)) for kind in KINDS}
    with tqdm(total=2 * len(answers), desc="updates", unit="answer", disable=None) as progress:
        for sample, ids in answers:
            own.append(
                _read(
                    model,
                    sample,
                    ids,
                    {(k, n): _add_sum(sums, (k, n), len(ids)) for k in KINDS for n in layers},
                )
            )
            progress.update()
        count = sum(len(ids) for _, ids in answers)
        for index, (sample, ids) in enumerate(answers):
            for kind in KINDS:
                changes = {
                    key: _put_mean(total / count, len(ids)) for key, total in sums.items() if key[0] == kind
                }
                losses[kind][index] = own[index] - _read(model, sample, ids, changes)
            progress.update()
    return losses


def _read(model: Model, sample: Sample, ids: Sequence[int], changes: dict[tuple[str, int], Change]) -> float:
    """Return the mean log-probability of an answer's tokens while components are changed."""
    forcing = force_answer(model, sample, ids)
    with ExitStack() as stack, float32_logits(model), torch.no_grad():
        for (kind, layer), change in changes.items():
            stack.enter_context(change_component(model, kind, layer, change))
        return float(forcing.logprobs().mean())


def _add_sum(sums: Means, key: tuple[str, int], steps: int) -> Change:
    """Return a function that adds a component at the answer's queries to its sum, and leaves it as it is."""

    def add(value: Tensor) -> Tensor:
        total = value[0, -steps - 1 : -1].double().sum(0)
        sums[key] = sums[key] + total if key in sums else total
        return value

    return add


def _put_mean(mean: Tensor, steps: int) -> Change:
    """Return a function that replaces a component at the answer's queries by its mean."""

    def put(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0, -steps - 1 : -1] = mean.to(value.dtype)
        return changed

    return put
