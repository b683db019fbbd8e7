"""Check that a trace's tokens, views and images agree with each other."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
from h5py import h5s

from mmprobe.cache.packs.packed_trace import TraceGroup
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.samples import MAX_IMAGE_PIXELS

VIEW_PATHS = ("images/grid", "images/source", "images/box", "tokens/image", "tokens/group")
_MAX_BOX = 1.5 * MAX_IMAGE_PIXELS  # a part may reach over its image, where a family pads it


def check_views(root: TraceGroup) -> None:
    """Check the groups of the tokens, and what `images` and `tokens/image` say about the same visual tokens.

    The visual tokens of a prompt show the cells of all views, view by view. Tokens that end a row or a tile show
    no cell. In families with cross-attention no token does, and `visual` still counts the cells of all views.

    Raises:
        InputError: they contradict each other.
    """
    grid, shown = _read(root, "images/grid"), _read(root, "tokens/image")
    if grid is not None:
        if (grid < 1).any():
            raise root.error("images/grid", "holds a view without visual tokens")
        cells = grid.astype("f8").prod(1)  # integers could overflow
        size = root.size("visual")
        if size not in (None, cells.sum()):
            raise root.error("images/grid", f"has {cells.sum():,.0f} cells for {size:,} visual tokens")
        visual = shown[shown != -1] if shown is not None else ()
        if len(visual) and not (
            len(visual) == cells.sum()
            and np.array_equal(visual, np.repeat(np.arange(len(cells)), cells.astype("i8")))
        ):
            raise root.error("tokens/image", "does not count the cells of images/grid")
    group = _read(root, "tokens/group")
    if group is not None and (group >= len(GROUP_NAMES)).any():
        raise root.error("tokens/group", f"holds a number over {len(GROUP_NAMES) - 1}")
    box = _read(root, "images/box")
    if box is not None and not (
        np.isfinite(box).all()
        and (box[:, 2:] > 0).all()
        and (box[:, 2:].astype("f8").prod(1) <= _MAX_BOX).all()
    ):
        raise root.error("images/box", "holds a part that no image can have")
    source = _read(root, "images/source")
    if source is not None and source.size:
        n_images = _count_images(root)
        if source.min() < 0 or (n_images is not None and source.max() >= n_images):
            raise root.error("images/source", f"names an image that is not among the sample's {n_images}")


def _read(root: TraceGroup, path: str) -> np.ndarray | None:
    stored = root.dataset(path)
    if stored is None:
        return None
    data, dtype = stored
    values = np.empty(data.shape, dtype)
    data.read(h5s.ALL, h5s.ALL, values)
    return values


def _count_images(root: TraceGroup) -> int | None:
    """Return the number of the sample's images; None if the sample cannot be read, which `Trace.sample` says."""
    with suppress(RecursionError, TypeError, ValueError, KeyError):
        return len(json.loads(root.text("sample") or "")["images"])
    return None
