"""Fill the hole of a removed object with OpenCV, LaMa, or a function of the caller."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import Mask
from mmprobe.benchmarks.photo_pairs.photos import Pixels
from mmprobe.errors import InputError

Inpainter = Callable[[Pixels, Mask], Pixels]
"""Takes an image, uint8 [height, width, 3], and a hole, bool [height, width], and returns the filled image.

Pixels that it returns outside the hole are not used.
"""

_RADIUS = 5.0  # pixels around the hole that OpenCV takes into account, ours
INPAINTERS = ("opencv", "lama")


def get_inpainter(name: str) -> Inpainter:
    """Return the inpainter of a name: `opencv` (Telea, 2004) or `lama` (Suvorov et al., 2021; the paper's).

    The package simple-lama-inpainting downloads its weights, or reads them from the file in LAMA_MODEL.
    Raises InputError where there is no such inpainter, or its package is missing.
    """
    if name == "opencv":
        return _make_opencv_inpainter()
    if name == "lama":
        return _make_lama_inpainter()
    raise InputError(f"inpainter {name!r}: must be {' or '.join(INPAINTERS)}")


def _make_opencv_inpainter() -> Inpainter:
    try:
        import cv2
    except ImportError:
        raise InputError("inpainter 'opencv': needs OpenCV; pip install 'mmprobe[photos]'") from None

    def fill(pixels: Pixels, hole: Mask) -> Pixels:
        return np.asarray(
            cv2.inpaint(pixels, hole.astype(np.uint8), _RADIUS, cv2.INPAINT_TELEA), dtype=np.uint8
        )

    return fill


def _make_lama_inpainter() -> Inpainter:
    try:
        from simple_lama_inpainting import SimpleLama
    except ImportError:
        raise InputError(
            "inpainter 'lama': needs pip install --no-deps simple-lama-inpainting; see 'Choices of ours' in "
            "docs/benchmarks/photo-pairs.md"
        ) from None
    model = SimpleLama()

    def fill(pixels: Pixels, hole: Mask) -> Pixels:
        filled = model(Image.fromarray(pixels), Image.fromarray(255 * hole.astype(np.uint8)))
        return np.asarray(filled)[: pixels.shape[0], : pixels.shape[1]]  # LaMa pads to multiples of 8

    return fill
