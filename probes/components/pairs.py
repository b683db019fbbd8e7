"""Pairs of a clean and a corrupt prompt, read with the same answer in the same passes.

A metric is one number for the logits of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.reading import Reading, Row, first_difference, float32_logits, why_not_shared
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, read_answers
from mmprobe.probes.tokens import find_all_tokens
from mmprobe.samples import Sample

LogitMetric = str | tuple[str, str] | Callable[[Tensor], Tensor]
MetricFunction = Callable[[Tensor], Tensor]
AnswerPair = tuple[Sample, Sample, AnswerInput]
"""A clean and a corrupt sample, and the clean one's answer; None for its true one, or else the model's own."""


def _make_metric(metric: LogitMetric, row: Row, clean_logits: Tensor) -> tuple[MetricFunction, str]:
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
        >>> measure, name = _make_metric("logprob", row, logits)          # doctest: +SKIP
        >>> measure(logits)                                                  # doctest: +SKIP
        tensor(-0.0312)
    """
    ids = row.ids
    if metric == "logprob":
        return lambda logits: logits.log_softmax(-1).gather(1, ids[:, None]).sum(), "logprob"
    if metric == "kl":
        clean = clean_logits.log_softmax(-1)
        return lambda logits: (clean.exp() * (logits.log_softmax(-1) - clean)).sum(), "kl"
    if isinstance(metric, tuple) and len(metric) == 2:
        tokenizer = row.model.tokenizer
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


class PairReading(NamedTuple):
    """Readings of clean and of corrupt prompts, a row for each pair, both with the clean sample's answer.

    Attributes:
        pairs: the samples of each row, and the answer that was given.
        clean, corrupt: the reading of each.
        metric: what is measured.
        metrics: for each row, a function of the logits [step, vocabulary] of its own steps.
        metric_name: their name.
        before, after: float64 [row], their values for the clean and for the corrupt prompts.
    """

    pairs: Sequence[AnswerPair]
    clean: Reading
    corrupt: Reading
    metric: LogitMetric
    metrics: list[MetricFunction]
    metric_name: str
    before: np.ndarray
    after: np.ndarray

    @property
    def model(self) -> Model:
        """The model that reads both."""
        return self.clean.model

    @property
    def passes(self) -> int:
        """Number of forward passes so far."""
        return self.clean.count + self.corrupt.count

    def repeat(self, times: int) -> PairReading:
        """Return readings of the same pairs so many times over, which can be changed in as many ways in one pass.

        The clean prompts are measured anew, in a batch of this shape: what changes nothing then loses exactly 0.
        """
        clean, corrupt = self.clean.repeat(times), self.corrupt.repeat(times)
        copies = _make_metrics([*self.pairs] * times, clean, corrupt, self.metric)
        before = copies.measure(clean.unchanged).double().cpu().numpy()
        return copies._replace(before=before, after=np.tile(self.after, times))

    def measure(self, logits: Tensor) -> Tensor:
        """Return the metric of each row, [row], of logits [row, step, vocabulary]."""
        rows = zip(self.metrics, self.clean.rows, logits, strict=True)
        return torch.stack([metric(each[: len(row.ids)]) for metric, row, each in rows])

    def sum(self, logits: Tensor) -> Tensor:
        """Return the sum of the rows' metrics; its gradient for a row is that of the row's own metric."""
        return self.measure(logits).sum()

    def lose(self, logits: Tensor) -> np.ndarray:
        """Return the metrics of the clean prompts minus those of other logits, [row]."""
        return self.before - self.measure(logits).double().cpu().numpy()

    def lose_by_step(self, logits: Tensor) -> np.ndarray:
        """Return what the log-probability of each token loses, [row, step]; NaN past an answer's end."""
        out = np.full(logits.shape[:2], np.nan)
        rows = zip(out, self.clean.rows, self.clean.unchanged, logits, strict=True)
        for lost, row, own, other in rows:
            steps = len(row.ids)
            before, after = (own_logprobs(each[:steps], row.ids) for each in (own, other))
            lost[:steps] = (before - after).cpu().numpy()
        return out

    def logprobs(self) -> list[np.ndarray]:
        """Return the log-probability of each token of each clean answer, by row."""
        rows = zip(self.clean.rows, self.clean.unchanged, strict=True)
        return [own_logprobs(own[: len(row.ids)], row.ids).cpu().numpy() for row, own in rows]


