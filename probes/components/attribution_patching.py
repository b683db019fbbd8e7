"""Attribution patching: estimate by gradients what replacing each component would cost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.probes.components.component_patching import add_pair, make_patch
from mmprobe.probes.components.decoder_pass import Values, change_component, read_components, read_gradients
from mmprobe.probes.components.pairs import (
    AnswerPair,
    LogitMetric,
    PairBatch,
    find_places,
    read_pairs,
    skip_unchanged_prefix,
)
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, GivenAnswer, float32_logits
from mmprobe.samples import Sample

METHODS = ("atp", "atp_star", "ig")
KINDS = ("head", "attention", "ffn")
VERIFIED = 20  # components that atp_star patches exactly; our choice, from perf/causes.py


def attribution_patching(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    method: str = "atp_star",
    steps: int = 5,
    kind: str = "head",
    metric: LogitMetric = "logprob",
    tokens: Sequence[str] | None = None,
    verify: int | None = None,
    answer: GivenAnswer = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return an estimate by gradients of what `patch_components` measures, for all components in a few passes.

    The estimate of a component is the sum over tokens of (clean value - corrupt value) times a gradient of the
    metric, to first order the loss when the component is replaced.

    - `atp`: the gradient at the clean prompt (Nanda, 2023; Syed et al., 2023): one backward pass.
    - `atp_star`: after AtP* (Kramar et al., 2024, arXiv:2403.00745). Its GradDrop: one backward pass for each
      layer, in which the gradient does not go through that layer's sublayers, so that opposite effects by
      different ways do not cancel; the mean of the absolute estimates over the other layers, with the sign of
      `atp`. Then the components with the largest estimates are patched exactly, which the paper proposes as
      the next step. Its recomputed softmax is for queries and keys as components, which heads' outputs are not.
    - `ig`: integrated gradients (Sundararajan et al., 2017). The components of one layer go from corrupt to
      clean together while all others stay clean; the gradient is taken at the points of Gauss and Legendre.
      For one component a layer (attention, ffn) it converges to the exact effect, except in a mixture of
      experts, whose choice of experts jumps.

    It takes five forward passes, one of them with a backward pass, for `atp`; one more of both for each layer
    for `atp_star`, and a forward pass for each verified component; `steps` of both for each layer for `ig`. As
    in `patch_components`, they begin at the first difference of the prompts, for three passes more.

    Use it for a first look at many components, before `patch_components` on the few that matter. It is not
    a result by itself: where the answer is certain, gradients are near 0 and the estimate is too small.

    Args:
        clean, corrupt, metric, tokens, answer, max_new_tokens: as in `patch_components`. The metric must have
            a gradient at the clean prompt; `kl` has none, but for `ig`.
        method: `atp`, `atp_star` or `ig`.
        steps: points of the integral for `ig`.
        kind: `head`, `attention` or `ffn`.
        verify: number of components, those with the largest estimates, that are patched exactly. None for
            20 with `atp_star` (our choice) and 0 with the others. Of the 48 heads of the embedded model, this many
            are needed for nine of the ten largest (`perf/causes.py`); gradients alone find seven.

    Returns:
        A data set in the unit of the metric, with the dimensions and the sign of `patch_components`.

        - effect (layer, head) or (layer): the estimate, exact where `is_verified`; NaN for layers that do not run
        - estimate: the estimate of all components
        - is_verified: whether the component was patched exactly
        - by_position (layer, head, position) or (layer, position): each token's part of the first-order
          estimate; for `atp_star` that of `atp`
        - total, metric_clean, metric_corrupt; token, logprob (step)

        attrs: n, forward_passes, backward_passes.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> ds = attribution_patching(model, samples[0], samples[9], "ig")  # doctest: +SKIP
        >>> ds.effect.dims                                                   # doctest: +SKIP
        ('layer', 'head')
    """
    pairs = [(clean, corrupt, answer)]
    return estimate_pairs(model, pairs, method, steps, kind, metric, tokens, verify, max_new_tokens)[0]


def estimate_pairs(
    model: Model,
    pairs: Sequence[AnswerPair],
    method: str,
    steps: int,
    kind: str,
    metric: LogitMetric,
    tokens: Sequence[str] | None,
    verify: int | None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[xr.Dataset]:
    """Return the data set of `attribution_patching` for each pair. Each pass, backward too, reads all pairs.

    The errors are those of `attribution_patching`.
    """
    if method not in METHODS:
        raise InputError(f"method {method!r}: choose {', '.join(METHODS)}")
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}: choose {', '.join(KINDS)}")
    if steps < 1 or (verify is not None and verify < 0):
        raise InputError(f"steps {steps} must be 1 or more, and verify {verify} 0 or more")
    verify = (VERIFIED if method == "atp_star" else 0) if verify is None else verify
    with float32_logits(model):
        with torch.no_grad():
            batch = read_pairs(model, pairs, metric, max_new_tokens)
            named = find_places(batch, pairs, tokens)
            batch, (changed,) = skip_unchanged_prefix(batch, metric, [named])
            values = _ComponentDifference(
                read_components(batch.clean, kind), read_components(batch.corrupt, kind), changed
            )
        passes_before = batch.clean.count
        if method == "ig":
            parts = _integrate(batch, kind, values, steps)
        else:
            parts = values.weigh(read_gradients(batch.clean, [kind], batch.sum)[kind])
        by_position = _stack(model, parts, named.shape[1])
        estimate = by_position.sum(-1)
        if method == "atp_star":
            estimate = np.copysign(_drop_gradients(batch, kind, values), estimate)
        backward_passes = batch.clean.count - passes_before
        effect, exact = _verify(batch, kind, values, estimate, verify)
    dims = ("layer", "head") if kind == "head" else ("layer",)
    coords = {name: np.arange(size) for name, size in zip(dims, estimate.shape[1:], strict=True)}
    out = []
    for row, forcing in enumerate(batch.clean.rows):
        at = named[row].nonzero()[:, 0].cpu().numpy()
        ds = xr.Dataset(coords=coords | {"position": at - forcing.prompt.padding})
        ds["effect"], ds["estimate"], ds["is_verified"] = (
            (dims, array[row]) for array in (effect, estimate, exact)
        )
        ds["by_position"] = ((*dims, "position"), by_position[row][..., at])
        add_pair(ds, batch, row, pairs[row], tokens)
        ds.attrs |= {
            "analysis": "attribution_patching",
            "kind": kind,
            "method": method,
            "steps": steps if method == "ig" else 1,
            "verified": int(exact[row].sum()),
            "backward_passes": backward_passes,
        }
        out.append(ds)
    return out


