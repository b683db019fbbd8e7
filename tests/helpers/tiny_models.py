"""Tiny random models of all families, by name."""

from __future__ import annotations

from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import TINY_TILES

from mmprobe.models import Model
from mmprobe.models.families import find_family

TINY_BUILDERS = TINY_PATCHES | TINY_TILES


def load_tiny_model(name: str) -> Model:
    """Return a new model of the family, with its processor."""
    hf, processor = TINY_BUILDERS[name]()
    return Model(name, name, None, hf, processor, find_family(hf.config))
