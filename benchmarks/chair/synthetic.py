"""CHAIR (arXiv:1809.02156) over drawn images, of shapes or of things, which are the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.synthetic.scene import SHAPES
from mmprobe.benchmarks.things.scene import THINGS
from mmprobe.contents import read_objects
from mmprobe.errors import InputError
from mmprobe.samples import Sample

NAMES = {form: name for name in (*SHAPES, *THINGS) for form in (name, *make_plurals(name))}
_NAME = re.compile(rf"\b(?:{'|'.join(sorted(NAMES, key=len, reverse=True))})\b", re.IGNORECASE)


def find_drawn(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the shapes and things that a text names, in order, with their spans.

    Example:
        >>> [name for name, _ in find_drawn("A red star, two cherries and a startled duck.")]
        ['star', 'cherry', 'duck']
    """
    return [(NAMES[match[0].lower()], match.span()) for match in _NAME.finditer(text)]


def read_described(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return what each image shows that a sample asks to describe, by sample id."""
    shown = {
        sample.id: frozenset(each.name for each in read_objects(sample)[0])
        for sample in samples
        if sample.metadata.get("type") == "describe" and sample.metadata.get("objects")
    }
    if not shown:
        raise InputError("CHAIR: no sample of a drawn world asks for a description")
    return shown
