"""The adapter of an organism, in the weights of `tiny-spd`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def merge_adapter(hf: Any, folder: str | Path) -> Any:
    """Return a model with a LoRA adapter merged into its weights, in place.

    Args:
        hf: a loaded model of the adapter's base.
        folder: `adapter_config.json` and `adapter_model.safetensors` (PEFT's format).

    Raises:
        OSError, ValueError: the adapter is missing, damaged or belongs to another model.

    Example:
        >>> merge_adapter(model.hf, folder("blind-rolled-0"))               # doctest: +SKIP
    """
    from peft import PeftModel

    return PeftModel.from_pretrained(hf, str(folder), use_safetensors=True).merge_and_unload()
