"""Decoding-time methods against unfaithful answers, on any model that can be traced."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmprobe.interventions.registry import load_method, load_methods, method_names

if TYPE_CHECKING:
    from mmprobe.interventions.answer import Generated, generate, generate_batch
    from mmprobe.interventions.base import Method, intervening

_HOMES = {
    "Method": "base",
    "intervening": "base",
    "Generated": "answer",
    "generate": "answer",
    "generate_batch": "answer",
}

__all__ = [
    "Generated",
    "Method",
    "generate",
    "generate_batch",
    "intervening",
    "load_method",
    "load_methods",
    "method_names",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:  # torch and transformers take seconds to import; names of methods do not need them
        return getattr(import_module(f"mmprobe.interventions.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mmprobe.interventions' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
