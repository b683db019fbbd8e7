"""What a run will need, before it is made: disk, memory, time."""

from __future__ import annotations

import numpy as np

from mmprobe.cache.schema import GROUP_NAMES, VARIABLES
from mmprobe.models import Model
from mmprobe.traces.capture import CaptureSpec


def data_bytes(
    model: Model, spec: CaptureSpec, prompt_tokens: int, visual_tokens: int, user_tokens: int, new_tokens: int
) -> int:
    """Bytes of all data sets of one trace.

    Args:
        prompt_tokens: all tokens of the prompt, of which so many are visual and so many the user's.
    """
    config = model.hf.config.get_text_config()
    sizes = {
        "step": new_tokens,
        "layer": len(spec.layer_indices(model.layer_count)),
        "head": len(spec.head_indices(model.head_count)),
        "group": len(GROUP_NAMES),
        "visual": visual_tokens,
        "user_token": user_tokens,
        "token": prompt_tokens + new_tokens,
        "position": prompt_tokens,
        "key": prompt_tokens,
        "hidden": config.hidden_size,
        "neuron": model.neuron_count,
        "neuron_byte": -(-model.neuron_count // 8),
        "patch": 4 * visual_tokens,
        "place": 3,
    }
    vision = model.hf.config.vision_config if spec.wants("vision/") else None
    if vision is not None and model.family.vision is not None:
        sizes |= {
            "vision_layer": len(list(model.family.vision.layers(model.hf))),
            "vision_head": getattr(vision, "num_heads", None) or vision.num_attention_heads,
            "vision_hidden": vision.hidden_size,
        }
    total = 0
    for name in spec.stored:
        variable = VARIABLES[name]
        single = (variable.dtype, spec.dtype) == ("f2", "float32")
        itemsize = 4 if single else np.dtype(variable.dtype).itemsize
        total += itemsize * int(np.prod([sizes[dim] for dim in variable.dims], dtype=object))
    return total


def most_bytes(model: Model, spec: CaptureSpec, max_new_tokens: int) -> int:
    """The most that one trace takes if no prompt is longer than 1,024 tokens, all of them visual."""
    return 64 * 1024 + data_bytes(model, spec, 1024, 1024, 64, max_new_tokens)
