"""CHAIR (arXiv:1809.02156) over the synthetic world, where shapes are the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_SHAPE = re.compile(rf"\b({'|'.join(SHAPES)})(?:e?s)?\b", re.IGNORECASE)


def find_shapes(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the shapes that a text names, in order, with their spans."""
    return [(match[1].lower(), match.span()) for match in _SHAPE.finditer(text)]


def read_described_shapes(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return the shapes of each image that a sample asks to describe, by sample id."""
    shapes = {
        sample.id: frozenset(obj.split()[1] for obj in sample.metadata["objects"][0])
        for sample in samples
        if sample.metadata.get("type") == "describe" and sample.metadata.get("objects")
    }
    if not shapes:
        raise InputError("CHAIR: no sample of the synthetic world asks for a description")
    return shapes
