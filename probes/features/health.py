"""The health of a dictionary: what it explains, which features are dead, and what the answers lose when it stands for the states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary
from mmprobe.models.points import Changes
from mmprobe.models.reading import Reading
from mmprobe.probes.answer_records import AnswerArrays, AnswerSource, RunAnswer, RunOptions
from mmprobe.probes.features.run import (
    SINKS,
    find_dictionary,
    find_sinks,
    measure_fit,
    measure_states,
    read_states,
)
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import Estimate, estimate_from_sums
from mmprobe.stats.intervals import FRACTION, LENGTH

_BATCH = 4  # answers in a pass; our choice
_TOKENS, _PLAIN, _RECONSTRUCTED, _ABLATED = range(4)


def dictionary_health(
    model: Model, source: Run | Sequence[Any], dictionary: str = "", **options: Unpack[RunOptions]
) -> xr.Dataset:
    """Return how well a dictionary explains the states of answers, how many features are dead, and how much of the loss it recovers.

    These are the core metrics of SAEBench (Karvonen et al., 2025, arXiv:2503.09532). Sink tokens are left as they are, and do not
    count, as in `features_run`. Takes four passes.

    Args:
        source, dictionary: as in `features_run`.
        options: those of `RunOptions`.

    Returns:
        A data set with dimension `group` (visual, text, generated), each but the numbers of tokens with _low and _high: 95 %
        intervals over sets of images.

        - explained, l0, dead, n_tokens, n_sinks (group): as `features_run` has them
        - dead_everywhere (): share of features that are active at no token of any group
        - loss, loss_reconstructed, loss_ablated (): mean loss of an answer's tokens in nat: of the model as it is, with the
          reconstruction in place of the states, and with zeros in their place
        - loss_recovered (): (loss_ablated - loss_reconstructed) / (loss_ablated - loss); 1 where the reconstruction loses nothing

    Raises:
        InputError: no dictionary is named, or it does not fit the model; or another model made the run.
        NotApplicable: no answer can be read.

    Example:
        >>> dictionary_health(model, run, "tiny-spd").loss_recovered.item()               # doctest: +SKIP
        0.99
    """
    chosen, answered = find_dictionary(model, dictionary), AnswerSource(model, source, options)
    answers = [answer for sample in answered.samples if (answer := answered.find(sample)).ids]
    if not answers:
        raise NotApplicable(f"{answered.name}: no sample has an answer that can be read")
    return measure_health(model, chosen, answers, options.get("batch_size", _BATCH))


def measure_health(
    model: Model, dictionary: Dictionary, answers: Sequence[RunAnswer], batch_size: int = _BATCH
) -> xr.Dataset:
    """Return the data set of `dictionary_health` of some answers, which have tokens."""
    size = batch_size if model.family.batches else 1
    records: list[AnswerArrays] = []
    losses: list[np.ndarray] = []
    for start in tqdm(range(0, len(answers), size), desc="health", disable=None):
        batch = answers[start : start + size]
        if len({bool(answer.sample.images) for answer in batch}) > 1:  # a batch has images, or it has none
            parts = [[answer] for answer in batch]
        else:
            parts = [list(batch)]
        for part in parts:
            read = read_states(model, dictionary, (), part)
            records += [
                AnswerArrays(answer, measure_states(dictionary, states, SINKS))
                for answer, states in zip(part, read, strict=True)
            ]
            losses += _measure_losses(
                model, dictionary, part, [find_sinks(each.read, SINKS) for each in read]
            )
    sets = image_sets([answer.sample for answer in answers])
    out = xr.Dataset(coords={"group": ["visual", "text", "generated"]})
    fit = measure_fit(records, sets)
    out.update({name: fit[name] for name in fit if name != "density"})
    counts = np.stack([record.arrays["counts"].sum(0) for record in records])
    found: dict[str, Estimate[Any]] = {
        "dead_everywhere": estimate_from_sums(lambda total: (total == 0).mean(-1), counts, sets, FRACTION)
    }
    sums = np.stack(losses)
    for name, column in (
        ("loss", _PLAIN),
        ("loss_reconstructed", _RECONSTRUCTED),
        ("loss_ablated", _ABLATED),
    ):
        found[name] = estimate_from_sums(partial(_per_token, column), sums, sets, LENGTH)
    found["loss_recovered"] = estimate_from_sums(_recover, sums, sets, (None, None))
    for name, estimate in found.items():
        out.update(estimate.variables(name))
    return out.assign_attrs(
        analysis="dictionary_health", about="How well a dictionary stands for the states.", model=model.name,
        dictionary=dictionary.name, features=dictionary.n_features, samples=len(answers), sets=len(np.unique(sets)),
    )  # fmt: skip


def _per_token(column: int, sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., column] / sums[..., _TOKENS])


def _recover(sums: np.ndarray) -> np.ndarray:
    lost = sums[..., _ABLATED] - sums[..., _PLAIN]
    return np.asarray((sums[..., _ABLATED] - sums[..., _RECONSTRUCTED]) / np.where(lost != 0, lost, np.nan))


def _measure_losses(
    model: Model, dictionary: Dictionary, answers: Sequence[RunAnswer], sinks: Sequence[Tensor]
) -> list[np.ndarray]:
    """Return for each answer the number of its tokens and their summed losses: plain, reconstructed, ablated."""
    reading = Reading(
        model, model.batch([answer.sample for answer in answers]), [answer.ids for answer in answers]
    )
    counted: list[tuple[int, Tensor]] = []  # the first position of each row, and which from there on count
    for row, is_sink in zip(reading.rows, sinks, strict=True):
        counted.append((row.prompt.padding, ~is_sink))

    def put(own: Tensor, new: Tensor) -> Tensor:
        out = own.clone()
        for number, (first, counts) in enumerate(counted):
            place = slice(first, first + len(counts))
            shape = (-1, *[1] * (own.ndim - 2))
            out[number, place] = torch.where(
                counts.view(shape), new[number, place].to(own.dtype), own[number, place]
            )
        return out

    plain, reconstructed, ablated = (
        [-each.double().sum().item() for each in reading.logprobs(changes)]
        for changes in (
            None,
            _reconstruct(dictionary, put),
            {dictionary.writes: lambda own: put(own, torch.zeros_like(own))},
        )
    )
    return [
        np.array([len(answer.ids), *numbers])
        for answer, *numbers in zip(answers, plain, reconstructed, ablated, strict=True)
    ]


def _reconstruct(dictionary: Dictionary, put: Any) -> Changes:
    """Return the change that puts the reconstruction in the place of what is there."""
    read: list[Tensor] = []

    def keep(own: Tensor) -> Tensor:
        read.append(own)
        return own

    def change(own: Tensor) -> Tensor:
        source = dictionary.flatten(read.pop() if dictionary.is_transcoder else own)
        new = dictionary.decode(dictionary.encode(source), source)
        return torch.as_tensor(put(own, new.reshape(own.shape)))

    if dictionary.is_transcoder:
        return {dictionary.reads: keep, dictionary.writes: change}
    return {dictionary.writes: change}
