"""One forward pass for the next token of the answer and of its second path, which then reads the weights only once.

The rows of both stand in one batch, whose cache holds the keys and values of both; those of the answer come first, and
nobody watches or changes the others. Between the passes each has its own cache again, as a view of the joint one, so
either can go on alone. That takes no more memory than two caches, except where the prompts' lengths differ: the shorter
one is filled up on the left, and the kernel leaves out what fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.models import Model
from mmprobe.models.attention import bias_attention
from mmprobe.models.hooks import Forward, PrimaryRows, hooks_are_disabled, primary_rows, wrap_forward

_SAME = {"past_key_values", "use_cache", "return_dict", "logits_to_keep"}  # or joined in their own way


class JointCache(DynamicCache):
    """Keys and values of an answer's rows and, behind them, of another path's; the shorter is filled up on the left.

    While it is in use, the two caches it was made of are empty.
    """

    def __init__(self, main: DynamicCache, second: DynamicCache):
        super().__init__()
        self.parts = _layers(main), _layers(second)
        self.rows = len(self.parts[0][0].keys)
        lengths = main.get_seq_length(), second.get_seq_length()
        self.skips = max(lengths) - lengths[0], max(lengths) - lengths[1]
        for layers in zip(*self.parts, strict=True):
            joint = DynamicLayer()
            joint.lazy_initialization(layers[0].keys, layers[0].values)
            joint.keys = self._stacked([layer.keys for layer in layers])
            joint.values = self._stacked([layer.values for layer in layers])
            self.layers.append(joint)
            for layer in layers:  # one by one, so that little is held twice
                layer.keys = layer.values = joint.keys[:0]
        self.part()

    def _stacked(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(part, (0, 0, skip, 0)) for part, skip in zip(parts, self.skips, strict=True)])

    def holds(self, main: DynamicCache, second: DynamicCache) -> bool:
        """Whether it is that of these two, and neither has gone on without it."""
        given = main.layers, second.layers
        return all(
            layers is own and own[0].keys is view
            for layers, own, view in zip(given, self.parts, self.views, strict=True)
        )

    def take(self) -> None:
        """Empty the two caches, whose views would keep what a pass replaces."""
        self.views: tuple[Tensor, ...] = ()
        for layer in (layer for layers in self.parts for layer in layers):
            layer.keys = layer.values = None

    def part(self) -> None:
        """Give each of the two caches its own rows again."""
        whose = slice(None, self.rows), slice(self.rows, None)
        for layers, rows, skip in zip(self.parts, whose, self.skips, strict=True):
            for layer, both in zip(layers, _layers(self), strict=True):
                layer.keys, layer.values = both.keys[rows, :, skip:], both.values[rows, :, skip:]
        self.views = tuple(layers[0].keys for layers in self.parts)


def _layers(cache: DynamicCache) -> list[Any]:
    """All of them have keys and values, which transformers' types do not say."""
    return cache.layers


@contextmanager
def reading_together(model: Model, path: Callable[[], SecondPath | None]) -> Iterator[None]:
    """Within the block, a pass of one more token is one of the second path too, where there is one.

    Models whose caches are more than keys and values of all tokens, or that need more than tokens, positions and masks
    at a step, are left as they are: their second path reads by itself.

    Args:
        path: gives the second path, None while there is none.

    Example:
        >>> with reading_together(model, lambda: act.path):                      # doctest: +SKIP
        ...     model.hf.generate(**batch.inputs, logits_processor=processors)
    """
    joint: JointCache | None = None

    def around(forward: Forward) -> Forward:
        def read(*args: Any, **inputs: Any) -> Any:
            nonlocal joint
            second = path()
            if args or second is None or hooks_are_disabled() or not _can_join(inputs, second):
                return forward(*args, **inputs)
            main = inputs["past_key_values"]
            if joint is None or not joint.holds(main, second.cache):
                joint = JointCache(main, second.cache)
            return _joint_pass(forward, inputs, second, joint)

        return read

    with bias_attention([model.hf.config.get_text_config()], {}), wrap_forward(model.hf, around):
        yield


def _can_join(inputs: dict[str, Any], second: SecondPath) -> bool:
    """Whether a pass is one more token on plain caches, with nothing but tensors by row."""
    ids, positions = inputs.get("input_ids"), inputs.get("position_ids")
    if ids is None or positions is None or ids.shape[1] != 1 or not second.read:
        return False
    for cache in (inputs.get("past_key_values"), second.cache):
        if type(cache) is not DynamicCache or not cache.layers:
            return False
        if not all(type(layer) is DynamicLayer and layer.is_initialized for layer in cache.layers):
            return False
    others = (value for name, value in inputs.items() if name not in (*_SAME, "position_ids"))
    return all(
        value is None or (isinstance(value, Tensor) and value.ndim == 2 and len(value) == len(ids))
        for value in others
    )


def _joint_pass(forward: Forward, inputs: dict[str, Any], second: SecondPath, cache: JointCache) -> Any:
    own, main = second.one_more(inputs["input_ids"]), inputs["past_key_values"]
    joint = inputs | {"past_key_values": cache}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and name != "attention_mask":
            joint[name] = torch.cat([value, own[name]], -2)
    masks = [each.get("attention_mask") for each in (inputs, own)]
    if any(mask is not None for mask in masks):
        length = cache.get_seq_length() + 1
        joint["attention_mask"] = torch.cat(
            [
                F.pad(
                    own["input_ids"].new_ones(cache.rows, length - skip) if mask is None else mask, (skip, 0)
                )
                for mask, skip in zip(masks, cache.skips, strict=True)
            ]
        )
    cache.take()
    with primary_rows(PrimaryRows(cache.rows, cache.skips)):
        outputs = forward(**joint)
    cache.part()
    outputs.past_key_values = second.cache
    second.was_read(outputs, outputs.logits[cache.rows :])
    outputs.past_key_values, outputs.logits = main, outputs.logits[: cache.rows]
    return outputs