class _ComponentDifference:
    """The components of the clean and of the corrupt prompts, by layer, and a mask of the compared positions."""

    def __init__(self, clean: Values, corrupt: Values, places: Tensor):
        self.corrupt, self.places = corrupt, places
        self.difference = {
            layer: (clean[layer] - corrupt[layer]) * _broadcast(places, clean[layer])
            for layer in clean
            if layer in corrupt
        }

    def weigh(self, gradients: Values) -> Values:
        """Return gradients times differences, [row, position] or [row, position, head]; 0 elsewhere."""
        return {
            layer: (difference * gradients[layer]).sum(-1) for layer, difference in self.difference.items()
        }


def _broadcast(mask: Tensor, values: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))


def _integrate(batch: PairBatch, kind: str, values: _ComponentDifference, steps: int) -> Values:
    """Return the mean over a path from corrupt to clean of `weigh`, one layer at a time."""
    model = batch.clean.forcing.model
    points, weights = np.polynomial.legendre.leggauss(steps)
    parts: Values = {}
    for layer, difference in tqdm(values.difference.items(), desc="attribution_patching", disable=None):
        total = torch.zeros_like(difference)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            with change_component(model, kind, layer, _move(difference, 1 - point)):
                gradients = read_gradients(batch.clean, [kind], batch.sum, layers=[layer])
            total += weight * gradients[kind][layer]
        parts[layer] = (difference * total).sum(-1)
    return parts


def _move(difference: Tensor, share: float) -> Change:
    """Return a function that moves a component a share of the way from clean to corrupt."""
    return lambda value: value - share * difference


def _drop_gradients(batch: PairBatch, kind: str, values: _ComponentDifference) -> np.ndarray:
    """Return the mean of the absolute estimates without the ways through one layer, over the other layers."""
    model = batch.clean.forcing.model
    layers = sorted(values.difference)
    total: np.ndarray | float = 0.0
    for layer in tqdm(layers, desc="attribution_patching", disable=None):
        blocked = [("attention", layer), ("ffn", layer)]
        gradients = read_gradients(batch.clean, [kind], batch.sum, blocked=blocked)[kind]
        estimate = np.abs(_stack(model, values.weigh(gradients), values.places.shape[1]).sum(-1))
        estimate[:, layer] = np.where(np.isnan(estimate[:, layer]), np.nan, 0)  # not of the layer itself
        total = total + estimate
    return np.asarray(total) / max(len(layers) - 1, 1)


def _stack(model: Model, parts: Values, count: int) -> np.ndarray:
    """Return float [row, layer, head, position] or [row, layer, position]; NaN for layers that did not run.

    Positions before those of the parts, which are equal in both prompts, get 0.
    """
    rows, _, *heads = next(iter(parts.values())).shape
    out = np.full((rows, model.n_layers, *heads, count), np.nan)
    for layer, part in parts.items():
        out[:, layer] = 0
        out[:, layer, ..., count - part.shape[1] :] = np.moveaxis(part.double().cpu().numpy(), 1, -1)
    return out


def _verify(
    batch: PairBatch, kind: str, values: _ComponentDifference, estimate: np.ndarray, verified: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the effects with the largest ones of each row measured, and a mask of these.

    A pass measures one component of each row, from the first layer to the last.
    """
    effect, exact = estimate.copy(), np.zeros(estimate.shape, bool)
    flat = np.abs(estimate).reshape(len(estimate), -1)
    count = min(verified, int(np.isfinite(flat).sum(1).min()))
    largest = np.sort(np.argsort(-np.nan_to_num(flat, nan=-1.0), axis=1, kind="stable")[:, :count], axis=1)
    for chosen in tqdm(largest.T, desc="attribution_patching", disable=None):
        places = np.array(np.unravel_index(chosen, estimate.shape[1:])).T  # [row, layer and head]
        with torch.no_grad(), _patch_rows(batch, kind, values, places):
            losses = batch.lose(batch.clean.batch_logits(first_layer=int(places[:, 0].min())))
        for row, place in enumerate(places):
            effect[row, *place], exact[row, *place] = losses[row], True
    return effect, exact


def _patch_rows(
    batch: PairBatch, kind: str, values: _ComponentDifference, places: np.ndarray
) -> AbstractContextManager[object]:
    """Within the block, one component of each row is the corrupt one.

    Args:
        places: int [row, 1 or 2], layer and head.
    """
    model, stack = batch.clean.forcing.model, ExitStack()
    at = torch.from_numpy(places).to(values.places.device)
    for layer in np.unique(places[:, 0]).tolist():
        mask = values.places & (at[:, 0] == layer)[:, None]
        if kind == "head":
            heads = torch.arange(model.n_heads, device=at.device)
            mask = mask[..., None] & (heads == at[:, 1, None])[:, None]
        stack.enter_context(change_component(model, kind, layer, make_patch(values.corrupt[layer], mask)))
    return stack
