"""Attribution patching: estimate by gradients what replacing each component would cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.probes.components.component_pair import (
    ComponentPair,
    begin_at_change,
    find_all_tokens,
    read_pair,
)
from mmprobe.probes.components.component_patching import add_pair, make_patch
from mmprobe.probes.components.components import Values, change_component, read_components, read_gradients
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, Answer, float32_logits
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
    metric: Metric = "logprob",
    tokens: Sequence[str] | None = None,
    verify: int | None = None,
    answer: Answer = None,
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

    Use it for a first look at many components, before `patch_components` on the few that matter. It is no
    result by itself: where the answer is certain, gradients are near 0 and the estimate is too small.

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
        - total, metric_clean, metric_corrupt

        attrs: n, forward_passes, backward_passes.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> ds = attribution_patching(model, samples[0], samples[9], "ig")  # doctest: +SKIP
        >>> ds.effect.dims                                                   # doctest: +SKIP
        ('layer', 'head')
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
            pair = read_pair(model, clean, corrupt, metric, answer, max_new_tokens)
            positions = find_all_tokens(pair.clean.forcing, clean, tokens)
            pair, (changed,) = begin_at_change(pair, metric, [positions])
            values = _Values(read_components(pair.clean, kind), read_components(pair.corrupt, kind), changed)
        passes_before = pair.clean.count
        if method == "ig":
            parts = _integrate(pair, kind, values, steps)
        else:
            parts = values.weigh(read_gradients(pair.clean, [kind], pair.metric)[kind])
        by_position = _stack(model, parts, len(positions))
        estimate = by_position.sum(-1)
        if method == "atp_star":
            estimate = np.copysign(_drop_gradients(pair, kind, values), estimate)
        backward_passes = pair.clean.count - passes_before
        effect, exact = _verify(pair, kind, values, estimate, verify)
    dims = ("layer", "head") if kind == "head" else ("layer",)
    coords = {name: np.arange(size) for name, size in zip(dims, estimate.shape, strict=True)}
    out = xr.Dataset(coords=coords | {"position": positions.cpu().numpy()})
    out["effect"], out["estimate"], out["is_verified"] = (dims, effect), (dims, estimate), (dims, exact)
    out["by_position"] = ((*dims, "position"), by_position)
    add_pair(out, pair, clean, corrupt, tokens)
    out.attrs |= {
        "analysis": "attribution_patching",
        "kind": kind,
        "method": method,
        "steps": steps if method == "ig" else 1,
        "verified": int(exact.sum()),
        "backward_passes": backward_passes,
    }
    return out


class _Values:
    """The components of the clean and of the corrupt prompt, by layer, and the positions that are compared."""

    def __init__(self, clean: Values, corrupt: Values, positions: Tensor):
        self.corrupt, self.positions = corrupt, positions
        self.difference = {layer: clean[layer] - corrupt[layer] for layer in clean if layer in corrupt}

    def weigh(self, gradients: Values) -> Values:
        """Return gradients times differences, summed over a component's own axis: [position] or [position, head]."""
        at = self.positions
        return {
            layer: (difference[at] * gradients[layer][at]).sum(-1)
            for layer, difference in self.difference.items()
        }


def _integrate(pair: ComponentPair, kind: str, values: _Values, steps: int) -> Values:
    """Return the mean over a path from corrupt to clean of `weigh`, one layer at a time."""
    model = pair.clean.forcing.model
    points, weights = np.polynomial.legendre.leggauss(steps)
    parts: Values = {}
    for layer, difference in tqdm(values.difference.items(), desc="attribution_patching", disable=None):
        total = torch.zeros_like(difference)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            with change_component(model, kind, layer, _move(difference, values.positions, 1 - point)):
                gradients = read_gradients(pair.clean, [kind], pair.metric, layers=[layer])
            total += weight * gradients[kind][layer]
        parts[layer] = (difference * total)[values.positions].sum(-1)
    return parts


def _move(difference: Tensor, positions: Tensor, share: float) -> Change:
    """Return a function that moves a component a share of the way from clean to corrupt at some positions."""
    back = torch.zeros_like(difference)
    back[positions] = share * difference[positions]
    return lambda value: value - back


def _drop_gradients(pair: ComponentPair, kind: str, values: _Values) -> np.ndarray:
    """Return the mean of the absolute estimates without the ways through one layer, over the other layers."""
    model = pair.clean.forcing.model
    layers = sorted(values.difference)
    total: np.ndarray | float = 0.0
    for layer in tqdm(layers, desc="attribution_patching", disable=None):
        blocked = [("attention", layer), ("ffn", layer)]
        gradients = read_gradients(pair.clean, [kind], pair.metric, blocked=blocked)[kind]
        estimate = np.abs(_stack(model, values.weigh(gradients), len(values.positions)).sum(-1))
        estimate[layer] = np.where(np.isnan(estimate[layer]), np.nan, 0)  # not of the layer itself
        total = total + estimate
    return np.asarray(total) / max(len(layers) - 1, 1)


def _stack(model: Model, parts: Values, count: int) -> np.ndarray:
    """Return float [layer, head, position] or [layer, position]; NaN for layers that did not run.

    Positions before those of the parts, which are equal in both prompts, get 0.
    """
    width = next(iter(parts.values())).shape[1:]
    out = np.full((model.n_layers, *width, count), np.nan)
    for layer, part in parts.items():
        out[layer] = 0
        out[layer, ..., count - len(part) :] = np.moveaxis(part.double().cpu().numpy(), 0, -1)
    return out


def _verify(
    pair: ComponentPair, kind: str, values: _Values, estimate: np.ndarray, verified: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the effects with the largest ones measured, and a mask of these."""
    model = pair.clean.forcing.model
    effect, exact = estimate.copy(), np.zeros(estimate.shape, bool)
    order = np.argsort(-np.nan_to_num(np.abs(estimate), nan=-1.0), axis=None, kind="stable")
    for flat in tqdm(order[:verified], desc="attribution_patching", disable=None):
        place = np.unravel_index(flat, estimate.shape)
        layer = int(place[0])
        if layer not in values.difference:
            break
        patch = make_patch(values.corrupt[layer], values.positions, int(place[1]) if kind == "head" else None)
        with torch.no_grad(), change_component(model, kind, layer, patch):
            effect[place] = pair.lose(pair.clean.logits(first_layer=layer))
        exact[place] = True
    return effect, exact
