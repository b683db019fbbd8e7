"""Apply edits to a photograph under the masks of its objects.

OpenCV, LaMa, or a function of the caller fills the hole of a removed object.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mmprobe.benchmarks.photo_pairs.colours import recolour
from mmprobe.benchmarks.photo_pairs.masks import Mask, dilate, shift_mask, union
from mmprobe.benchmarks.photo_pairs.photos import Photo, Pixels, Rejection
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit
from mmprobe.errors import InputError

Inpainter = Callable[[Pixels, Mask], Pixels]
"""Takes an image, uint8 [height, width, 3], and a hole, bool [height, width], and returns the filled image.

Pixels that it returns outside the hole are not used.
"""

_RADIUS = 5.0  # pixels around the hole that OpenCV takes into account, our choice
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
            "inpainter 'lama': needs pip install --no-deps simple-lama-inpainting; see 'What we chose' in "
            "docs/benchmarks/photo-pairs.md"
        ) from None
    model = SimpleLama()

    def fill(pixels: Pixels, hole: Mask) -> Pixels:
        filled = model(Image.fromarray(pixels), Image.fromarray(255 * hole.astype(np.uint8)))
        return np.asarray(filled)[: pixels.shape[0], : pixels.shape[1]]  # LaMa pads to multiples of 8

    return fill


_FEATHER = 1.2  # standard deviation in pixels of the soft edge of a recoloured or pasted object, our choice


def apply_edits(photo: Photo, edits: list[PhotoEdit], inpainter: Inpainter, margin: int) -> Pixels:
    """Return the photograph with all edits applied, uint8 [height, width, 3].

    All holes are filled together. Then each object is recoloured or pasted at its new place. A removed or
    moved object leaves a hole: its mask grown by `margin`, without the pixels of objects that stay. Raises
    Rejection where the inpainter returned an array of another shape or type.
    """
    changed = photo.pixels.copy()
    removed = [edit.instance for edit in edits if edit.type != "color"]
    hole = _grow_masks(photo, removed, margin)
    if hole.any():
        filled = np.asarray(inpainter(photo.pixels.copy(), hole.copy()))
        if filled.shape != changed.shape or filled.dtype != np.uint8:
            raise Rejection("check", f"the inpainter gave {filled.dtype} {list(filled.shape)} for an image")
        changed[hole] = filled[hole]
    for edit in edits:
        mask = photo.instances[edit.instance].mask
        if edit.colour is not None:
            opacity = _soften(mask, margin) * (_grow_masks(photo, [edit.instance], margin) & ~hole)
            changed = _blend(changed, recolour(photo.pixels, mask, edit.colour), opacity)
        elif edit.shift is not None:
            moved = np.roll(photo.pixels, edit.shift[::-1], (0, 1))  # the planner keeps it inside the image
            changed = _blend(changed, moved, _soften(shift_mask(mask, edit.shift), margin))
    return changed


def _grow_masks(photo: Photo, indices: list[int], margin: int) -> Mask:
    """Return the masks of these objects, grown by the margin, without pixels of other objects."""
    shape = photo.pixels.shape[:2]
    masks = union([photo.instances[index].mask for index in indices], shape)
    others = [instance.mask for index, instance in enumerate(photo.instances) if index not in indices]
    return masks | (dilate(masks, margin) & ~union(others, shape))


def _soften(mask: Mask, margin: int) -> NDArray[np.float64]:
    """Return the opacity of a mask: 1 inside, falling to 0 across its edge within the margin."""
    return ndimage.gaussian_filter(mask.astype(np.float64), _FEATHER) * dilate(mask, margin)


def _blend(below: Pixels, above: Pixels, opacity: NDArray[np.float64]) -> Pixels:
    blended = below + opacity[..., None] * (above.astype(np.float64) - below)
    return blended.round().astype(np.uint8)
