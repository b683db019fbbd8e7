"""Several pairs of a clean and a corrupt prompt, read with the clean ones' answers in the same passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.models import Model
from mmprobe.models.shared_prefix import why_not_shared
from mmprobe.probes.components.component_pair import check_lengths, find_all_tokens
from mmprobe.probes.components.decoder_pass import DecoderPass, first_difference
from mmprobe.probes.components.metrics import Metric, MetricFunction, make_metric
from mmprobe.probes.teacher_forcing import Answer, force_answers
from mmprobe.samples import Sample

Pair = tuple[Sample, Sample, Answer]
"""A clean and a corrupt sample, and the clean one's answer; None as in `patch_components`."""


class PairBatch(NamedTuple):
    """Clean and corrupt prompts, a row for each pair, both with the clean sample's answer.

    Attributes:
        clean, corrupt: forward passes over the rows of each.
        metrics: for each row, a function of the logits [step, vocabulary] of its own steps.
        metric_name: their name.
        before, after: float64 [row], their values for the clean and for the corrupt prompts.
        unchanged: logits [row, step, vocabulary] of the clean prompts as later passes compute them, to the last
            bit.
    """

    clean: DecoderPass
    corrupt: DecoderPass
    metrics: list[MetricFunction]
    metric_name: str
    before: np.ndarray
    after: np.ndarray
    unchanged: Tensor

    def measure(self, logits: Tensor) -> Tensor:
        """Return the metric of each row, [row], of logits [row, step, vocabulary]."""
        rows = zip(self.metrics, self.clean.rows, logits, strict=True)
        return torch.stack([metric(row[: len(forcing.ids)]) for metric, forcing, row in rows])

    def sum(self, logits: Tensor) -> Tensor:
        """Return the sum of the rows' metrics; its gradient for a row is that of the row's own metric."""
        return self.measure(logits).sum()

    def lose(self, logits: Tensor) -> np.ndarray:
        """Return the metrics of the clean prompts minus those of other logits, [row]."""
        return self.before - self.measure(logits).double().cpu().numpy()

    def lose_by_step(self, logits: Tensor) -> np.ndarray:
        """Return what the log-probability of each token loses, [row, step]; NaN behind an answer's end."""
        out = np.full(logits.shape[:2], np.nan)
        for lost, forcing, own, other in zip(out, self.clean.rows, self.unchanged, logits, strict=True):
            steps = len(forcing.ids)
            before, after = (_logprobs(each[:steps], forcing.ids) for each in (own, other))
            lost[:steps] = (before - after).cpu().numpy()
        return out

    def logprobs(self) -> list[np.ndarray]:
        """Return the log-probability of each token of each clean answer, by row."""
        rows = zip(self.clean.rows, self.unchanged, strict=True)
        return [_logprobs(own[: len(row.ids)], row.ids).cpu().numpy() for row, own in rows]


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]


def read_pairs(model: Model, pairs: Sequence[Pair], metric: Metric, max_new_tokens: int) -> PairBatch:
    """Read clean and corrupt prompts with the clean samples' answers, two forward passes for all.

    Raises:
        InputError: the prompts of a pair differ in length or in the grids of their images.
    """
    answers = [clean.answer if answer is None else answer for clean, _, answer in pairs]
    own = force_answers(model, [clean for clean, *_ in pairs], answers, max_new_tokens)
    others = force_answers(model, [corrupt for _, corrupt, _ in pairs], [row.ids.tolist() for row in own])
    for row, other, (clean, corrupt, _) in zip(own, others, pairs, strict=True):
        check_lengths(row, other, clean, corrupt)
    passes = DecoderPass(*own), DecoderPass(*others)
    return _measure(*passes, metric, passes[0].first, passes[1].first)


def _measure(
    clean: DecoderPass, corrupt: DecoderPass, metric: Metric, unchanged: Tensor, other: Tensor
) -> PairBatch:
    """Return the batch with metrics whose reference are the unchanged logits."""
    rows = zip(clean.rows, unchanged, strict=True)
    made = [make_metric(metric, forcing, logits[: len(forcing.ids)]) for forcing, logits in rows]
    nothing = np.zeros(len(made))
    batch = PairBatch(
        clean, corrupt, [function for function, _ in made], made[0][1], nothing, nothing, unchanged
    )
    before, after = (batch.measure(logits).double().cpu().numpy() for logits in (unchanged, other))
    return batch._replace(before=before, after=after)


def find_places(batch: PairBatch, pairs: Sequence[Pair], names: Sequence[str] | None) -> Tensor:
    """Return a mask bool [row, position] of the named tokens; None means all of prompt and answer."""
    inputs = batch.clean.forcing.inputs["input_ids"]
    mask = torch.zeros(inputs.shape, dtype=torch.bool, device=inputs.device)
    for row, forcing, (clean, *_) in zip(mask, batch.clean.rows, pairs, strict=True):
        row[find_all_tokens(forcing, clean, names) + forcing.prompt.padding] = True
    return mask


def begin_at_change(
    batch: PairBatch, metric: Metric, places: Sequence[Tensor], replacement: str = "corrupt"
) -> tuple[PairBatch, list[Tensor]]:
    """Let the passes of a batch begin at the first token that a patch can change; return the batch and the places.

    Tokens before the first one in which the prompts of a pair differ have the same components in both. Their
    keys and values are read once and reused, if the family's can be (`why_not_shared`). It takes three more
    passes over a part of the tokens, so it is left alone where a quarter of the tokens or fewer would be saved;
    our choice.

    Args:
        metric: as in `read_pairs`; it is measured anew, so that equal prompts have equal metrics to the last bit.
        places: masks [row, position] of the tokens that are patched.
        replacement: `corrupt`; with another one a patch changes also what is equal in both prompts.

    Returns:
        The batch, and each mask without the tokens before the start.
    """
    clean, corrupt = batch.clean, batch.corrupt
    if why_not_shared(clean.forcing.model) is not None:
        return batch, list(places)
    first = int(torch.stack(list(places)).flatten(0, 1).any(0).nonzero()[0])
    differs = first_difference(clean.inputs, corrupt.inputs)
    if replacement == "corrupt":
        first = max(first, differs)
    if first <= places[0].shape[1] / 4:
        return batch, list(places)
    start = clean.begin_at(first)
    corrupt.begin_at(start, clean.keys if start <= differs else None)
    began = _measure(clean, corrupt, metric, clean.batch_logits(), corrupt.batch_logits())
    return began, [place[:, start:] for place in places]
