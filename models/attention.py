"""An attention kernel that lets others look on, and shift its scores: sdpa itself, registered under its own name.

transformers finds kernels by name in two registries; a name that is missing from the one for
masks gets no mask at all, silently, so this registers in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmprobe.models.attention_bias import AttentionBias, LastQuery, added, shifted_rows
from mmprobe.models.hooks import current_primary_rows, hooks_are_disabled

KERNEL = "mmprobe_sdpa"


class Call(NamedTuple):
    """One call of the kernel: query [batch, head, position, dim], key and value [batch, kv_head, position, dim],
    mask broadcastable to [batch, head, position, key] (bool, or added to the scores) or None, the scale of
    the scores, the sliding window or None, output [batch, position, head, dim], and what was added to the last
    query's scores [batch, 1 or head, 1, key], or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    window: int | None
    output: Tensor
    bias: Tensor | None = None
    everywhere: Tensor | None = None


Observer = Callable[[Call], None]
Shifter = Callable[[LastQuery], AttentionBias | None]

_observers: dict[nn.Module, Observer] = {}
_shifters: dict[nn.Module, list[Shifter]] = {}


def _observed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    watched = not hooks_are_disabled() and (module in _observers or module in _shifters)
    both = current_primary_rows()
    if both is None or not (watched or any(both.skips)):
        return _rows(module, query, key, value, attention_mask, options, watched), None
    outputs = []
    for rows, skip, theirs in (
        (slice(None, both.rows), both.skips[0], watched),
        (slice(both.rows, None), both.skips[1], False),
    ):
        mask = attention_mask
        if mask is not None:
            mask = (mask if len(mask) == 1 else mask[rows])[..., skip:]
        own = query[rows], key[rows, :, skip:], value[rows, :, skip:]
        outputs.append(_rows(module, *own, mask, options, theirs))
    return torch.cat(outputs), None


def _rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
    watched: bool,
) -> Tensor:
    """The kernel's output; if watched, with the shifts of those who shift it, and those who observe it are told."""
    observe = _observers.get(module) if watched else None
    shifters = _shifters.get(module, ()) if watched else ()
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    shifts: list[AttentionBias] = []
    if shifters:
        last = LastQuery(query, key, mask, scale)
        shifts = [shift for shifter in shifters if (shift := shifter(last)) is not None]
    if shifts:
        output = shifted_rows(module, query, key, value, mask, last, shifts, options | {"scaling": scale})
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    if observe is not None:
        bias = everywhere = None
        if shifts:
            bias, everywhere = added(shifts), added([shift for shift in shifts if shift.everywhere])
        window = options.get("sliding_window")
        observe(Call(query, key, value, mask, scale, window, output, bias, everywhere))
    return output


AttentionInterface.register(KERNEL, _observed_sdpa)
AttentionMaskInterface.register(KERNEL, sdpa_mask)


@contextmanager
def observed_attention(configs: Iterable[Any], observers: Mapping[nn.Module, Observer]) -> Iterator[None]:
    """Within the block, the attention modules given call their observers; afterwards nothing is left.

    Args:
        configs: those whose `_attn_implementation` the modules read.
        observers: by attention module.
    """
    before = [(config, config._attn_implementation) for config in configs]
    for config, _ in before:
        config._attn_implementation = KERNEL
    _observers.update(observers)
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        for module in observers:
            _observers.pop(module, None)


@contextmanager
def shifted_attention(configs: Iterable[Any], shifters: Mapping[nn.Module, Shifter]) -> Iterator[None]:
    """Within the block, the attention modules given ask their shifters at each call; afterwards nothing is left.

    Blocks within each other add up: every shifter sees the scores as they are without any of them. Those who
    observe the attention, within the block, are told what was added.

    Args:
        configs: those whose `_attn_implementation` the modules read.
        shifters: by attention module.
    """
    before = [(config, config._attn_implementation) for config in configs]
    for config, _ in before:
        config._attn_implementation = KERNEL
    for module, shifter in shifters.items():
        _shifters.setdefault(module, []).append(shifter)
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        for module, shifter in shifters.items():
            _shifters[module].remove(shifter)
            if not _shifters[module]:
                del _shifters[module]
