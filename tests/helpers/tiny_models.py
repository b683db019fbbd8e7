"""Tiny random models of all families, by name."""

from __future__ import annotations

from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import TINY_TILES
from helpers.tiny_types import build_type, list_tiny_types

from mmprobe.models import Model
from mmprobe.models.families import find_family

TINY_BUILDERS = TINY_PATCHES | TINY_TILES
"""Models that need no package beside mmprobe's, which many tests use."""
TINY_NAMES = sorted({*TINY_BUILDERS, *list_tiny_types()})
"""All models. The processors of some need torchvision or timm, which `make families` installs."""


def load_tiny_model(name: str) -> Model:
    """Return a new model of the family, with its processor. The test is skipped where a package is missing."""
    try:
        hf, processor = TINY_BUILDERS[name]() if name in TINY_BUILDERS else build_type(name)
    except ImportError as error:
        import pytest  # here, since perf/gpu.py makes these models without it

        pytest.skip(str(error).strip().splitlines()[0])
    return Model(name, name, None, hf, processor, find_family(hf.config))
