"""Read what questions about the same images have in common once: one vision pass, one prefill.

A prompt's keys and values depend on the tokens before them only. So prompts with the same images and system prompt
share those of their common beginning. It is read on its own, up to the first token of the question, and every
question continues from a copy.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.hooks import find_hooked_module, observe
from mmprobe.models.loading import Model
from mmprobe.models.prompt import Batch, Chat, Group, Prompt, build_batch
from mmprobe.samples import Sample

MAX_BYTES = 2**30  # of all kept prefixes; our choice
MOST_PREFIXES = (
    32  # kept at a time; batches with the same images follow each other, so older ones serve nobody
)
OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")  # one value a token
PrefixKey = tuple[Any, ...]


def prefix_key(sample: Sample) -> PrefixKey:
    """Return what is equal for samples that show the same images under the same system prompt.

    Of a conversation, it is all up to the last image. Samples without images share with no other.

    Example:
        >>> prefix_key(Sample(id="a", question="Why?")) == prefix_key(Sample(id="b", question="Why?"))
        False
    """
    if not sample.images:
        return (sample.id,)
    parts = [(turn.role, part.text) for turn in sample.messages for part in turn.content]
    last = max((place for place, (_, text) in enumerate(parts) if text is None), default=-1)
    return (
        tuple(sample.images),
        sample.system,
        *parts[: last + 1],
        json.dumps(sample.template, sort_keys=True),
    )


def repeated_keys(samples: Iterable[Sample]) -> frozenset[PrefixKey]:
    """Return the keys that several samples have.

    Example:
        >>> repeated_keys([Sample(id="a", question="Why?")])
        frozenset()
    """
    counts = Counter(map(prefix_key, samples))
    return frozenset(key for key, count in counts.items() if count > 1)


def sort_by_images(batches: Sequence[list[Sample]]) -> list[list[Sample]]:
    """Return batches so that those whose first samples have the same key follow each other."""
    groups: dict[PrefixKey, list[list[Sample]]] = {}
    for batch in batches:
        groups.setdefault(prefix_key(batch[0]), []).append(batch)
    return [batch for group in groups.values() for batch in group]


def why_not_shared(model: Model) -> str | None:
    """Return why prompts of a model are read whole, or None if they can share prefixes.

    Example:
        >>> from mmprobe.models import load_model
        >>> why_not_shared(load_model("tiny-spd")) is None
        True
    """
    if not model.family.shares_prefixes:
        return f"{model.family.name} is not known to have causal attention over one growing cache"
    config = model.hf.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        kinds = ["sliding_attention"]
    if kinds is not None and set(kinds) != {"full_attention"}:
        return f"this {model.family.name} has layers of {', '.join(sorted(set(kinds)))}"
    if hooked := find_hooked_module(model.hf):
        return f"the torch hook on {hooked} may expect whole prompts"
    return None


def prefix_bytes(model: Model, n_tokens: float, keeps_states: bool = True) -> int:
    """Return the bytes of one kept prefix.

    Args:
        n_tokens: number of its tokens.
        keeps_states: whether the states that the unembedding reads are kept, too.
    """
    config = model.hf.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = 2 * model.n_layers * config.num_key_value_heads * head_dim + keeps_states * config.hidden_size
    return int(n_tokens * values * model.hf.dtype.itemsize)


@dataclass(frozen=True)
class Prefix:
    """A beginning that prompts have in common, as the model has read it.

    Attributes:
        ids: token ids, int32 [token].
        keys, values: by layer, [1, kv_head, token, dim].
        states: the states that the unembedding reads, [1, token, hidden]; None where nobody needs them.
        rope_delta: what M-RoPE adds to the positions of later tokens, [1, 1]; None in other models.
    """

    ids: np.ndarray
    keys: list[Tensor]
    values: list[Tensor]
    states: Tensor | None
    rope_delta: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        states = [] if self.states is None else [self.states]
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *states))

    def common_part(self, prompt: Prompt) -> Prefix | None:
        """Return the part that a prompt begins with, or None if that part lacks some of the visual tokens."""
        length = min(len(self.ids), len(prompt.ids) - 1)  # one token at least is read anew
        differs = np.flatnonzero(self.ids[:length] != prompt.ids[:length])
        length = int(differs[0]) if len(differs) else length
        if length <= prompt.visual_positions[-1]:
            return None
        keys, values = ([each[:, :, :length] for each in layers] for layers in (self.keys, self.values))
        states = None if self.states is None else self.states[:, :length]
        return Prefix(self.ids[:length], keys, values, states, self.rope_delta)


class SharedStart(NamedTuple):
    """Where `generate` starts for a batch.

    Attributes:
        inputs: for `generate`, with the cache of the first columns of the padded prompts.
        states: the states that the unembedding reads at these columns, [batch, column, hidden], or None.
        store: where the beginnings of the rows are kept.
        keys: the key of each row in it.
        beginnings: what each row has in common with others.
    """

    inputs: dict[str, Any]
    states: Tensor | None
    store: PrefixStore
    keys: Sequence[PrefixKey]
    beginnings: Sequence[Prefix]


class PrefixStore:
    """The prefixes of the newest groups of samples with the same images.

    Args:
        repeated: keys that several samples have (`repeated_keys`). Other samples are read whole.
        keeps_states: whether to keep the states that the unembedding reads.
        max_bytes: of all kept prefixes. A prompt whose prefix is larger is read whole.
    """

    def __init__(
        self,
        model: Model,
        repeated: frozenset[PrefixKey],
        keeps_states: bool,
        max_bytes: int = MAX_BYTES,
    ):
        self.model, self.repeated, self.keeps_states, self.max_bytes = (
            model,
            repeated,
            keeps_states,
            max_bytes,
        )
        self.prefixes: OrderedDict[PrefixKey, Prefix] = OrderedDict()

    def start(self, keys: Sequence[PrefixKey], chats: Sequence[Chat], batch: Batch) -> SharedStart | None:
        """Return where to continue a batch from its prefixes, or None if it has to be read whole.

        It depends on the batch and on `repeated` only, not on what is in the store.

        Args:
            keys: `prefix_key` of each row's sample.
        """
        if not self.repeated.issuperset(keys) or why_not_shared(self.model):
            return None
        load = (lambda: batch.inputs) if len(chats) == 1 else None
        found = [self.find(*row, load) for row in zip(keys, chats, batch.prompts, strict=True)]
        beginnings = [each for each in found if each is not None]
        if len(beginnings) < len(found):
            return None
        cache, states = begin_batch(self.model, batch, beginnings, self.keeps_states)
        inputs = {name: value for name, value in batch.inputs.items() if name in OF_TOKENS}
        return SharedStart(inputs | {"past_key_values": cache}, states, self, keys, beginnings)

    def find(
        self,
        key: PrefixKey,
        chat: Chat,
        prompt: Prompt,
        load: Callable[[], Mapping[str, Any]] | None = None,
        keeps_states: bool | None = None,
    ) -> Prefix | None:
        """Return the beginning of a prompt from the store, or read and keep it; None if it is too large.

        Args:
            key: equal for chats with the same images and system prompt.
            load: returns the inputs of this chat alone; None to build them.
            keeps_states: whether to keep the states that the unembedding reads, if not as the store does. It is the
                same for all chats of a key.
        """
        keeps_states = self.keeps_states if keeps_states is None else keeps_states
        length = _prefix_length(prompt)
        if prefix_bytes(self.model, length, keeps_states) > self.max_bytes:
            return None
        if key not in self.prefixes:
            alone = build_batch(self.model, [chat]).inputs if load is None else load()
            inputs = {name: _cut(name, value, 0, 0, length) for name, value in alone.items()}
            self._keep(key, read_tokens(self.model, inputs, prompt, None, keeps_states))
        self.prefixes.move_to_end(key)
        return self.prefixes[key].common_part(prompt)

    def _keep(self, key: PrefixKey, prefix: Prefix) -> None:
        """Keep a prefix, and forget the oldest ones that exceed the memory."""
        self.prefixes[key] = prefix
        while (
            len(self.prefixes) > MOST_PREFIXES
            or sum(each.nbytes for each in self.prefixes.values()) > self.max_bytes
        ):
            self.prefixes.popitem(last=False)


def _prefix_length(prompt: Prompt) -> int:
    """Return the number of tokens before the question: the user's first token after all images."""
    end = int(prompt.visual_positions[-1]) + 1
    questions = np.flatnonzero(prompt.group[end:] == Group.USER)
    return end + int(questions[0]) if len(questions) else end


