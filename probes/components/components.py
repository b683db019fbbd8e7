"""The components of a decoder layer: read them, and replace them, in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.attention import change_heads
from mmprobe.models.hooks import Change, observe, replace
from mmprobe.probes.components.decoder_pass import DecoderPass

STREAMS = ("residual", "resid_mid", "resid_post")
KINDS = ("head", "attention", "ffn", *STREAMS)
Values = dict[int, Tensor]


def change_component(model: Model, kind: str, layer: int, change: Change) -> AbstractContextManager[None]:
    """Within the block, apply a function to the component of one layer.

    The function gets and returns [row, position, ...]:

    - `head`: the heads' outputs before the output projection, [row, position, head, dim]
    - `attention`: the output of the attention sublayer, before a learned gain
    - `ffn`: what the FFN adds to the residual stream
    - `residual`: the residual stream that enters the layer, resid_pre
    - `resid_mid`, `resid_post`: the stream between attention and FFN, and the stream that leaves the layer

    Example:
        >>> with change_component(model, "head", 3, torch.zeros_like):       # doctest: +SKIP
        ...     logits = passes.logits()
    """
    module = model.family.decoder(model.hf).layers[layer]
    parts = model.family.parts(module)
    if kind == "head":
        return change_heads([model.hf.config.get_text_config()], {parts.attention: change})
    if kind == "attention":
        return replace(parts.update, outputs=change)
    if kind == "ffn":
        return _change_ffn(module, parts.mid, change)
    if kind == "resid_mid":
        return _change_mid(module, parts.mid, change)
    return replace(module, outputs=change) if kind == "resid_post" else replace(module, inputs=change)


@contextmanager
def _change_ffn(layer: Any, mid_module: Any, change: Change) -> Iterator[None]:
    """Within the block, change the FFN's update, which is resid_post - resid_mid in every family."""
    mids: list[Tensor] = []

    def change_post(post: Tensor) -> Tensor:
        update = post - mids.pop()
        return post + (change(update) - update)  # equal to `post` to the last bit if nothing changes

    with observe(mid_module, inputs=mids.append), replace(layer, outputs=change_post):
        yield


@contextmanager
def _change_mid(layer: Any, mid_module: Any, change: Change) -> Iterator[None]:
    """Within the block, change resid_mid, which the FFN reads and which goes on into resid_post."""
    differences: list[Tensor] = []

    def change_input(mid: Tensor) -> Tensor:
        changed = change(mid)
        differences.append(changed - mid)
        return changed

    def add_difference(post: Tensor) -> Tensor:
        return post + differences.pop()

    with replace(mid_module, inputs=change_input), replace(layer, outputs=add_difference):
        yield


def read_components(passes: DecoderPass, kind: str, inputs: dict[str, Any] | None = None) -> Values:
    """Return the component of each layer that runs, [row, position, ...], from one forward pass.

    Args:
        inputs: arguments of the decoder's forward; None for the prompt's own.

    Example:
        >>> read_components(passes, "ffn")[0].shape                          # doctest: +SKIP
        torch.Size([1, 630, 192])
    """
    model, values = passes.forcing.model, Values()

    def keep(layer: int) -> Change:
        def store(value: Tensor) -> Tensor:
            values[layer] = value.detach().clone()
            return value

        return store

    with ExitStack() as stack, torch.no_grad():
        for layer in range(model.n_layers):
            stack.enter_context(change_component(model, kind, layer, keep(layer)))
        passes.batch_logits(inputs)
    return values


def read_gradients(
    passes: DecoderPass,
    kinds: Sequence[str],
    metric: Callable[[Tensor], Tensor],
    inputs: dict[str, Any] | None = None,
    blocked: Sequence[tuple[str, int]] = (),
    layers: Sequence[int] | None = None,
) -> dict[str, Values]:
    """Return the gradient of a metric of the logits with respect to each component, by kind and layer.

    Args:
        metric: a function of the logits [row, step, vocabulary].
        inputs: arguments of the decoder's forward; None for the prompt's own.
        blocked: kinds and layers whose components pass no gradient on to what they read.
        layers: layers whose gradients are returned; None for all.

    Returns:
        [row, position, ...] for each kind and each layer that runs, as large as the component.
    """
    model = passes.forcing.model
    leaves: dict[tuple[str, int], Tensor] = {}

    def track(kind: str, layer: int) -> Change:
        def add_leaf(value: Tensor) -> Tensor:
            leaf = torch.zeros_like(value, requires_grad=True)
            leaves[kind, layer] = leaf
            return (value.detach() if (kind, layer) in blocked else value) + leaf

        return add_leaf

    with ExitStack() as stack, torch.enable_grad(), model.freeze():
        wanted = [
            (kind, layer) for layer in (range(model.n_layers) if layers is None else layers) for kind in kinds
        ]
        for kind, layer in dict.fromkeys((*wanted, *blocked)):
            stack.enter_context(change_component(model, kind, layer, track(kind, layer)))
        measured = metric(passes.batch_logits(inputs))
        gradients = torch.autograd.grad(measured, list(leaves.values()), allow_unused=True)
    out: dict[str, Values] = {kind: {} for kind in kinds}
    for (kind, layer), leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        if kind in kinds:
            out[kind][layer] = torch.zeros_like(leaf) if gradient is None else gradient
    return out


def check_kind(kind: str) -> None:
    """Raise InputError if there is no such kind of component."""
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}: choose {', '.join(KINDS)}")
