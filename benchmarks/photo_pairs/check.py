"""Check that an edited image differs from its original only where it should."""

from __future__ import annotations

import numpy as np

from mmprobe.benchmarks.photo_pairs.masks import Mask, dilate, shift_mask
from mmprobe.benchmarks.photo_pairs.photos import Photo, Pixels, Rejection
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit

_VISIBLE_DIFFERENCE = 12  # of 255 in one channel, our choice: a smaller difference looks the same
_MIN_VISIBLE_SHARE = 0.3  # of an object's pixels, our choice: below this the edit is not seen
BLOCK = 8  # side in pixels of the blocks that JPEG encodes one by one


def editable_pixels(photo: Photo, edit: PhotoEdit, margin: int) -> Mask:
    """Return the pixels that an edit may change: the masks of the old and new place, grown by the margin."""
    mask = photo.instances[edit.instance].mask
    return dilate(mask | shift_mask(mask, edit.shift), margin) if edit.shift else dilate(mask, margin)


def check_pixels(photo: Photo, edits: list[PhotoEdit], changed: Pixels, margin: int) -> Mask:
    """Compare an edited image with its original, and return the pixels that differ, bool [height, width].

    Raises Rejection where a pixel outside the edited objects differs, or an edit is not visible.
    """
    differing = _differing_pixels(photo.pixels, changed)
    outside = int((differing & ~_all_editable_pixels(photo, edits, margin)).sum())
    if outside:
        raise Rejection("check", f"{outside} pixels differ outside the edited objects")
    visible = _differing_pixels(photo.pixels, changed, _VISIBLE_DIFFERENCE)
    for edit in edits:
        instance = photo.instances[edit.instance]
        share = float(visible[instance.mask].mean())
        if share < _MIN_VISIBLE_SHARE:
            raise Rejection(
                "check",
                f"the {instance.category}'s {edit.type} is hardly visible: {share:.0%} of its pixels differ",
            )
    return differing


def check_files(photo: Photo, edits: list[PhotoEdit], original: Pixels, changed: Pixels, margin: int) -> None:
    """Raise Rejection for a pixel that differs between two JPEG files outside the 8 x 8 blocks of the edits."""
    editable = grow_to_blocks(_all_editable_pixels(photo, edits, margin))
    outside = int((_differing_pixels(original, changed) & ~editable).sum())
    if outside:
        raise Rejection("check", f"{outside} pixels of the files differ outside the edited objects")


def grow_to_blocks(mask: Mask) -> Mask:
    """Return a mask grown to whole JPEG blocks."""
    rows, columns = mask.shape
    padded = np.pad(mask, ((0, -rows % BLOCK), (0, -columns % BLOCK)))
    block_rows, block_columns = padded.shape[0] // BLOCK, padded.shape[1] // BLOCK
    touched = padded.reshape(block_rows, BLOCK, block_columns, BLOCK).any((1, 3))
    return touched.repeat(BLOCK, 0).repeat(BLOCK, 1)[:rows, :columns]


def _all_editable_pixels(photo: Photo, edits: list[PhotoEdit], margin: int) -> Mask:
    editable = np.zeros(photo.pixels.shape[:2], dtype=bool)
    for edit in edits:
        editable |= editable_pixels(photo, edit, margin)
    return editable


def _differing_pixels(first: Pixels, second: Pixels, threshold: int = 0) -> Mask:
    return (np.abs(first.astype(np.int16) - second) > threshold).any(2)