def _cut(name: str, value: Any, row: int, first: int, end: int) -> Any:
    """Return some tokens of one row, and values that are not per token unchanged."""
    return value[row : row + 1, first:end] if name in OF_TOKENS else value


def read_tokens(
    model: Model, inputs: Mapping[str, Any], prompt: Prompt, before: Prefix | None, keeps_states: bool
) -> Prefix:
    """Read tokens from the beginning of a prompt on.

    Args:
        inputs: of the tokens, with the images unless `before` includes them.
        prompt: the prompt that begins with these tokens.
        before: what was read of them already.
        keeps_states: whether to keep the states that the unembedding reads.
    """
    states = [before.states] if keeps_states and before is not None and before.states is not None else []
    cache = DynamicCache() if before is None else build_cache(model, [before], [0])
    observed = (
        observe(model.family.final_norm(model.hf), outputs=states.append) if keeps_states else nullcontext()
    )
    with torch.inference_mode(), observed:
        model.hf.generate(**inputs, **build_generation_kwargs(model, 1), past_key_values=cache)
    layers: Sequence[Any] = cache.layers
    return Prefix(
        prompt.ids[: inputs["input_ids"].shape[1]],
        [layer.keys for layer in layers],
        [layer.values for layer in layers],
        torch.cat(states, 1) if states else None,
        getattr(model.hf.model, "rope_deltas", None) if before is None else before.rope_delta,
    )


