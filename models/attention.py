"""Attention of a layer: its calls to observe, its softmax rows, and biases added to its scores.

transformers' kernels return no softmax rows, so rows are computed from queries and keys. transformers looks a kernel
up by name in two registries, one for attention and one for masks. A name that is missing from the one for masks gets
no mask at all, without a warning, so the kernel is registered in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmprobe.models.hooks import current_primary_rows, hooks_are_disabled


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return scaled products, float32 [..., head, query, key]. Consecutive query heads share a key head.

    Args:
        query: [..., head, query, dim].
        key: [..., kv_head, key, dim].

    Example:
        >>> attention_scores(torch.ones(4, 1, 2), torch.ones(2, 3, 2), 0.5)[0]
        tensor([[1., 1., 1.]])
    """
    *samples, heads, queries, dim = query.shape
    # heads that share keys become further queries, so keys need not be repeated
    grouped = (query.float() * scale).reshape(*samples, key.shape[-3], -1, dim)
    return (grouped @ key.float().transpose(-1, -2)).reshape(*samples, heads, queries, -1)


def weigh_values(weights: Tensor, value: Tensor) -> Tensor:
    """Return the sums of values by attention weights, [..., head, query, dim], in the dtype of the values.

    Args:
        weights: [..., head, query, key].
        value: [..., kv_head, key, dim].

    Example:
        >>> weigh_values(torch.ones(4, 1, 3), torch.ones(2, 3, 2))[0]
        tensor([[3., 3.]])
    """
    *samples, heads, queries, keys = weights.shape
    grouped = weights.reshape(*samples, value.shape[-3], -1, keys).to(value.dtype)
    return (grouped @ value).reshape(*samples, heads, queries, -1)


