"""Decode answers with compiled layers: a cache of fixed size, and one call a token in place of a call an operation.

It is for answers that nothing looks at or changes while they are decoded. Their traces are read afterwards, by the model as it
is. Each process compiles anew. So it pays where there are many tokens to decode, and where calls take most of the time, as on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import CompileConfig, DynamicCache, StaticCache

from mmprobe.errors import option
from mmprobe.models.devices import is_dispatched
from mmprobe.models.hooks import Forward, find_hooked_module, wrap_forward
from mmprobe.models.loading import Model
from mmprobe.settings import AskSettings

log = logging.getLogger("mmprobe")

LENGTHS = 256
"""A cache has a multiple of so many tokens, so that prompts of many lengths share one compiled call."""


def _why_not_compiled(model: Model, methods: Sequence[str] = ()) -> str | None:
    """Return why a model's answers are decoded without being compiled, or None if they are compiled.

    Args:
        methods: names of the methods that act while it decodes.

    Example:
        >>> from mmprobe.models import load_model
        >>> _why_not_compiled(load_model("tiny-spd")) is None, _why_not_compiled(load_model("tiny-spd"), ["vcd"])
        (True, 'method vcd acts on each step')
    """
    if methods:
        return f"method {methods[0]} acts on each step"
    if hooked := find_hooked_module(model.hf):
        return f"the torch hook on {hooked} acts on each step"
    if not getattr(model.hf, "_can_compile_fullgraph", False):
        return f"transformers cannot compile {model.family.name}"
    if model.family.answers_by:
        return f"{model.family.name} answers with its language model alone"
    kinds = set(getattr(model.hf.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"a cache of fixed size forgets keys of {', '.join(sorted(kinds - {'full_attention'}))}"
    if model.has_cross_attention:
        return "the cache has the images' keys beside those of the tokens"
    if is_dispatched(model.hf):
        return "its layers are on several devices"
    quantizer = getattr(model.hf, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_compileable:
        return f"weights in {model.settings.load_in} cannot be compiled"
    return None


def say_compiled(
    model: Model, settings: AskSettings, methods: Sequence[str] = (), otherwise: str = ""
) -> dict[str, Any]:
    """Return what a run records of `compile`, nothing where it is not asked for; warn where answers are not compiled.

    Args:
        methods: names of those that act while the model decodes.
        otherwise: why answers are not compiled, if something else than the model and the methods is the reason.

    Returns:
        `{"compile": True}`, or the reason in its place.
    """
    if not settings.compile:
        return {}
    reason = otherwise or _why_not_compiled(model, methods)
    if reason is not None:
        log.warning("%s: answers are not compiled: %s", option("compile"), reason)
    return {"compile": reason or True}


class _Decoder:
    """The compiled forward of one model, and the cache that it was compiled for.

    Attributes:
        rows: of the newest batch.
        works: whether compiling has not failed.
    """

    def __init__(self, model: Model):
        config = model.hf.generation_config.compile_config or CompileConfig()
        self.forward: Forward = torch.compile(model.hf.base_model.forward, **config.to_dict())
        self.cache: StaticCache | None = None
        self.rows = self.cached_rows = self.length = 0
        self.works = True

    def begin(self, model: Model, rows: int, length: int) -> StaticCache:
        """Return an empty cache for so many tokens: that of the batch before, where it is large enough."""
        if self.cache is None or rows != self.cached_rows or length > self.length:
            self.length = max(self.length, -(-length // LENGTHS) * LENGTHS)
            self.cache = StaticCache(model.hf.config.get_text_config(decoder=True), max_cache_len=self.length)
        self.cache.reset()
        self.rows = self.cached_rows = rows
        return self.cache


_decoders: WeakKeyDictionary[nn.Module, _Decoder] = WeakKeyDictionary()


@contextmanager
def use_compiled(
    model: Model, inputs: Mapping[str, Any], options: Mapping[str, Any], compiled: bool = True
) -> Iterator[dict[str, Any]]:
    """Within the block, let `generate` decode with compiled layers; yield its arguments.

    A batch of fewer rows than the one before is decoded as ever, since each number of rows is compiled by itself; the next one
    of this number is compiled. Prompts are read as ever.

    Args:
        inputs: of `generate`; what is in their cache is copied.
        options: the other arguments of `generate`.
        compiled: False to decode as ever.

    Example:
        >>> with use_compiled(model, inputs, {"max_new_tokens": 64}) as arguments:  # doctest: +SKIP
        ...     ids = model.hf.generate(**arguments)
    """
    arguments = {**inputs, **options}
    if not compiled or _why_not_compiled(model):
        yield arguments
        return
    if (decoder := _decoders.get(model.hf)) is None:
        decoder = _decoders[model.hf] = _Decoder(model)
    rows, tokens = inputs["input_ids"].shape
    if not decoder.works or rows < decoder.rows:
        decoder.rows = rows
        yield arguments
        return
    cache = decoder.begin(model, rows, tokens + options["max_new_tokens"])
    known = inputs.get("past_key_values")
    for number, layer in enumerate(known.layers if known is not None else ()):
        cache.update(layer.keys, layer.values, number)

    def choose(forward: Forward) -> Forward:
        passes = count()

        def decode(*args: Any, **options: Any) -> Any:
            if not next(passes) or not decoder.works:  # the first pass reads the prompts
                return forward(*args, **options)
            try:
                return decoder.forward(*args, **options)
            except torch._dynamo.exc.TorchDynamoException as error:  # nothing was computed yet
                decoder.works = False
                reason = " ".join(str(error).split("\n")[:2])
                log.warning("answers are not compiled: %s: %s", type(error).__name__, reason)
                return forward(*args, **options)

        return decode

    with wrap_forward(model.hf.base_model, choose):
        yield arguments | {"past_key_values": cache, "disable_compile": True}


def to_dynamic(cache: StaticCache, length: int) -> DynamicCache:
    """Return the first tokens of a cache of fixed size as one that grows and can be cut back.

    Args:
        length: number of tokens.
    """
    grown = DynamicCache()
    layers: list[Any] = cache.layers
    for number, layer in enumerate(layers):
        grown.update(layer.keys[:, :, :length], layer.values[:, :, :length], number)
    return grown
