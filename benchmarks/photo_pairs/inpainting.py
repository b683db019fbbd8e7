"""What stands behind a removed object, invented by OpenCV, by LaMa, or by a function of the caller's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import Mask
from mmprobe.benchmarks.photo_pairs.photos import Pixels
from mmprobe.errors import InputError

Inpainter = Callable[[Pixels, Mask], Pixels]
"""From a picture, uint8 [height, width, 3], and the hole, bool [height, width], to the picture filled; what
it returns outside the hole is not used."""

_RADIUS = 5.0  # pixels around the hole that OpenCV's filling starts from, ours
INPAINTERS = ("opencv", "lama")


def inpainter_of(name: str) -> Inpainter:
    """An inpainter by name: `opencv` (Telea, 2004) or `lama` (Suvorov et al., 2021; the paper's).

    `lama` needs the package simple-lama-inpainting, which fetches its weights, or takes them from the file
    that the environment names in LAMA_MODEL.

    Raises:
        InputError: no such inpainter, or its package is missing.

    Example:
        >>> inpainter_of("opencv")(pixels, hole).shape == pixels.shape         # doctest: +SKIP
        True
    """
    if name == "opencv":
        return _opencv()
    if name == "lama":
        return _lama()
    raise InputError(f"--inpainter {name}: choose {' or '.join(INPAINTERS)}")


def _opencv() -> Inpainter:
    try:
        import cv2
    except ImportError:
        raise InputError(
            "--inpainter opencv needs OpenCV, which is missing: pip install 'mmprobe[photos]'"
        ) from None

    def fill(pixels: Pixels, hole: Mask) -> Pixels:
        return np.asarray(
            cv2.inpaint(pixels, hole.astype(np.uint8), _RADIUS, cv2.INPAINT_TELEA), dtype=np.uint8
        )

    return fill


def _lama() -> Inpainter:
    try:
        from simple_lama_inpainting import SimpleLama
    except ImportError:
        raise InputError(
            "--inpainter lama needs the package simple-lama-inpainting; see docs/benchmarks.md, Pairs of photographs"
        ) from None
    model = SimpleLama()

    def fill(pixels: Pixels, hole: Mask) -> Pixels:
        made = model(Image.fromarray(pixels), Image.fromarray(255 * hole.astype(np.uint8)))
        return np.asarray(made)[: pixels.shape[0], : pixels.shape[1]]  # it pads to multiples of 8

    return fill
