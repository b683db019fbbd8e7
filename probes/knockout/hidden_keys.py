"""Readings of an answer in which some queries cannot see some keys, or see others in their place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.models.attention import AttentionCall, KeyReplacement, block_attention
from mmprobe.models.points import Changes, find_attention
from mmprobe.models.reading import KeysAndValues, Reading
from mmprobe.probes.components.pairs import own_logprobs


def check_family(model: Model) -> None:
    """Raise NotApplicable if the model's tokens do not attend to its images in the prompt."""
    if model.has_cross_attention:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")
    if model.why_irregular:
        raise NotApplicable(f"{model.name}: {model.why_irregular}, so not every path can be blocked")


def list_windows(n_layers: int, window: int | None, stride: int | None) -> list[range]:
    """Return windows of layers that begin at multiples of the stride and reach the last layer.

    Args:
        window: number of layers that are blocked together; None for a quarter of the layers, rounded up.
        stride: layers from one window to the next; None for the window.

    Raises:
        InputError: one of them is out of range.

    Example:
        >>> list_windows(8, 3, 2)
        [range(0, 3), range(2, 5), range(4, 7), range(6, 8)]
    """
    window = -(-n_layers // 4) if window is None else window
    stride = window if stride is None else stride
    if not 1 <= stride <= window <= n_layers:
        raise InputError(
            f"window {window} and stride {stride}: give a stride of 1 or more, and a window from it to {n_layers}, "
            "the number of layers"
        )
    last = max(n_layers - window, 0)
    return [range(start, min(start + window, n_layers)) for start in range(0, last + stride, stride)]


class Replacement(NamedTuple):
    """What queries see in place of hidden keys.

    Attributes:
        name: `block`, `mean` or `counterfactual`, as in `attention_routes`.
        others: for `counterfactual`, the keys and values of the other prompt.
    """

    name: str
    others: KeysAndValues | None = None


class SeenKeys(NamedTuple):
    """What the queries of one answer see.

    Attributes:
        reading: the answer after its prompt, one row.
        keys: keys and values of each layer that runs, [1, kv_head, position, dim].
        visible: bool [query, key], True where some layer lets a query see a key.
        attentions: the modules of the layers.
        before: float32 [step], log-probability of each token with nothing hidden.
    """

    reading: Reading
    keys: KeysAndValues
    visible: Tensor
    attentions: Sequence[Any]
    before: Tensor

    def differ(self, layers: Sequence[int], others: KeysAndValues) -> Tensor:
        """Return which positions have another key or value in another prompt in some layer, bool [position]."""
        differ = torch.zeros_like(self.visible[0])
        for layer in (layer for layer in layers if layer in self.keys):
            for own, other in zip(self.keys[layer], others[layer], strict=True):
                differ |= (own != other).flatten(0, 1).any(-1).any(0)
        return differ

    def average_values(self, layer: int) -> Tensor:
        """Return the mean value of each token's group, [1, kv_head, position, dim]."""
        row, value = self.reading.row, self.keys[layer][1]
        groups = torch.from_numpy(row.prompt.group).to(value.device).long()
        groups = torch.cat([groups, groups.new_full((len(row.ids),), Group.GENERATED)])
        means = value.clone()
        for group in groups.unique():
            means[:, :, groups == group] = value[:, :, groups == group].mean(2, keepdim=True)
        return means


def read_keys(reading: Reading) -> SeenKeys:
    """Return what the queries of an answer see, from the first pass over it.

    Example:
        >>> seen = read_keys(reading)                                        # doctest: +SKIP
        >>> lose_keys(seen, pairs, [3, 4], Replacement("block"))             # doctest: +SKIP
        tensor([0.0312, 0.0000, 1.7500])
    """
    length, keys = reading.inputs["input_ids"].shape[1], KeysAndValues()
    visible = torch.zeros(length, length, dtype=torch.bool, device=reading.model.device)

    def keep(layer: int, call: AttentionCall) -> None:
        keys[layer] = call.key, call.value
        if call.mask is not None:
            is_bool = call.mask.dtype == torch.bool
            visible.logical_or_(
                (call.mask if is_bool else call.mask > torch.finfo(call.mask.dtype).min)[0].any(0)
            )

    layers = range(reading.model.n_layers)
    attentions = [find_attention(reading.model, layer) for layer in layers]
    seen = SeenKeys(reading, keys, visible, attentions, torch.zeros(0))
    with _same_kernel(seen, 0), torch.no_grad():
        logits = reading.logits(observers={("call", layer): partial(keep, layer) for layer in layers})
    return seen._replace(before=own_logprobs(logits[0], reading.row.ids))


def lose_keys(seen: SeenKeys, pairs: Tensor, layers: Sequence[int], replacement: Replacement) -> Tensor:
    """Return what each token of an answer loses when some queries do not see some keys, float32 [step] in nat.

    All passes use the same kernel and the same kind of mask, so any difference comes from what is hidden. A pass
    begins at the first query that is concerned: what earlier tokens compute is reused (`Reading.begin_at`), and
    compared with a pass over the same tokens.

    Args:
        pairs: bool [query, key], the pairs that are hidden.
        layers: the layers in which they are, in rising order.
    """
    reading, concerned = seen.reading, pairs & seen.visible
    if replacement.others is not None:
        concerned = concerned & seen.differ(layers, replacement.others)
    if not concerned.any():
        return torch.zeros_like(seen.before)
    start = reading.begin_at(int(pairs.any(1).nonzero()[0]), seen.keys)
    with _same_kernel(seen, start), torch.no_grad():
        before = own_logprobs(reading.unchanged[0], reading.row.ids) if start else seen.before
        logits = reading.logits(_hide(seen, pairs, layers, replacement))
    return before - own_logprobs(logits[0], reading.row.ids)


def _same_kernel(seen: SeenKeys, start: int) -> AbstractContextManager[None]:
    """Within the block, attend as when keys are hidden, without hiding any, from a position on."""
    nothing = torch.zeros_like(seen.visible[start:])
    configs = [seen.reading.model.hf.config.get_text_config()]
    return block_attention(configs, dict.fromkeys(seen.attentions, nothing))


def _hide(seen: SeenKeys, pairs: Tensor, layers: Sequence[int], replacement: Replacement) -> Changes:
    """Return the changes of a pass that begins at the start of the reading."""
    at, pairs = pairs.any(0).nonzero()[:, 0], pairs[seen.reading.start :]
    layers = [layer for layer in layers if layer in seen.keys]
    if replacement.name == "block":
        return {("blocked", layer): pairs for layer in layers}
    changes = {}
    for layer in layers:
        if replacement.name == "counterfactual":
            assert replacement.others is not None
            key, value = (stored[:, :, at] for stored in replacement.others[layer])
            replace = partial(_take_others, key, value)
        else:
            replace = partial(_take_values, seen.average_values(layer)[:, :, at])
        changes["keys", layer] = KeyReplacement(pairs, at, replace)
    return changes


def _take_others(other_key: Tensor, other_value: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return other_key, other_value


def _take_values(other_value: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key, other_value