def begin_batch(
    model: Model, batch: Batch, beginnings: Sequence[Prefix], keeps_states: bool
) -> tuple[DynamicCache, Tensor | None]:
    """Return a cache of the first columns of a batch, given the beginning of each row, and the states there.

    The question of a single row is left to read. Several rows have questions of different lengths, so each is read
    up to its last token.

    Returns:
        The cache; the states that the unembedding reads, [batch, column, hidden], or None where nobody needs them.
    """
    if len(beginnings) > 1:
        beginnings = [
            _read_rest(model, batch, row, part, keeps_states) for row, part in enumerate(beginnings)
        ]
    paddings = [prompt.padding for prompt in batch.prompts]
    cache = build_cache(model, beginnings, paddings)
    states = [each.states for each in beginnings if keeps_states and each.states is not None]
    return cache, _pad(states, paddings) if states else None


def _read_rest(model: Model, batch: Batch, row: int, part: Prefix, keeps_states: bool) -> Prefix:
    """Return a row's prompt up to its last token, given its beginning."""
    prompt = batch.prompts[row]
    if len(part.ids) == len(prompt.ids) - 1:
        return part
    inputs = {
        name: _cut(name, value, row, prompt.padding, -1)
        for name, value in batch.inputs.items()
        if name in OF_TOKENS
    }
    return read_tokens(model, inputs, prompt, part, keeps_states)


def build_cache(model: Model, prefixes: Sequence[Prefix], paddings: Sequence[int]) -> DynamicCache:
    """Return a cache with a prefix a row, and let the model place later tokens after it."""
    cache = DynamicCache()
    for layer in range(len(prefixes[0].keys)):
        keys, values = ([getattr(each, name)[layer] for each in prefixes] for name in ("keys", "values"))
        cache.update(_pad(keys, paddings), _pad(values, paddings), layer)
    deltas = [prefix.rope_delta for prefix in prefixes if prefix.rope_delta is not None]
    if deltas:  # `generate` adds it to the positions of the tokens that are not in the cache
        model.hf.model.rope_deltas = torch.cat(deltas)
    return cache


def _pad(parts: Sequence[Tensor], paddings: Sequence[int]) -> Tensor:
    """Join tensors [1, ..., token, feature], each after its row's padding."""
    if not any(paddings):
        return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    pairs = zip(parts, paddings, strict=True)
    return torch.cat([torch.nn.functional.pad(part, (0, 0, padding, 0)) for part, padding in pairs])
