"""An attention kernel that lets a recorder look on: sdpa itself, registered under a name of its own.

transformers finds kernels by name in two registries; a name that is missing from the one for
masks gets no mask at all, silently, so this registers in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

KERNEL = "mmprobe_sdpa"

Observer = Callable[[Tensor, Tensor, float], None]
"""Called with query [batch, head, position, dim], key [batch, kv_head, position, dim] and the scale."""

_observers: WeakKeyDictionary[nn.Module, Observer] = WeakKeyDictionary()


def _observed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    observe = _observers.get(module)
    if observe is not None:
        observe(query, key, options.get("scaling") or query.shape[-1] ** -0.5)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


AttentionInterface.register(KERNEL, _observed_sdpa)
AttentionMaskInterface.register(KERNEL, sdpa_mask)


@contextmanager
def observed_attention(config: Any, observers: Mapping[nn.Module, Observer]) -> Iterator[None]:
    """Within the block, the attention modules given call their observers; afterwards nothing is left.

    Args:
        config: the text config whose `_attn_implementation` the modules read.
        observers: by attention module.
    """
    before = config._attn_implementation
    config._attn_implementation = KERNEL
    _observers.update(observers)
    try:
        yield
    finally:
        config._attn_implementation = before
        for module in observers:
            _observers.pop(module, None)
