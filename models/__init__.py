"""Loading a model and its processor, building prompts, and telling token groups."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmprobe.models.aliases import Alias, aliases

if TYPE_CHECKING:
    from mmprobe.models.loading import Model, load_model, load_shapes
    from mmprobe.models.prompt import Batch, Group, Prompt

_HOMES = {
    "Model": "mmprobe.models.loading",
    "load_model": "mmprobe.models.loading",
    "load_shapes": "mmprobe.models.loading",
    "Batch": "mmprobe.models.prompt",
    "Group": "mmprobe.models.prompt",
    "Prompt": "mmprobe.models.prompt",
}

__all__ = ["Alias", "Batch", "Group", "Model", "Prompt", "aliases", "load_model", "load_shapes"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:  # torch and transformers take seconds to import; names of models do not need them
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmprobe.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
