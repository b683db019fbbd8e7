"""Find the torch hooks that a user has registered on a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

_READ_ONLY = "transformers.utils.output_capturing"  # its hooks stay after `output_hidden_states=True`


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether torch's hooks may change what a module returns."""
    return _any_foreign(module._forward_hooks) or bool(torch_module._global_forward_hooks)


def has_forward_pre_hooks(module: nn.Module) -> bool:
    """Return whether torch's hooks may change what a module reads."""
    return _any_foreign(module._forward_pre_hooks) or bool(torch_module._global_forward_pre_hooks)


def _any_foreign(hooks: Mapping[int, Callable[..., Any]]) -> bool:
    return any(getattr(hook, "__module__", None) != _READ_ONLY for hook in hooks.values())


def find_hooked_module(root: nn.Module) -> str | None:
    """Return the name of the first module with torch hooks of its own or of all modules, or None.

    Example:
        >>> from torch import nn
        >>> layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> handle = layers[1].register_forward_hook(lambda module, inputs, outputs: outputs + 1)
        >>> find_hooked_module(layers)
        '1'
    """
    for name, module in root.named_modules():
        if has_forward_hooks(module) or has_forward_pre_hooks(module):
            return name or type(module).__name__
    return None


def find_hook_after_norm(hf: Any, norm: nn.Module) -> str | None:
    """Return the name of a module whose torch hooks may act between final norm and logits, or None."""
    names = {module: name for name, module in hf.named_modules()}
    head = hf.get_output_embeddings()
    for module, name in names.items():
        holds_norm = module is not norm and (not name or names[norm].startswith(f"{name}."))
        if (holds_norm or module is head) and has_forward_hooks(module):
            return name or type(module).__name__
        if module is head and has_forward_pre_hooks(module):
            return name
    return None
