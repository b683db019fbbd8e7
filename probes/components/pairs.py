"""Pairs of a clean and a corrupt prompt, read with the same answer in the same passes.

A metric is one number for the logits of an answer. Pairs are compared at tokens, which have names: groups, images,
regions, and steps of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model, Prompt
from mmprobe.models.shared_prefix import why_not_shared
from mmprobe.probes.components.decoder_pass import DecoderPass, first_difference
from mmprobe.probes.teacher_forcing import (
    GROUPS,
    GivenAnswer,
    TeacherForcing,
    find_positions,
    force_answer,
    force_answers,
)
from mmprobe.samples import Region, Sample

LogitMetric = str | tuple[str, str] | Callable[[Tensor], Tensor]
MetricFunction = Callable[[Tensor], Tensor]


def make_metric(
    metric: LogitMetric, forcing: TeacherForcing, clean_logits: Tensor
) -> tuple[MetricFunction, str]:
    """Return a function from logits [step, vocabulary] to one number, and its name.

    - `logprob`: log-probability of the whole answer, in nat
    - `kl`: minus the divergence of the next-token distributions from the clean ones, sum over steps, in nat.
      It is 0 for the clean logits, and so is its gradient
    - two words, such as `("Yes", "No")`: logit of the first at the first step, minus that of the second
    - any function of the logits that returns one number

    Args:
        clean_logits: of the prompt as it is, for `kl`.

    Raises:
        InputError: the metric is unknown, or a word does not begin with one token that the other lacks.

    Example:
        >>> measure, name = make_metric("logprob", forcing, logits)          # doctest: +SKIP
        >>> measure(logits)                                                  # doctest: +SKIP
        tensor(-0.0312)
    """
    ids = forcing.ids
    if metric == "logprob":
        return lambda logits: logits.log_softmax(-1).gather(1, ids[:, None]).sum(), "logprob"
    if metric == "kl":
        clean = clean_logits.log_softmax(-1)
        return lambda logits: (clean.exp() * (logits.log_softmax(-1) - clean)).sum(), "kl"
    if isinstance(metric, tuple) and len(metric) == 2:
        tokenizer = forcing.model.tokenizer
        first, second = (tokenizer(word, add_special_tokens=False)["input_ids"][:1] for word in metric)
        if not first or first == second:
            raise InputError(f"metric {metric!r}: the two words must begin with different tokens")
        return lambda logits: logits[0, first[0]] - logits[0, second[0]], " - ".join(metric)
    if not callable(metric):
        raise InputError(f"metric {metric!r}: choose logprob, kl, two words, or a function of the logits")

    def measure(logits: Tensor) -> Tensor:
        value = torch.as_tensor(metric(logits))
        if value.numel() != 1:
            raise InputError(f"metric: must return one number, not {tuple(value.shape)}")
        return value.reshape(())

    return measure, getattr(metric, "__name__", "function")


_NUMBERED = re.compile(r"(image|region|step) (\d+)")


def find_tokens(forcing: TeacherForcing, sample: Sample, name: str) -> np.ndarray:
    """Return the positions of the tokens of a name, int64 [token], sorted.

    - `template`, `system`, `visual`, `user`: the tokens of a group of the prompt
    - `generated`: the answer's tokens
    - `image K`: the visual tokens of an image
    - `region K`: the visual tokens that a region of the sample touches
    - `step S`: the query of a step of the answer, the position that predicts its token

    Raises:
        InputError: the name is unknown, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_tokens(forcing, sample, "step 0")                           # doctest: +SKIP
        array([61])
    """
    prompt, steps = forcing.prompt, len(forcing.ids)
    if name in GROUPS:
        return find_positions(forcing.model, prompt, [name])
    if name == "generated":
        return np.arange(len(prompt.ids), len(prompt.ids) + steps)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        raise InputError(
            f"tokens {name!r}: choose {', '.join(GROUPS)}, generated, image K, region K or step S"
        )
    kind, number = match[1], int(match[2])
    count = {"image": len(sample.images), "region": len(sample.regions), "step": steps}[kind]
    if number >= count:
        raise InputError(f"tokens {name!r}: sample {sample.id} has {count} {kind}s, counted from 0")
    if kind == "step":
        return np.array([len(prompt.ids) - 1 + number])
    if forcing.model.has_cross_attention:
        raise NotApplicable(
            f"{forcing.model.family.name} reads images by cross-attention and has no visual tokens"
        )
    if kind == "image":
        views = [view for view, image in enumerate(prompt.sources) if image == number]
        return np.flatnonzero(np.isin(prompt.image, views))
    touched = prompt.visual_positions[touched_cells(prompt, sample.regions[number])]
    if not len(touched):
        raise NotApplicable(f"sample {sample.id}: no view shows region {number}")
    return touched


def touched_cells(prompt: Prompt, region: Region) -> np.ndarray:
    """Return a mask bool [visual] of the visual tokens whose cells a region touches, in the order of the views.

    Example:
        >>> touched_cells(model.prompt(sample), sample.regions[0]).sum()     # doctest: +SKIP
        1
    """
    x, y, width, height = region.box
    masks = []
    for view, image in zip(prompt.views, prompt.sources, strict=True):
        (rows, columns), (left, top, view_width, view_height) = view.grid, view.box
        row_edges = top + view_height * np.arange(rows + 1) / rows
        column_edges = left + view_width * np.arange(columns + 1) / columns
        down = (row_edges[1:] > y + 1e-6) & (row_edges[:-1] < y + height - 1e-6)
        across = (column_edges[1:] > x + 1e-6) & (column_edges[:-1] < x + width - 1e-6)
        masks.append((down[:, None] & across & (image == region.image)).ravel())
    return np.concatenate(masks) if masks else np.zeros(0, bool)


class ComponentPair(NamedTuple):
    """A clean and a corrupt prompt with the same answer.

    Attributes:
        clean, corrupt: forward passes over each.
        metric: a function of the logits [step, vocabulary].
        metric_name: its name.
        before, after: its value for the clean and for the corrupt prompt.
    """

    clean: DecoderPass
    corrupt: DecoderPass
    metric: MetricFunction
    metric_name: str
    before: float
    after: float


def read_pair(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    metric: LogitMetric,
    answer: GivenAnswer,
    max_new_tokens: int,
) -> ComponentPair:
    """Read the clean and the corrupt prompt with the clean sample's answer.

    Raises:
        InputError: the prompts differ in length or in the grids of their images.
    """
    forcing = force_answer(model, clean, clean.answer if answer is None else answer, max_new_tokens)
    other = force_answer(model, corrupt, forcing.ids.tolist())
    check_lengths(forcing, other, clean, corrupt)
    passes = DecoderPass(forcing), DecoderPass(other)
    function, name = make_metric(metric, forcing, passes[0].first_logits)
    before, after = (float(function(each.first_logits)) for each in passes)
    return ComponentPair(*passes, function, name, before, after)


def check_lengths(forcing: TeacherForcing, other: TeacherForcing, sample: Sample, corrupt: Sample) -> None:
    """Raise InputError if two prompts differ in length or in the grids of their images."""
    lengths = len(forcing.prompt.ids), len(other.prompt.ids)
    if forcing.prompt.grids != other.prompt.grids or lengths[0] != lengths[1]:
        raise InputError(
            f"corrupt {corrupt.id}: its prompt has {lengths[1]} tokens and that of {sample.id} has {lengths[0]}, or "
            "their images have other grids; choose a sample with as many images of the same size, and texts of the "
            "same length"
        )


def find_all_tokens(forcing: TeacherForcing, sample: Sample, names: Sequence[str] | None) -> Tensor:
    """Return the positions of all named tokens, sorted; None means all of prompt and answer."""
    if names is None:
        return torch.arange(len(forcing.prompt.ids) + len(forcing.ids), device=forcing.model.device)
    positions = np.unique(np.concatenate([find_tokens(forcing, sample, name) for name in names]))
    return torch.from_numpy(positions).to(forcing.model.device)


AnswerPair = tuple[Sample, Sample, GivenAnswer]
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
        """Return what the log-probability of each token loses, [row, step]; NaN past an answer's end."""
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


def read_pairs(
    model: Model, pairs: Sequence[AnswerPair], metric: LogitMetric, max_new_tokens: int
) -> PairBatch:
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
    clean: DecoderPass, corrupt: DecoderPass, metric: LogitMetric, unchanged: Tensor, other: Tensor
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


def find_places(batch: PairBatch, pairs: Sequence[AnswerPair], names: Sequence[str] | None) -> Tensor:
    """Return a mask bool [row, position] of the named tokens; None means all of prompt and answer."""
    inputs = batch.clean.forcing.inputs["input_ids"]
    mask = torch.zeros(inputs.shape, dtype=torch.bool, device=inputs.device)
    for row, forcing, (clean, *_) in zip(mask, batch.clean.rows, pairs, strict=True):
        row[find_all_tokens(forcing, clean, names) + forcing.prompt.padding] = True
    return mask


def skip_unchanged_prefix(
    batch: PairBatch, metric: LogitMetric, places: Sequence[Tensor], replacement: str = "corrupt"
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
