"""The plain method, with which the other methods are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmprobe.interventions.base import Method


@dataclass(frozen=True)
class Plain(Method):
    """The model's own answer."""

    name: ClassVar[str] = "plain"
    reference: ClassVar[str] = "none"

    @property
    def neutral(self) -> bool:
        return True
