"""An attention kernel that lets others look on: sdpa itself, registered under a name of its own.

transformers finds kernels by name in two registries; a name that is missing from the one for
masks gets no mask at all, silently, so this registers in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

KERNEL = "mmprobe_sdpa"


class Call(NamedTuple):
    """One call of the kernel: query [batch, head, position, dim], key and value [batch, kv_head, position, dim],
    mask broadcastable to [batch, head, position, key] (bool, or added to the scores) or None, the scale of
    the scores, the sliding window or None, and output [batch, position, head, dim]."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    window: int | None
    output: Tensor


Observer = Callable[[Call], None]

_observers: WeakKeyDictionary[nn.Module, Observer] = WeakKeyDictionary()


def _observed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    output = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    observe = _observers.get(module)
    if observe is not None:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        window = options.get("sliding_window")
        observe(Call(query, key, value, attention_mask, scale, window, output[0]))
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
