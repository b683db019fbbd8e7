"""Whether a changed picture differs from its original where it should, and nowhere else."""

from __future__ import annotations

import numpy as np

from mmprobe.benchmarks.photo_pairs.masks import Mask, dilate, shifted
from mmprobe.benchmarks.photo_pairs.photos import Photo, Pixels, Rejected
from mmprobe.benchmarks.photo_pairs.planner import Edit

_SEEN = 12  # of 255 in one channel: a pixel that differs by less looks the same, ours
_LEAST = 0.3  # of an object's pixels that must look different, else the edit is not seen, ours
BLOCK = 8  # side in pixels of the blocks that JPEG encodes one by one


def allowed(photo: Photo, edit: Edit, margin: int) -> Mask:
    """The pixels that one edit may change: its object's mask, and where that is moved to, grown by the
    margin."""
    mask = photo.instances[edit.instance].mask
    return dilate(mask | shifted(mask, edit.shift), margin) if edit.shift else dilate(mask, margin)


def check_pixels(photo: Photo, edits: list[Edit], changed: Pixels, margin: int) -> Mask:
    """Compare an edited picture with its original, pixel by pixel.

    Returns:
        The pixels that differ, [height, width].

    Raises:
        Rejected: a pixel differs outside the edits' masks, or an edit cannot be seen.
    """
    differs = _differ(photo.pixels, changed, 0)
    may = np.zeros_like(differs)
    for edit in edits:
        may |= allowed(photo, edit, margin)
    outside = int((differs & ~may).sum())
    if outside:
        raise Rejected("check", f"{outside} pixels differ outside the edited objects")
    seen = _differ(photo.pixels, changed, _SEEN)
    for edit in edits:
        instance = photo.instances[edit.instance]
        share = float(seen[instance.mask].mean())
        if share < _LEAST:
            raise Rejected(
                "check",
                f"the {instance.category}'s {edit.type} is hardly seen: {share:.0%} of its pixels differ",
            )
    return differs


def check_files(photo: Photo, edits: list[Edit], original: Pixels, changed: Pixels, margin: int) -> None:
    """Compare the two pictures as they are read back from their files.

    JPEG encodes blocks of 8 x 8 pixels one by one where its colours are not subsampled, so blocks that no
    edit touches are equal to the last bit.

    Raises:
        Rejected: a pixel differs outside the blocks that the edits touch.
    """
    may = np.zeros(photo.pixels.shape[:2], dtype=bool)
    for edit in edits:
        may |= allowed(photo, edit, margin)
    outside = int((_differ(original, changed, 0) & ~in_blocks(may)).sum())
    if outside:
        raise Rejected("check", f"{outside} pixels of the files differ outside the edited objects")


def in_blocks(mask: Mask) -> Mask:
    """A mask grown to whole blocks of JPEG."""
    rows, columns = mask.shape
    padded = np.pad(mask, ((0, -rows % BLOCK), (0, -columns % BLOCK)))
    tall, wide = padded.shape[0] // BLOCK, padded.shape[1] // BLOCK
    touched = padded.reshape(tall, BLOCK, wide, BLOCK).any((1, 3))
    return touched.repeat(BLOCK, 0).repeat(BLOCK, 1)[:rows, :columns]


def _differ(one: Pixels, other: Pixels, by: int) -> Mask:
    return (np.abs(one.astype(np.int16) - other) > by).any(2)
