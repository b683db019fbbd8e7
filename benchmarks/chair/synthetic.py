"""CHAIR over the synthetic world: its shapes are the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_SHAPE = re.compile(rf"\b({'|'.join(SHAPES)})(?:e?s)?\b", re.IGNORECASE)


def shape_mentions(text: str) -> list[tuple[str, tuple[int, int]]]:
    """The shapes of the synthetic world that a text names, in order, with their spans.

    Example:
        >>> shape_mentions("Two stars and a red cross.")
        [('star', (4, 9)), ('cross', (20, 25))]
    """
    return [(found[1].lower(), found.span()) for found in _SHAPE.finditer(text)]


def synthetic_truth(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """The shapes in the picture of each sample of the synthetic world that asks for a description, by id.

    Raises:
        InputError: none asks for one.

    Example:
        >>> facts = {"type": "describe", "objects": [["red star B2"], []]}
        >>> synthetic_truth([Sample(id="0", question="Describe the picture.", metadata=facts)])
        {'0': frozenset({'star'})}
    """
    truth = {
        sample.id: frozenset(thing.split()[1] for thing in sample.metadata["objects"][0])
        for sample in samples
        if sample.metadata.get("type") == "describe" and sample.metadata.get("objects")
    }
    if not truth:
        raise InputError("CHAIR: no sample of the synthetic world asks for a description")
    return truth
