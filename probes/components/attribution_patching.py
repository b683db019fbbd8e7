"""Attribution patching: estimate by gradients what replacing each component would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.models.points import Point
from mmprobe.models.reading import Values, float32_logits
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput
from mmprobe.probes.components.component_patching import add_pair, make_patch
from mmprobe.probes.components.pairs import (
    LogitMetric,
    PairReading,
    find_places,
    read_pair,
    skip_unchanged_prefix,
)
from mmprobe.samples import Sample

METHODS = ("atp", "atp_star", "ig")
KINDS = ("head", "attention", "ffn")
VERIFIED = 20  # components that atp_star patches exactly; our choice, from perf/patching.py


@dataclass(frozen=True)
class AttributionSettings:
    """How effects are estimated; the fields are arguments of `attribution_patching`.

    Raises:
        InputError: a field is out of range.

    Example:
        >>> AttributionSettings("ig", steps=10).verified
        0
    """

    method: str = "atp_star"
    steps: int = 5
    kind: str = "head"
    tokens: Sequence[str] | None = None
    verify: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method {self.method!r}: choose {', '.join(METHODS)}")
        if self.kind not in KINDS:
            raise InputError(f"kind {self.kind!r}: choose {', '.join(KINDS)}")
        if self.steps < 1 or (self.verify is not None and self.verify < 0):
            raise InputError(f"steps {self.steps} must be 1 or more, and verify {self.verify} 0 or more")

    @property
    def verified(self) -> int:
        """How many components are patched exactly."""
        return (VERIFIED if self.method == "atp_star" else 0) if self.verify is None else self.verify


def attribution_patching(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    method: str = "atp_star",
    steps: int = 5,
    kind: str = "head",
    tokens: Sequence[str] | None = None,
    verify: int | None = None,
    *,
    metric: LogitMetric = "logprob",
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return an estimate by gradients of what `patch_components` measures, for all components in a few passes.

    The estimate of a component is the sum over tokens of (clean value - corrupt value) times a gradient of the
    metric, to first order the loss when the component is replaced.

    - `atp`: the gradient at the clean prompt (Nanda, 2023; Syed et al., 2023): one backward pass.
    - `atp_star`: after AtP* (Kramar et al., 2024, arXiv:2403.00745). Its GradDrop: for each layer the gradient that
      does not go through that layer's sublayers, so that opposite effects by different ways do not cancel; the mean of the absolute estimates over the other layers, with the sign of
      `atp`. Then the components with the largest estimates are patched exactly, which the paper proposes as
      the next step. Its recomputed softmax is for queries and keys as components, which heads' outputs are not.
    - `ig`: integrated gradients (Sundararajan et al., 2017). The components of one layer go from corrupt to
      clean together while all others stay clean; the gradient is taken at the points of Gauss and Legendre.
      For one component a layer (attention, ffn) it converges to the exact effect, except in a mixture of
      experts, whose choice of experts jumps.

    It takes five forward passes, one of them with a backward pass, for `atp`; for `atp_star` also a backward pass for each
    layer, through the layers before it alone, and a forward pass for each verified component; `steps` of both for each layer for `ig`. As
    in `patch_components`, they begin at the first difference of the prompts, for three passes more.

    Use it for a first look at many components, before `patch_components` on the few that matter. It is not
    a result by itself: where the answer is certain, gradients are near 0 and the estimate is too small.

    Args:
        clean, corrupt, tokens, metric, answer, max_new_tokens: as in `patch_components`. The metric must have a
            gradient at the clean prompt; `kl` has none, but for `ig`.
        method: `atp`, `atp_star` or `ig`.
        steps: points of the integral for `ig`.
        kind: `head`, `attention` or `ffn`.
        verify: number of components, those with the largest estimates, that are patched exactly. None for
            20 with `atp_star` (our choice) and 0 with the others. Of the 48 heads of the embedded model, this many
            are needed for nine of the ten largest (`perf/patching.py`); gradients alone find seven.

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
    settings = AttributionSettings(method, steps, kind, tokens, verify)
    return estimate_pairs(read_pair(model, clean, corrupt, metric, answer, max_new_tokens), settings)[0]


def estimate_pairs(pairs: PairReading, settings: AttributionSettings) -> list[xr.Dataset]:
    """Return the data set of `attribution_patching` for each pair. Each pass, backward too, reads all pairs.

    The errors are those of `attribution_patching`.
    """
    model, kind, method = pairs.model, settings.kind, settings.method
    with float32_logits(model):
        with torch.no_grad():
            named = find_places(pairs, settings.tokens)
            pairs, (changed,) = skip_unchanged_prefix(pairs, [named])
            values = _ComponentDifference(
                pairs.clean.components(kind), pairs.corrupt.components(kind), changed
            )
        passes_before = pairs.clean.backwards
        dropped: np.ndarray | None = None
        if method == "ig":
            parts = _integrate(pairs, kind, values, settings.steps)
        else:
            parts, dropped = _estimate(pairs, kind, values, drops=method == "atp_star")
        by_position = _stack(model, parts, named.shape[1])
        estimate = by_position.sum(-1)
        if dropped is not None:
            estimate = np.copysign(dropped, estimate)
        backward_passes = pairs.clean.backwards - passes_before
        effect, exact = _verify(pairs, kind, values, estimate, settings.verified)
    dims = ("layer", "head") if kind == "head" else ("layer",)
    coords = {name: np.arange(size) for name, size in zip(dims, estimate.shape[1:], strict=True)}
    out = []
    for number, row in enumerate(pairs.clean.rows):
        at = named[number].nonzero()[:, 0].cpu().numpy()
        ds = xr.Dataset(coords=coords | {"position": at - row.prompt.padding})
        ds["effect"], ds["estimate"], ds["is_verified"] = (
            (dims, array[number]) for array in (effect, estimate, exact)
        )
        ds["by_position"] = ((*dims, "position"), by_position[number][..., at])
        add_pair(ds, pairs, number, settings.tokens)
        ds.attrs |= {
            "analysis": "attribution_patching",
            "kind": kind,
            "method": method,
            "steps": settings.steps if method == "ig" else 1,
            "verified": int(exact[number].sum()),
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


def _integrate(pairs: PairReading, kind: str, values: _ComponentDifference, steps: int) -> Values:
    """Return the mean over a path from corrupt to clean of `weigh`, one layer at a time."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    parts: Values = {}
    for layer, difference in tqdm(values.difference.items(), desc="attribution_patching", disable=None):
        total = torch.zeros_like(difference)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            changes = {(kind, layer): _move(difference, 1 - point)}
            gradients = pairs.clean.gradients([kind], pairs.sum, [layer], changes=changes)
            total += weight * gradients[kind][layer]
        parts[layer] = (difference * total).sum(-1)
    return parts