def mask_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Return scores with -inf where a bool mask is false, or with a mask of numbers added.

    Example:
        >>> mask_scores(torch.zeros(2), torch.tensor([True, False]))
        tensor([0., -inf])
    """
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def softmax_rows(call: AttentionCall, row: int, queries: slice) -> Tensor:
    """Return the attention weights of some queries of one row of a call, float32 [head, query, key].

    The call has no biases. Without a mask, each query sees the keys up to its own, or all keys where there are fewer or
    more keys than queries, as in cross-attention.

    Example:
        >>> softmax_rows(call, 0, slice(-1, None)).sum(-1)                   # doctest: +SKIP
        tensor([[1.], [1.]])
    """
    scores = attention_scores(call.query[row, :, queries], call.key[row], call.scale)
    if call.mask is not None:
        mask = call.mask[row if len(call.mask) > 1 else 0]
        return mask_scores(scores, mask[:, queries]).softmax(-1)
    if call.query.shape[2] == call.key.shape[2]:
        positions = torch.arange(call.key.shape[2], device=scores.device)
        scores = scores.masked_fill(positions > positions[queries, None], float("-inf"))
    return scores.softmax(-1)


Beginning = tuple[Tensor, Tensor]
"""Keys and values that come before those of a call, the same for all rows, [1, kv_head, key, dim] each."""
EXTRA_DIMS = 8  # kernels want multiples of 8; only the first is used


class LastQuery:
    """The last query of a call of the kernel, which predicts the next token.

    Args:
        query: all queries of the call, [batch, head, position, dim].
        key: [batch, kv_head, key, dim].
        mask: broadcastable to [batch, head, position, key], or None.
        scale: factor of the scores.
        value: [batch, kv_head, key, dim].
        beginning: keys and values before the own ones, the same for all rows, [1, kv_head, key, dim] each; None where
            there are none. All that has a dimension of keys, the mask too, begins with them.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        scale: float,
        value: Tensor | None = None,
        beginning: Beginning | None = None,
    ):
        self.query, self.key, self.scale, self.value = query[:, :, -1:], key, scale, value
        self.mask = None if mask is None else mask[..., -1:, :]
        self.beginning = beginning

    @cached_property
    def scores(self) -> Tensor:
        """The scaled scores without the mask, float32 [batch, head, 1, key]."""
        own = attention_scores(self.query, self.key, self.scale)
        if self.beginning is None:
            return own
        # the rows become queries of one row, so the common keys need not be repeated
        common = attention_scores(self.query.transpose(0, 2), self.beginning[0], self.scale)
        return torch.cat([common.transpose(0, 2), own], -1)

    def weights(self, bias: Tensor | None = None) -> Tensor:
        """Return the softmax row, float32 [batch, head, 1, key], with a bias added to the scores."""
        scores = self.scores if bias is None else self.scores + bias
        return (scores if self.mask is None else mask_scores(scores, self.mask)).softmax(-1)

    def weigh(self, value: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the values by weights [batch, head, 1, key], [batch, 1, head, dim].

        Args:
            value: [batch, kv_head, key, dim], those of the own keys.
        """
        before = 0 if self.beginning is None else self.beginning[1].shape[2]
        output = weigh_values(weights[..., before:], value)
        if self.beginning is not None:
            common = weigh_values(weights[..., :before].transpose(0, 2), self.beginning[1])
            output = output + common.transpose(0, 2)
        return output.transpose(1, 2)


class AttentionBias(NamedTuple):
    """A change of one call's attention.

    Attributes:
        bias: added to the scores before the softmax, [batch, 1 or head, 1, key].
        all_queries: whether all queries get the bias, and not only the last. Then all heads get the same.
        gain: factor of the last query's output, [batch, head, 1], or None.
    """

    bias: Tensor
    all_queries: bool = False
    gain: Tensor | None = None


def sum_biases(biases: Sequence[AttentionBias]) -> Tensor | None:
    """Return the sum of the biases, [batch, 1 or head, 1, key], or None if there are none."""
    if not biases:
        return None
    total = biases[0].bias
    for other in biases[1:]:
        total = total + other.bias
    return total


def attend_with_biases(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    last: LastQuery,
    biases: Sequence[AttentionBias],
    options: dict[str, Any],
) -> Tensor:
    """Return the kernel's output with all biases, [batch, position, head, dim].

    Args:
        last: the last query of `query`.
        options: options of the kernel; `scaling` must be among them.
    """
    if query.shape[2] == 1:
        return _attend_last_query(last, value, biases)
    shared_bias = sum_biases([bias for bias in biases if bias.all_queries])
    if shared_bias is not None:
        output = _attend_with_shared_bias(module, query, key, value, mask, shared_bias, options)
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    if any(not bias.all_queries or bias.gain is not None for bias in biases):
        output = output.clone()
        output[:, -1:] = _attend_last_query(last, value, biases)
    return output


def _attend_with_shared_bias(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """Return the kernel's output with one bias at all queries, carried by an extra dimension of the keys."""
    wide_query, wide_key, wide_value = (F.pad(values, (0, EXTRA_DIMS)) for values in (query, key, value))
    wide_query[..., query.shape[-1]] = 1
    wide_key[..., key.shape[-1]] = (bias[:, :, 0] / options["scaling"]).to(key.dtype)
    output, _ = sdpa_attention_forward(module, wide_query, wide_key, wide_value, mask, **options)
    return output[..., : value.shape[-1]].contiguous()


def _attend_last_query(last: LastQuery, value: Tensor, biases: Sequence[AttentionBias]) -> Tensor:
    """Return the last query's output [batch, 1, head, dim].

    Most bias functions have computed the scores already, so this costs less than a call of the kernel.
    """
    output = last.weigh(value, last.weights(sum_biases(biases)))
    for bias in biases:
        if bias.gain is not None:
            output = output * bias.gain.to(output.dtype)[:, None]
    return output


KERNEL = "mmprobe_sdpa"


class AttentionCall(NamedTuple):
    """One call of the attention kernel, as its observers see it.

    Attributes:
        query: [batch, head, position, dim].
        key: [batch, kv_head, key, dim].
        value: [batch, kv_head, key, dim].
        mask: broadcastable to [batch, head, position, key]; bool (True is visible) or added to the scores.
            None if the kernel needs no mask. Blocked keys are masked in it.
        scale: factor of the scores.
        window: length of the sliding window or of the chunks, or None.
        output: [batch, position, head, dim].
        bias: added to the scores of the last query, [batch, 1 or head, 1, key]; -inf at its blocked keys.
            None if nothing is added.
        shared_bias: the part of `bias` that is added at all queries, without blocked keys, or None.
        chunked: whether a query sees the keys of its own chunk of the sequence only, in place of a sliding window.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    window: int | None
    output: Tensor
    bias: Tensor | None = None
    shared_bias: Tensor | None = None
    chunked: bool = False


class KeyReplacement(NamedTuple):
    """Other keys and values that some queries see in place of a call's own.

    Attributes:
        pairs: bool [query, key], as large as the module's calls; True where a query sees the other key.
        positions: int64 [other], the keys that have another; the other columns of `pairs` are False.
        replace: a function from the own keys and values at the positions, each [batch, kv_head, other, dim],
            to the others.
    """

    pairs: Tensor
    positions: Tensor
    replace: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


Observer = Callable[[AttentionCall], None]
BiasFunction = Callable[[LastQuery], AttentionBias | None]
FindBeginning = Callable[[], Beginning | None]
HeadChange = Callable[[Tensor], Tensor]
T = TypeVar("T")

# By attention module, and then by the block that registered the entry.
_observers: dict[nn.Module, dict[object, Observer]] = {}
_bias_functions: dict[nn.Module, dict[object, BiasFunction]] = {}
_blocked_keys: dict[nn.Module, dict[object, Tensor]] = {}
_key_replacements: dict[nn.Module, dict[object, KeyReplacement]] = {}
_head_changes: dict[nn.Module, dict[object, HeadChange]] = {}
_beginnings: dict[nn.Module, dict[object, FindBeginning]] = {}


def _sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    registries = (_observers, _bias_functions, _blocked_keys, _key_replacements, _head_changes, _beginnings)
    registered = any(module in entries for entries in registries)
    active = registered and not hooks_are_disabled()
    primary = current_primary_rows()
    if primary is None or not (active or any(primary.skips)):
        return _attend(module, query, key, value, attention_mask, options, active), None
    outputs = []
    for rows, skip, rows_active in (
        (slice(None, primary.rows), primary.skips[0], active),
        (slice(primary.rows, None), primary.skips[1], False),
    ):
        mask = attention_mask
        if mask is not None:
            mask = (mask if len(mask) == 1 else mask[rows])[..., skip:]
        keys, values = key[rows, :, skip:], value[rows, :, skip:]
        outputs.append(_attend(module, query[rows], keys, values, mask, options, rows_active))
    return torch.cat(outputs), None


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
    active: bool,
) -> Tensor:
    """Return the output [batch, position, head, dim]; if `active`, block, bias and observe the call."""
    if not active:
        return sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    blocked = list(_blocked_keys.get(module, {}).values())
    for pairs in blocked:  # [query, key]
        mask = _mask_blocked_keys(module, query, mask, pairs, options)
    for replacement in _key_replacements.get(module, {}).values():
        key, value, mask = _add_other_keys(module, query, key, value, mask, replacement, options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    beginning = _find_beginning(module, options)
    last = LastQuery(query, key, mask, scale, value, beginning)
    functions = _bias_functions.get(module, {}).values()
    biases = [bias for compute in functions if (bias := compute(last)) is not None]
    if beginning is not None:
        output = _attend_last_query(last, value, biases)
    elif biases:
        output = attend_with_biases(
            module, query, key, value, mask, last, biases, options | {"scaling": scale}
        )
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    for change in _head_changes.get(module, {}).values():
        output = change(output)
    if observers := _observers.get(module):
        total = sum_biases(biases)
        shared = sum_biases([bias for bias in biases if bias.all_queries])
        for pairs in blocked:
            total = query.new_zeros(len(query), 1, 1, key.shape[2]) if total is None else total
            total = total.masked_fill(pairs[-1], -torch.inf)
        chunk = _find_chunk(module)
        window = options.get("sliding_window") if chunk is None else chunk
        call = AttentionCall(
            query, key, value, mask, scale, window, output, total, shared, chunked=chunk is not None
        )
        for observe in observers.values():
            observe(call)
    return output


def _find_beginning(module: nn.Module, options: dict[str, Any]) -> Beginning | None:
    """Return what comes before the keys and values of a call; None if nothing does."""
    for find in _beginnings.get(module, {}).values():
        if options.get("position_bias") is None and (found := find()) is not None:
            return found
    return None


def _find_chunk(module: nn.Module) -> int | None:
    """Return the length of the chunks in which a module attends, or None if it does not (Llama 4)."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds or kinds[getattr(module, "layer_idx", 0)] != "chunked_attention":
        return None
    return config.attention_chunk_size


def _mask_blocked_keys(
    module: nn.Module, query: Tensor, mask: Tensor | None, blocked: Tensor, options: dict[str, Any]
) -> Tensor:
    """Return the mask with the blocked [query, key] pairs; a call without a mask gets one."""
    if mask is None:
        mask = torch.ones_like(blocked)
        causal = options.get("is_causal")
        if getattr(module, "is_causal", True) if causal is None else causal:
            mask = mask.tril()
        mask = mask.expand(len(query), 1, *blocked.shape)
    if mask.dtype == torch.bool:
        return mask & ~blocked
    return mask.masked_fill(blocked, -torch.inf)


def _add_other_keys(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    replacement: KeyReplacement,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and mask with the other keys at the end, seen where the own ones are hidden."""
    pairs, positions, replace = replacement
    visible = _mask_blocked_keys(module, query, mask, torch.zeros_like(pairs), options)
    own = _mask_blocked_keys(module, query, visible, pairs, options)
    others = _mask_blocked_keys(module, query, visible[..., positions], ~pairs[:, positions], options)
    other_keys, other_values = replace(key[:, :, positions], value[:, :, positions])
    return (
        torch.cat([key, other_keys], 2),
        torch.cat([value, other_values], 2),
        torch.cat([own, others], -1),
    )


AttentionInterface.register(KERNEL, _sdpa)
AttentionMaskInterface.register(KERNEL, sdpa_mask)


def observe_attention(
    configs: Iterable[Any], observers: Mapping[nn.Module, Observer]
) -> AbstractContextManager[None]:
    """Within the block, call an observer after each call of its attention module.

    An observer sees the call with all biases and blocked keys of the blocks that are open.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        observers: by attention module.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model, calls = load_model("tiny-spd", device="cpu"), []
        >>> attention = model.family.parts(model.family.decoder(model.hf).layers[0]).attention
        >>> with observe_attention([model.hf.config.get_text_config()], {attention: calls.append}):
        ...     _ = model.hf(**model.prepare(Sample(id="a", question="Is there a star?")))
        >>> calls[0].query.shape[1] == model.n_heads
        True
    """
    return _use_kernel(configs, _observers, observers)


def bias_attention(
    configs: Iterable[Any], functions: Mapping[nn.Module, BiasFunction]
) -> AbstractContextManager[None]:
    """Within the block, call a function at each call of its attention module, and add its result to the scores.

    The biases of nested blocks add up. Every function sees the scores without any bias.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        functions: by attention module; each returns a bias, or None to add nothing.
    """
    return _use_kernel(configs, _bias_functions, functions)


def block_attention(
    configs: Iterable[Any], blocked: Mapping[nn.Module, Tensor]
) -> AbstractContextManager[None]:
    """Within the block, hide keys from queries of attention modules.

    Their scores are -inf before the softmax, so the other keys of a row share its weight. Biases are added to
    what is left, and observers see the blocked rows.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        blocked: by attention module, bool [query, key], as large as the module's calls; True where a query
            must not see a key.
    """
    return _use_kernel(configs, _blocked_keys, blocked)


def replace_keys(
    configs: Iterable[Any], replacements: Mapping[nn.Module, KeyReplacement]
) -> AbstractContextManager[None]:
    """Within the block, let some queries of attention modules see other keys and values.

    The softmax of such a query is over its own keys and the others together. Observers see the other keys
    after the own ones.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        replacements: by attention module.
    """
    return _use_kernel(configs, _key_replacements, replacements)


def share_beginnings(
    configs: Iterable[Any], beginnings: Mapping[nn.Module, FindBeginning]
) -> AbstractContextManager[None]:
    """Within the block, let calls of one query see keys and values before their own that all rows have in common.

    So they are there once, and not once a row. The mask of such a call has columns for them. Observers do not see them.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        beginnings: by attention module, a function that is called at each call, and returns what comes before this call's own
            keys and values; None if nothing does.
    """
    return _use_kernel(configs, _beginnings, beginnings)


def change_heads(
    configs: Iterable[Any], changes: Mapping[nn.Module, HeadChange]
) -> AbstractContextManager[None]:
    """Within the block, apply a function to the heads' outputs of attention modules.

    The function gets and returns [batch, position, head, dim], before the output projection.

    Args:
        configs: the configs whose `_attn_implementation` the modules read.
        changes: by attention module.
    """
    return _use_kernel(configs, _head_changes, changes)


@contextmanager
def _use_kernel(
    configs: Iterable[Any], registry: dict[nn.Module, dict[object, T]], entries: Mapping[nn.Module, T]
) -> Iterator[None]:
    """Within the block, attend with this kernel and keep the entries in one of its registries."""
    implementations = [(config, config._attn_implementation) for config in configs]
    block = object()
    for config, _ in implementations:
        config._attn_implementation = KERNEL
    for module, entry in entries.items():
        registry.setdefault(module, {})[block] = entry
    try:
        yield
    finally:
        for config, name in implementations:
            config._attn_implementation = name
        for module in entries:
            del registry[module][block]
            if not registry[module]:
                del registry[module]
