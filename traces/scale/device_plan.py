"""Predict what of a model lies on which device, from shapes alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.devices import check_accelerate


def read_memories(text: str) -> list[int]:
    """Return the bytes of each GPU: `24GB,24GB`, or what is free on those of this machine for `auto`.

    Raises:
        InputError: a size cannot be read, or no GPU is found.

    Example:
        >>> read_memories("24GB,512MB")
        [24000000000, 512000000]
    """
    check_accelerate()
    from accelerate.utils import convert_file_size_to_int

    if text != "auto":
        try:
            return [convert_file_size_to_int(size.strip()) for size in text.split(",")]
        except ValueError:
            raise InputError(
                f"--devices {text}: give the memory of each GPU, such as 24GB,24GB, or auto"
            ) from None
    found = [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    if not found:
        raise InputError("--devices auto: finds no GPU here; give the memory of each, such as 24GB,24GB")
    return found


def plan_devices(model: Model, memories: Sequence[int], working: int = 0) -> dict[str, int]:
    """Predict the bytes of weights on each device with `device_map="auto"`, by accelerate.

    Args:
        model: the model; it may be on the meta device, without weights.
        memories: bytes of each GPU.
        working: bytes to keep free on each GPU for the run itself.

    Returns:
        Bytes by `cuda:0`, `cuda:1`, …, and `cpu` for what no GPU has room for. Their sum is the model's size.

    Example:
        >>> from mmprobe.models import load_shapes
        >>> plan_devices(load_shapes("tiny-spd", device="cpu"), [10**9])
        {'cuda:0': 18071552, 'cpu': 0}
    """
    from accelerate.utils import get_balanced_memory, infer_auto_device_map

    weights = sum(weight.nbytes for weight in model.hf.parameters())
    room: dict[int | str, int | str] = {
        number: max(memory - working, 0) for number, memory in enumerate(memories)
    }
    room["cpu"] = 2 * weights
    whole = model.hf._no_split_modules
    log = logging.getLogger("accelerate.utils.modeling")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of GPUs that this machine lacks
    try:
        balanced = get_balanced_memory(model.hf, dict(room), no_split_module_classes=whole)
        places = infer_auto_device_map(model.hf, balanced, no_split_module_classes=whole)
    finally:
        log.setLevel(level)
    sizes = {f"cuda:{number}": 0 for number in range(len(memories))} | {"cpu": 0}
    for name, weight in model.hf.named_parameters():
        while name not in places:
            name = name.rpartition(".")[0]
        place = places[name]
        sizes[f"cuda:{place}" if isinstance(place, int) else str(place)] += weight.nbytes
    return sizes