def _move(difference: Tensor, share: float) -> Change:
    """Return a function that moves a component a share of the way from clean to corrupt."""
    return lambda value: value - share * difference


def _estimate(
    pairs: PairReading, kind: str, values: _ComponentDifference, drops: bool
) -> tuple[Values, np.ndarray | None]:
    """Return `weigh` by the gradient, and with `drops` the mean over layers of the absolute estimates without the ways
    through one of them, a layer's own aside."""
    layers = sorted(values.difference) if drops else []
    blocked: list[list[Point]] = [[], *([("attention", layer), ("ffn", layer)] for layer in layers)]
    found = pairs.clean.gradients_without([kind], pairs.sum, blocked)
    parts = values.weigh(next(found)[kind])
    if not drops:
        return parts, None
    total: np.ndarray | float = 0.0
    for layer, gradients in zip(
        layers, tqdm(found, "attribution_patching", len(layers), disable=None), strict=True
    ):
        estimate = np.abs(_stack(pairs.model, values.weigh(gradients[kind]), values.places.shape[1]).sum(-1))
        estimate[:, layer] = np.where(np.isnan(estimate[:, layer]), np.nan, 0)  # not of the layer itself
        total = total + estimate
    return parts, np.asarray(total) / max(len(layers) - 1, 1)


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
    pairs: PairReading, kind: str, values: _ComponentDifference, estimate: np.ndarray, verified: int
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
        with torch.no_grad():
            losses = pairs.lose(pairs.clean.logits(_patch_rows(pairs.model, kind, values, places)))
        for row, place in enumerate(places):
            effect[row, *place], exact[row, *place] = losses[row], True
    return effect, exact


def _patch_rows(
    model: Model, kind: str, values: _ComponentDifference, places: np.ndarray
) -> dict[Point, Change]:
    """Return changes that replace one component of each row by the corrupt one.

    Args:
        places: int [row, 1 or 2], layer and head.
    """
    at, changes = torch.from_numpy(places).to(values.places.device), dict[Point, Change]()
    for layer in np.unique(places[:, 0]).tolist():
        mask = values.places & (at[:, 0] == layer)[:, None]
        if kind == "head":
            heads = torch.arange(model.n_heads, device=at.device)
            mask = mask[..., None] & (heads == at[:, 1, None])[:, None]
        changes[kind, layer] = make_patch(values.corrupt[layer], mask)
    return changes
