"""Arguments of transformers' `generate`, the same for plain answers, traces and methods."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

# Recording and methods rely on these, whatever a checkpoint sets: each answer is one row; the prompt is read
# in one pass, and then one token in each step, with a cache that grows.
_STEPWISE: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "return_dict_in_generate": False,
}


def build_generation_kwargs(model: Model, max_new_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
    """Return the arguments of `generate`: greedy at temperature 0, else sampling from 50 tokens.

    These are the 50 most likely tokens, the default of transformers. The settings of a checkpoint are not
    used: those of one Qwen2-VL sample from a single token, which is greedy.

    Args:
        max_new_tokens: the longest answer.
        temperature: of the sampling; 0 for greedy answers.

    Example:
        >>> build_generation_kwargs(model, 64)["do_sample"]                # doctest: +SKIP
        False
    """
    kwargs: dict[str, Any] = _STEPWISE | {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        kwargs |= {"temperature": temperature, "top_k": 50, "top_p": 1.0}
    else:
        kwargs |= {"temperature": None, "top_p": None, "top_k": None}  # unused, and warned about when set
    if model.hf.generation_config.pad_token_id is None and model.tokenizer.pad_token_id is not None:
        kwargs["pad_token_id"] = model.tokenizer.pad_token_id
    return kwargs


@contextmanager
def use_repetition_penalty(model: Model, penalty: float | None) -> Iterator[None]:
    """Within the block, let a repetition penalty act in place of the checkpoint's. None leaves that.

    The penalty acts in plain answers, in all methods and in their contrast paths, since all read it from the
    model's generation settings.

    Example:
        >>> with use_repetition_penalty(model, 1.0):                       # doctest: +SKIP
        ...     answers = generate_batch(model, samples)
    """
    settings = model.hf.generation_config
    earlier = settings.repetition_penalty
    if penalty is not None:
        settings.repetition_penalty = penalty
    try:
        yield
    finally:
        settings.repetition_penalty = earlier


def settings_in_force(model: Model, temperature: float = 0.0) -> dict[str, Any]:
    """Return the settings of `generate` that differ from its defaults, the checkpoint's and mmprobe's.

    They always include the repetition penalty, 1.0 for none, and never the longest answer.

    Example:
        >>> settings_in_force(model)["repetition_penalty"]                 # doctest: +SKIP
        1.05
    """
    settings = copy.deepcopy(model.hf.generation_config)
    settings.update(**build_generation_kwargs(model, 1, temperature))
    changed = {"repetition_penalty": settings.repetition_penalty or 1.0} | settings.to_diff_dict()
    for name in ("transformers_version", "max_new_tokens", "max_length", "_from_model_config"):
        changed.pop(name, None)
    return json.loads(json.dumps({"do_sample": temperature > 0} | changed, default=str))
