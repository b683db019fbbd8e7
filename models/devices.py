"""Where a model's modules compute, when accelerate spreads them over devices or keeps their weights elsewhere.

accelerate replaces `forward` of such modules: their weights arrive when they run, and are on torch's meta device
between two runs. Whoever reads a weight without a run takes it from `read_weight`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from mmprobe.errors import InputError
from mmprobe.models.organisms import PREFIX
from mmprobe.settings import DeviceMap


def check_device_map(name: str, device_map: DeviceMap) -> None:
    """Check that a model can be spread over devices.

    Args:
        name: the model's name.

    Raises:
        InputError: it cannot; the message says why.

    Example:
        >>> check_device_map("qwen2.5-vl-7b", "balanced")
    """
    if device_map is None:
        return
    for place in () if isinstance(device_map, str) else {*device_map.values()} - {"disk"}:
        try:
            torch.empty(0, device=place)
        except (RuntimeError, AssertionError):
            raise InputError(
                f"device map: {place}: not available; choose cpu, disk or a GPU's number"
            ) from None
    if name.startswith(PREFIX):
        raise InputError(f"model {name!r}: its adapter is merged on one device; leave the device map out")
    check_accelerate()


def check_places(hf: nn.Module, device_map: DeviceMap) -> None:
    """Check that a loaded model has the modules that its device map names, and no weights that it does not.

    Raises:
        InputError: naming the module or the weight.

    Example:
        >>> check_places(nn.Linear(2, 3), {"": "cpu"})
    """
    if not isinstance(device_map, Mapping):
        return
    weights = [name for name, _ in hf.named_parameters()]
    known = {*weights, *(name for name, _ in hf.named_modules(remove_duplicate=False))}
    for name in device_map:
        if name not in known:
            raise InputError(f"device map: the model has no module {name!r}")
    for name in weights:
        if not any(not place or f"{name}.".startswith(f"{place}.") for place in device_map):
            raise InputError(f"device map: gives no device for {name}; name it or a module that contains it")


def check_accelerate() -> None:
    """Check that accelerate is installed.

    Raises:
        InputError: it is not.

    Example:
        >>> check_accelerate()
    """
    if find_spec("accelerate") is None:
        raise InputError("several devices need accelerate; install it with: pip install 'mmprobe[hub]'")


def find_device(module: nn.Module) -> torch.device:
    """Return the device that a module computes on: that of accelerate's hook, or else of its first weight.

    It is the meta device for a module without weights.

    Example:
        >>> find_device(nn.Linear(2, 3))
        device(type='cpu')
    """
    hook: Any = getattr(module, "_hf_hook", None)
    for part in getattr(hook, "hooks", [hook]):
        device = getattr(part, "execution_device", None)
        if device is not None:
            return torch.empty(0, device=device).device  # a number is a GPU, and `cuda` the current one
    return next(module.parameters()).device


def has_weights(hf: Any) -> bool:
    """Return whether a model can answer: it was not made by `load_shapes`.

    Example:
        >>> from mmprobe.models import load_shapes
        >>> has_weights(load_shapes("tiny-spd").hf)
        False
    """
    return find_device(hf.get_input_embeddings()).type != "meta"


def read_weight(module: nn.Module, name: str = "weight") -> Any:
    """Return a parameter of a module, or None if it has none, on the device that the module computes on.

    Example:
        >>> read_weight(nn.Linear(2, 3)).shape
        torch.Size([3, 2])
    """
    weight: Tensor | None = getattr(module, name)
    if weight is None or weight.device.type != "meta" or not hasattr(module, "_hf_hook"):
        return weight
    from accelerate.utils import align_module_device

    with align_module_device(module):
        return getattr(module, name)


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module without submodules, with its weights and without accelerate's hook.

    Example:
        >>> copy_module(nn.Linear(2, 3)).weight.shape
        torch.Size([3, 2])
    """
    if not hasattr(module, "_hf_hook"):
        return copy.deepcopy(module)
    from accelerate.utils import align_module_device

    with align_module_device(module):
        plain = copy.copy(module)
        for name in ("_hf_hook", "_old_forward", "forward"):
            del vars(plain)[name]
        return copy.deepcopy(plain)


def is_dispatched(hf: nn.Module) -> bool:
    """Return whether accelerate moves values or weights of some modules when they run.

    Example:
        >>> is_dispatched(nn.Linear(2, 3))
        False
    """
    return any("_hf_hook" in vars(module) for module in hf.modules())  # hasattr takes ten times as long


def check_one_device(hf: nn.Module, what: str) -> None:
    """Check that all modules of a model compute on one device; their weights may be elsewhere between runs.

    Args:
        what: what needs one device, such as "method sage".

    Raises:
        InputError: they compute on several.

    Example:
        >>> check_one_device(nn.Linear(2, 3), "method sage")
    """
    if not is_dispatched(hf):
        return
    devices = sorted({str(find_device(module)) for module in hf.modules() if module._parameters})
    if len(devices) > 1:
        raise InputError(
            f"{what}: the model's layers compute on {' and '.join(devices)}; use a device map with one of them, and "
            "cpu or disk for weights beside it"
        )
