"""How `generate` is asked, the same wherever a model answers: plain, traced, or with a method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

# What recording and methods rest on, whatever a checkpoint asks for: one row an answer, all of the prompt in one pass,
# then one token a step behind a cache that grows.
_ONE_BY_ONE: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "return_dict_in_generate": False,
}


def check_generation(max_new_tokens: int, temperature: float, seed: int) -> None:
    """Check what every way of answering is asked for.

    Raises:
        InputError: naming the option.

    Example:
        >>> check_generation(64, 0.7, 0)
    """
    if max_new_tokens < 1:
        raise InputError(f"--max-new-tokens {max_new_tokens}: must be 1 or more")
    if not 0 <= temperature < math.inf:
        raise InputError(f"--temperature {temperature}: must be a number of 0 or more")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: must be 0 or more, and less than 2 to the power of 63")


def generate_options(model: Model, max_new_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
    """Options of transformers' `generate`: greedy at temperature 0, above it sampling from the 50 most likely tokens.

    These 50 are transformers' default. What checkpoints bring along can make sampling greedy: one of Qwen2-VL's keeps
    a single token. Nor do their beams and caches count.

    Example:
        >>> generate_options(model, 64)["do_sample"]                # doctest: +SKIP
        False
    """
    options: dict[str, Any] = _ONE_BY_ONE | {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 50, "top_p": 1.0}
    else:
        options |= {"temperature": None, "top_p": None, "top_k": None}  # unused, and warned about when set
    if model.hf.generation_config.pad_token_id is None and model.tokenizer.pad_token_id is not None:
        options["pad_token_id"] = model.tokenizer.pad_token_id
    return options
