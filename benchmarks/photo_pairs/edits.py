"""Edits of a photograph under its objects' masks, composed into one changed picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mmprobe.benchmarks.photo_pairs.colours import recoloured
from mmprobe.benchmarks.photo_pairs.inpainting import Inpainter
from mmprobe.benchmarks.photo_pairs.masks import Mask, dilate, shifted, union
from mmprobe.benchmarks.photo_pairs.photos import Photo, Pixels, Rejected
from mmprobe.benchmarks.photo_pairs.planner import Edit

_FEATHER = 1.2  # standard deviation in pixels of the soft edge of what is recoloured or pasted, ours


def apply_edits(photo: Photo, edits: list[Edit], inpainter: Inpainter, margin: int) -> Pixels:
    """The photograph with all edits made: holes are filled together, then colours are set, then moved objects
    pasted.

    A removed or moved object leaves a hole: its mask grown by `margin`, less the pixels of objects that stay.

    Args:
        edits: of different objects.
        margin: pixels around a mask that may change.

    Returns:
        uint8 [height, width, 3]; outside the masks, grown by `margin`, the photograph's own pixels.

    Raises:
        Rejected: the inpainter gave something that is not this picture.
    """
    changed = photo.pixels.copy()
    gone = [edit.instance for edit in edits if edit.type != "color"]
    hole = _apart(photo, gone, margin)
    if hole.any():
        filled = np.asarray(inpainter(photo.pixels.copy(), hole.copy()))
        if filled.shape != changed.shape or filled.dtype != np.uint8:
            raise Rejected("check", f"the inpainter gave {filled.dtype} {list(filled.shape)} for a picture")
        changed[hole] = filled[hole]
    for edit in edits:
        mask = photo.instances[edit.instance].mask
        if edit.colour is not None:
            soft = _soft(mask, margin) * (_apart(photo, [edit.instance], margin) & ~hole)
            changed = _mixed(changed, recoloured(photo.pixels, mask, edit.colour), soft)
        elif edit.shift is not None:
            moved = np.roll(photo.pixels, edit.shift[::-1], (0, 1))  # planned to stay within the picture
            changed = _mixed(changed, moved, _soft(shifted(mask, edit.shift), margin))
    return changed


def _apart(photo: Photo, indices: list[int], margin: int) -> Mask:
    """The masks of these objects, grown, without the other objects' pixels that are not theirs."""
    shape = photo.pixels.shape[:2]
    own = union([photo.instances[index].mask for index in indices], shape)
    others = [one.mask for index, one in enumerate(photo.instances) if index not in indices]
    return own | (dilate(own, margin) & ~union(others, shape))


def _soft(mask: Mask, margin: int) -> NDArray[np.float64]:
    """1 within a mask, falling to 0 across its edge and no further than the margin."""
    return ndimage.gaussian_filter(mask.astype(np.float64), _FEATHER) * dilate(mask, margin)


def _mixed(below: Pixels, above: Pixels, soft: NDArray[np.float64]) -> Pixels:
    mixed = below + soft[..., None] * (above.astype(np.float64) - below)
    return mixed.round().astype(np.uint8)
