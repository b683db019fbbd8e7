"""Lenses: functions from a residual stream to a score of each token of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.models import Group, Model, Prompt
from mmprobe.probes.answers import resolve_layers
from mmprobe.probes.logit_lens import make_lens
from mmprobe.probes.visual_tokens.cells import read_cells, read_streams
from mmprobe.samples import Sample

RIDGE = 0.01  # of the mean variance of a dimension; our choice
_BATCH = 4  # prompts in a pass; our choice


class Lens(NamedTuple):
    """A lens.

    Attributes:
        name: `logit`, `jacobian` or `nearest`.
        unit: of its scores.
        read: a function from a layer and resid_post of it, [cell, hidden], to scores [cell, vocabulary]; a token that
            the lens cannot name is -inf.
    """

    name: str
    unit: str
    read: Callable[[int, Tensor], Tensor]


def unembedding_lens(model: Model) -> Lens:
    """Return the logit lens: the final norm and the unembedding, in nat (nostalgebraist, 2020).

    Raises:
        NotApplicable: the family scales or caps its logits.

    Example:
        >>> from mmprobe.models import load_model
        >>> unembedding_lens(load_model("tiny-spd", device="cpu")).read(0, torch.ones(2, 192)).shape
        torch.Size([2, 504])
    """
    lens = make_lens(model)
    return Lens("logit", "nat", lambda layer, states: lens(states))


class Jacobian(NamedTuple):
    """An affine map from the stream after each layer to the stream after the last one: late = early @ matrix + bias.

    Attributes:
        layers: the layers.
        matrices: float32 [layer, hidden, hidden].
        bias: float32 [layer, hidden].
    """

    layers: list[int]
    matrices: Tensor
    bias: Tensor


def identity_jacobian(layers: Sequence[int], hidden: int) -> Jacobian:
    """Return the map that changes nothing; its lens is the logit lens.

    Example:
        >>> identity_jacobian([0, 3], 192).matrices.shape
        torch.Size([2, 192, 192])
    """
    matrices = torch.eye(hidden).expand(len(layers), hidden, hidden)
    return Jacobian(list(layers), matrices, torch.zeros(len(layers), hidden))


def fit_jacobian(
    model: Model,
    samples: Sequence[Sample],
    layers: Sequence[int] | None = None,
    ridge: float = RIDGE,
) -> Jacobian:
    """Return the linear regression of the last layer's stream on each layer's, at the visual tokens of images.

    The penalty pulls the map towards the identity, so few images give a lens that is close to the logit lens. It
    fits states. The tuned lens (Belrose et al., 2023, arXiv:2303.08112) fits the model's own predictions instead,
    which at visual tokens nobody trained.

    Args:
        samples: samples to fit on, of other images than those that are read.
        layers: the layers; None for all. Two float64 matrices [hidden, hidden] of each are in memory.
        ridge: the penalty, relative to the mean variance of a dimension; above 0.

    Raises:
        InputError: no sample is given, or the ridge is not above 0.
        NotApplicable: as in `find_visual`.

    Example:
        >>> fit_jacobian(model, samples, layers=[3]).matrices.shape          # doctest: +SKIP
        torch.Size([1, 192, 192])
    """
    numbers = resolve_layers(model, layers)
    wanted = list(dict.fromkeys([*numbers, model.n_layers - 1]))
    states = (
        torch.cat([each.values for each in read_cells(model, batch, wanted)], 1)
        for batch in _batches(model, samples)
    )
    blocks = ((block[: len(numbers)], block[-1]) for block in states)
    return fit_states(blocks, ridge)._replace(layers=numbers)


def fit_states(blocks: Iterable[tuple[Tensor, Tensor]], ridge: float = RIDGE) -> Jacobian:
    """Return the regression of late states on early ones, which come a block at a time.

    Args:
        blocks: early states [layer, position, hidden] and late ones [position, hidden].
        ridge: as in `fit_jacobian`.

    Example:
        >>> early = torch.randn(1, 50, 3)
        >>> fitted = fit_states([(early, 2 * early[0] + 1)], ridge=1e-9)
        >>> fitted.matrices.diagonal(dim1=1, dim2=2).round(decimals=3).tolist(), fitted.bias.round(decimals=3).tolist()
        ([[2.0, 2.0, 2.0]], [[1.0, 1.0, 1.0]])
    """
    if not ridge > 0:
        raise InputError(f"ridge {ridge}: must be above 0")
    count, sums, late_sum = 0, torch.zeros(()), torch.zeros(())
    squares, products = torch.zeros(()), torch.zeros(())
    for early, late in blocks:
        early, late = early.double(), late.double()
        count += early.shape[1]
        sums, late_sum = sums + early.sum(1), late_sum + late.sum(0)
        squares, products = squares + early.mT @ early, products + early.mT @ (late - early)
    if not count:
        raise InputError("samples: give at least one to fit the Jacobian lens on")
    means, late_mean = sums / count, late_sum / count
    covariance = squares / count - means[:, :, None] * means[:, None]
    cross = products / count - means[:, :, None] * (late_mean - means)[:, None]
    hidden = covariance.shape[-1]
    penalty = ridge * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
    unit = torch.eye(hidden, dtype=torch.float64)
    matrices = unit + torch.linalg.solve(covariance + penalty[:, None, None] * unit, cross)
    bias = late_mean - (means[:, None] @ matrices)[:, 0]
    return Jacobian(list(range(len(means))), matrices.float(), bias.float())


def jacobian_lens(model: Model, jacobian: Jacobian) -> Lens:
    """Return the lens that maps a layer's stream to the last layer's before it is unembedded, in nat.

    With `identity_jacobian` it is the logit lens.

    Raises:
        NotApplicable: as in `unembedding_lens`.

    Example:
        >>> lens = jacobian_lens(model, fit_jacobian(model, samples))        # doctest: +SKIP
    """
    lens = make_lens(model)

    def read(layer: int, states: Tensor) -> Tensor:
        index = jacobian.layers.index(layer)
        return lens(states.float() @ jacobian.matrices[index] + jacobian.bias[index])

    return Lens("jacobian", "nat", read)


class TextBank(NamedTuple):
    """The residual stream at tokens of texts, as they come within their texts.

    Attributes:
        states: float32 [entry, hidden], of length 1.
        ids: int64 [entry], the token of each.
        layers: int64 [entry], the layer of each.
        vocabulary: number of tokens of the model.
    """

    states: Tensor
    ids: Tensor
    layers: Tensor
    vocabulary: int


def make_bank(model: Model, texts: Sequence[str], layers: Sequence[int] | None = None) -> TextBank:
    """Return the bank of contextual embeddings of a model's tokens in texts, such as its own answers.

    Each text is read as a user's message without images, and its tokens' streams after each layer are entries. A
    beginning that several texts share is there once.

    Args:
        texts: the texts. What is not in them cannot be named.
        layers: the layers; None for all.

    Raises:
        InputError: there are no texts.

    Example:
        >>> from mmprobe.models import load_model
        >>> make_bank(load_model("tiny-spd", device="cpu"), ["A red star."], [2]).ids.shape
        torch.Size([4])
    """
    numbers = resolve_layers(model, layers)
    kept = [text for text in dict.fromkeys(texts) if text.strip()]
    if not kept:
        raise InputError("texts: give at least one to make the bank of")
    samples = [Sample(id=str(number), question=text) for number, text in enumerate(kept)]
    seen: set[tuple[int, ...]] = set()
    states: list[Tensor] = []
    ids: list[int] = []
    for batch in tqdm([*_batches(model, samples)], desc="bank of embeddings", disable=None):
        for prompt, values in read_streams(model, batch, numbers, _find_user):
            text = prompt.ids[_find_user(prompt)].tolist()
            beginnings = [tuple(text[: end + 1]) for end in range(len(text))]
            new = [place for place, beginning in enumerate(beginnings) if beginning not in seen]
            seen.update(beginnings)
            states.append(values[:, new])
            ids += [text[place] for place in new]
    joined = torch.nn.functional.normalize(torch.cat(states, 1), dim=-1)
    return TextBank(
        joined.flatten(0, 1),
        torch.tensor(ids).repeat(len(numbers)),
        torch.tensor(numbers).repeat_interleave(len(ids)),
        len(model.hf.get_output_embeddings().weight),
    )


def nearest_embeddings(bank: TextBank) -> Lens:
    """Return the lens that scores a token by its nearest entry in a bank, of any layer: the largest cosine.

    LatentLens (arXiv:2602.00462) names a visual token by its nearest contextual embeddings of text. What it finds is
    near, not what the model reads there.

    Example:
        >>> bank = TextBank(torch.eye(2), torch.tensor([4, 1]), torch.tensor([0, 0]), 5)
        >>> nearest_embeddings(bank).read(0, torch.tensor([[2.0, 0.0]])).tolist()
        [[-inf, 0.0, -inf, -inf, 1.0]]
    """

    def read(layer: int, states: Tensor) -> Tensor:
        cosines = torch.nn.functional.normalize(states.float(), dim=-1) @ bank.states.T
        scores = torch.full((len(states), bank.vocabulary), -torch.inf)
        return scores.scatter_reduce(1, bank.ids.expand_as(cosines), cosines, "amax")

    return Lens("nearest", "cosine", read)


def _find_user(prompt: Prompt) -> np.ndarray:
    return np.flatnonzero(prompt.group == Group.USER)


def _batches(model: Model, samples: Sequence[Sample]) -> Iterable[Sequence[Sample]]:
    size = _BATCH if model.family.batches else 1
    return (samples[first : first + size] for first in range(0, len(samples), size))
