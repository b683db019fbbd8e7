"""CHAIR (arXiv:1809.02156) over the synthetic world, where shapes are the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_SHAPE = re.compile(rf"\b({'|'.join(SHAPES)})(?:e?s)?\b", re.IGNORECASE)


def find_shapes(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the shapes that a text names, in order, with their spans.

    Example:
        >>> find_shapes("Two stars and a red cross.")
        [('star', (4, 9)), ('cross', (20, 25))]
    """
    return [(match[1].lower(), match.span()) for match in _SHAPE.finditer(text)]


def read_described_shapes(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return the shapes of each image that a sample asks to describe, by sample id.

    Raises:
        InputError: no sample asks for a description.

    Example:
        >>> metadata = {"type": "describe", "objects": [["red star B2"], []]}
        >>> read_described_shapes([Sample(id="0", question="Describe the picture.", metadata=metadata)])
        {'0': frozenset({'star'})}
    """
    shapes = {
        sample.id: frozenset(obj.split()[1] for obj in sample.metadata["objects"][0])
        for sample in samples
        if sample.metadata.get("type") == "describe" and sample.metadata.get("objects")
    }
    if not shapes:
        raise InputError("CHAIR: no sample of the synthetic world asks for a description")
    return shapes
