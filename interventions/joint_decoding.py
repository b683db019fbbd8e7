"""Read the next token of the answer and of its contrast path in one forward pass.

So the weights are read once for both. Both are in one batch: the answer's rows first, the rows of the
contrast path after them. One joint cache has the keys and values of both. Hooks observe and change
the answer's rows only.

Between the passes each of the two has its own cache again, which is a view of the joint one, so each can
continue alone. The joint cache takes no more memory than the two, except where the prompts' lengths differ: then
the shorter one is padded on the left, and the kernel skips the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mmprobe.models import Model
from mmprobe.models.attention import bias_attention
from mmprobe.models.hooks import Forward, PrimaryRows, hooks_are_disabled, primary_rows, wrap_forward

if TYPE_CHECKING:
    from mmprobe.interventions.contrast import ContrastPath

FEW_ROWS = 2, 3  # whose product with weights takes a CPU longer the other way round
LEAST_WEIGHTS = 100_000  # of a layer, below which calls of torch take most of the time; our choice
# inputs that are not joined row by row
_NOT_BY_ROW = {"past_key_values", "use_cache", "return_dict", "logits_to_keep"}


class JointCache(DynamicCache):
    """Keys and values of the answer's rows followed by those of a contrast path.

    The shorter prompts are padded on the left. The two caches are empty during a joint pass. `empty_sources`
    empties them, and `split_rows` gives them their rows again.

    Args:
        main: cache of the answer.
        contrast: cache of the contrast path.
    """

    def __init__(self, main: DynamicCache, contrast: DynamicCache):
        super().__init__()
        self.sources = _cache_layers(main), _cache_layers(contrast)
        self.n_main_rows = len(self.sources[0][0].keys)
        lengths = main.get_seq_length(), contrast.get_seq_length()
        self.paddings = max(lengths) - lengths[0], max(lengths) - lengths[1]
        for layers in zip(*self.sources, strict=True):
            joint = DynamicLayer()
            joint.lazy_initialization(layers[0].keys, layers[0].values)
            joint.keys = self._pad_and_join([layer.keys for layer in layers])
            joint.values = self._pad_and_join([layer.values for layer in layers])
            self.layers.append(joint)
            for layer in layers:  # layer by layer, so that few keys and values are in memory twice
                layer.keys = layer.values = joint.keys[:0]
        self.split_rows()

    def _pad_and_join(self, values: Sequence[Tensor]) -> Tensor:
        padded = [
            F.pad(value, (0, 0, padding, 0)) for value, padding in zip(values, self.paddings, strict=True)
        ]
        return torch.cat(padded)

    def is_current(self, main: DynamicCache, contrast: DynamicCache) -> bool:
        """Return whether this cache was made of these two, and neither has read a token by itself since."""
        layer_lists = main.layers, contrast.layers
        return all(
            layers is source and source[0].keys is view
            for layers, source, view in zip(layer_lists, self.sources, self.views, strict=True)
        )

    def empty_sources(self) -> None:
        """Empty the two caches; their views would keep the old tensors in memory during the pass."""
        self.views: tuple[Tensor, ...] = ()
        for layer in (layer for layers in self.sources for layer in layers):
            layer.keys = layer.values = None

    def split_rows(self) -> None:
        """Give each of the two caches a view of its own rows."""
        row_slices = slice(None, self.n_main_rows), slice(self.n_main_rows, None)
        for layers, rows, padding in zip(self.sources, row_slices, self.paddings, strict=True):
            for layer, joint in zip(layers, _cache_layers(self), strict=True):
                layer.keys, layer.values = joint.keys[rows, :, padding:], joint.values[rows, :, padding:]
        self.views = tuple(layers[0].keys for layers in self.sources)


def _cache_layers(cache: DynamicCache) -> list[Any]:
    """Return a cache's layers; transformers' types do not say that each has keys and values."""
    return cache.layers


@contextmanager
def decode_jointly(model: Model, find_path: Callable[[], ContrastPath | None]) -> Iterator[None]:
    """Within the block, each forward pass of one more token also reads the next token of the contrast path.

    Some models need more than keys and values of all tokens in their cache, or more inputs at a step than
    tokens, positions and masks. They are left as they are, and their contrast path runs forward passes of its
    own.

    Args:
        model: the model that answers.
        find_path: returns the contrast path, or None as long as there is none.

    Example:
        >>> with decode_jointly(model, lambda: state.contrast_path):             # doctest: +SKIP
        ...     model.hf.generate(**batch.inputs, logits_processor=processors)
    """
    joint: JointCache | None = None

    def wrap(forward: Forward) -> Forward:
        def forward_jointly(*args: Any, **inputs: Any) -> Any:
            nonlocal joint
            path = find_path()
            if args or path is None or hooks_are_disabled() or not _can_join(inputs, path):
                return forward(*args, **inputs)
            main = inputs["past_key_values"]
            if joint is None or not joint.is_current(main, path.cache):
                joint = JointCache(main, path.cache)
            return _joint_pass(forward, inputs, path, joint)

        return forward_jointly

    with (
        bias_attention([model.hf.config.get_text_config()], {}),
        _weights_first(model.hf),
        wrap_forward(model.hf, wrap),
    ):
        yield


@contextmanager
def _weights_first(hf: nn.Module) -> Iterator[None]:
    """Within the block, multiply two or three tokens with large weights on a CPU as weights times tokens.

    The results are equal up to rounding. MKL reads the weights once for each token where tokens are multiplied with weights, as torch does.
    With one thread and 49,153 x 576 weights, this takes 22 ms for two tokens, and the other order 5.5 ms; with 18,944 x 3,584 weights, 34
    and 27 ms. Four tokens or more gain nothing.
    """

    def wrap(layer: nn.Linear, forward: Forward) -> Forward:
        def multiply(input: Tensor) -> Tensor:
            rows = input.shape[:-1]
            if rows.numel() not in FEW_ROWS:
                return forward(input)
            product = (
                (layer.weight @ input.reshape(-1, layer.in_features).T).T.contiguous().reshape(*rows, -1)
            )
            return product if layer.bias is None else product + layer.bias

        return multiply

    with ExitStack() as stack:
        for layer in hf.modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= LEAST_WEIGHTS:
                weight = layer.weight
                is_plain = type(weight) is nn.Parameter and weight.dtype == torch.float32
                if is_plain and weight.device.type == "cpu":
                    stack.enter_context(wrap_forward(layer, partial(wrap, layer)))
        yield


def _can_join(inputs: dict[str, Any], path: ContrastPath) -> bool:
    """Return whether a pass reads one token on plain caches, with no other inputs than tensors by row."""
    ids, positions = inputs.get("input_ids"), inputs.get("position_ids")
    if ids is None or positions is None or ids.shape[1] != 1 or not path.n_read:
        return False
    for cache in (inputs.get("past_key_values"), path.cache):
        if type(cache) is not DynamicCache or not cache.layers:
            return False
        if not all(type(layer) is DynamicLayer and layer.is_initialized for layer in cache.layers):
            return False
    others = (value for name, value in inputs.items() if name not in (*_NOT_BY_ROW, "position_ids"))
    return all(
        value is None or (isinstance(value, Tensor) and value.ndim == 2 and len(value) == len(ids))
        for value in others
    )


def _joint_pass(forward: Forward, inputs: dict[str, Any], path: ContrastPath, cache: JointCache) -> Any:
    """Run one forward pass over the rows of both, and return transformers' outputs of the answer's rows."""
    main_cache = inputs["past_key_values"]
    path_inputs = path.prepare_token(inputs["input_ids"])
    joint = inputs | {"past_key_values": cache}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and name != "attention_mask":
            joint[name] = _join_rows(value, path_inputs[name])
    mask = _join_masks(inputs, path_inputs, cache)
    if mask is not None:
        joint["attention_mask"] = mask
    cache.empty_sources()
    with primary_rows(PrimaryRows(cache.n_main_rows, cache.paddings)):
        outputs = forward(**joint)
    cache.split_rows()
    outputs.past_key_values = path.cache
    path.record_outputs(outputs, outputs.logits[cache.n_main_rows :])
    outputs.past_key_values, outputs.logits = main_cache, outputs.logits[: cache.n_main_rows]
    return outputs


def _join_rows(main: Tensor, contrast: Tensor) -> Tensor:
    """Return the tokens or positions of both, [..., row, token].

    After a shared prefix, M-RoPE's positions come once for all of its dimensions.
    """
    dims = torch.broadcast_shapes(main.shape[:-2], contrast.shape[:-2])
    return torch.cat([each.expand(*dims, -1, -1) for each in (main, contrast)], -2)


def _join_masks(inputs: dict[str, Any], path_inputs: dict[str, Any], cache: JointCache) -> Tensor | None:
    """Return the attention mask of the rows of both, [row, key]; None if neither has one."""
    masks = [inputs.get("attention_mask"), path_inputs.get("attention_mask")]
    if all(mask is None for mask in masks):
        return None
    length = cache.get_seq_length() + 1
    padded = []
    for mask, padding in zip(masks, cache.paddings, strict=True):
        if mask is None:
            mask = path_inputs["input_ids"].new_ones(cache.n_main_rows, length - padding)
        padded.append(F.pad(mask, (padding, 0)))
    return torch.cat(padded)