def own_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability of each token [step] of an answer, given logits [step, vocabulary]."""
    return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]


def read_pair(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    metric: LogitMetric = "logprob",
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> PairReading:
    """Read a clean and a corrupt prompt with the clean sample's answer. The other arguments are those of `patch_components`.

    Raises:
        InputError: the prompts differ in length or in the grids of their images.

    Example:
        >>> pair = read_pair(model, samples[0], samples[9])                  # doctest: +SKIP
        >>> pair.before - pair.after                                         # doctest: +SKIP
        array([4.71])
    """
    return read_pairs(model, [(clean, corrupt, answer)], metric, max_new_tokens)


def read_pairs(
    model: Model,
    pairs: Sequence[AnswerPair],
    metric: LogitMetric = "logprob",
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> PairReading:
    """Read clean and corrupt prompts with the clean samples' answers, two forward passes for all.

    Raises:
        InputError: the prompts of a pair differ in length or in the grids of their images.
    """
    answers = [clean.answer if answer is None else answer for clean, _, answer in pairs]
    own = read_answers(model, [clean for clean, *_ in pairs], answers, max_new_tokens)
    others = read_answers(model, [corrupt for _, corrupt, _ in pairs], [row.ids.tolist() for row in own.rows])
    for row, other, (clean, corrupt, _) in zip(own.rows, others.rows, pairs, strict=True):
        check_lengths(row, other, clean, corrupt)
    with torch.no_grad(), float32_logits(model):
        return _measure(pairs, own, others, metric)


def _make_metrics(
    pairs: Sequence[AnswerPair], clean: Reading, corrupt: Reading, metric: LogitMetric
) -> PairReading:
    """Return the pairs with metrics whose reference are the logits of what is not changed, not measured yet."""
    rows = zip(clean.rows, clean.unchanged, strict=True)
    made = [_make_metric(metric, row, logits[: len(row.ids)]) for row, logits in rows]
    metrics, nothing = [function for function, _ in made], np.zeros(len(made))
    return PairReading(pairs, clean, corrupt, metric, metrics, made[0][1], nothing, nothing)


def _measure(
    pairs: Sequence[AnswerPair], clean: Reading, corrupt: Reading, metric: LogitMetric
) -> PairReading:
    """Return the pairs with their metrics for the clean and for the corrupt prompts."""
    out = _make_metrics(pairs, clean, corrupt, metric)
    before, after = (out.measure(reading.unchanged).double().cpu().numpy() for reading in (clean, corrupt))
    return out._replace(before=before, after=after)


def check_lengths(row: Row, other: Row, sample: Sample, corrupt: Sample) -> None:
    """Raise InputError if two prompts differ in length or in the grids of their images."""
    lengths = len(row.prompt.ids), len(other.prompt.ids)
    if row.prompt.grids != other.prompt.grids or lengths[0] != lengths[1]:
        raise InputError(
            f"corrupt {corrupt.id}: its prompt has {lengths[1]} tokens and that of {sample.id} has {lengths[0]}, or "
            "their images have other grids; choose a sample with as many images of the same size, and texts of the "
            "same length"
        )


def find_places(pairs: PairReading, names: Sequence[str] | None) -> Tensor:
    """Return a mask bool [row, position] of the named tokens; None means all of prompt and answer."""
    ids = pairs.clean.inputs["input_ids"]
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for places, row, (clean, *_) in zip(mask, pairs.clean.rows, pairs.pairs, strict=True):
        places[find_all_tokens(row, clean, names) + row.prompt.padding] = True
    return mask


def skip_unchanged_prefix(
    pairs: PairReading, places: Sequence[Tensor], replacement: str = "corrupt"
) -> tuple[PairReading, list[Tensor]]:
    """Let the passes of pairs begin at the first token that a patch can change; return the pairs and the places.

    Tokens before the first one in which the prompts of a pair differ have the same components in both. Their
    keys and values are read once and reused, if the family's can be (`why_not_shared`). It takes three more
    passes over a part of the tokens, so it is left alone where a quarter of the tokens or fewer would be saved;
    our choice. The metric is measured anew, so that equal prompts have equal metrics to the last bit.

    Args:
        places: masks [row, position] of the tokens that are patched.
        replacement: `corrupt`; with another one a patch changes also what is equal in both prompts.

    Returns:
        The pairs, and each mask without the tokens before the start.
    """
    clean, corrupt = pairs.clean, pairs.corrupt
    if why_not_shared(pairs.model) is not None:
        return pairs, list(places)
    first = int(torch.stack(list(places)).flatten(0, 1).any(0).nonzero()[0])
    differs = first_difference(clean.decoder_inputs, corrupt.decoder_inputs)
    if replacement == "corrupt":
        first = max(first, differs)
    if first <= places[0].shape[1] / 4:
        return pairs, list(places)
    start = clean.begin_at(first)
    corrupt.begin_at(start, clean.keys if start <= differs else None)
    return _measure(pairs.pairs, clean, corrupt, pairs.metric), [place[:, start:] for place in places]
