"""Values by visual token on the grids of views, what views show, regions among visual tokens, and the words that name a region's thing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmprobe.cache import Trace
from mmprobe.samples import Region
from mmprobe.stats.estimate import format_number

Grids = Sequence[tuple[int, int]]
"""Rows and columns of the visual tokens of each view."""


def split_grids(values: np.ndarray, grids: Grids) -> list[np.ndarray]:
    """Return the part of each view of values [..., visual], as [..., row, column].

    Example:
        >>> [part.tolist() for part in split_grids(np.array([1, 2, 3]), [(1, 2), (1, 1)])]
        [[[1, 2]], [[3]]]
    """
    ends = np.cumsum([rows * columns for rows, columns in grids])
    parts = np.split(values, ends[:-1], axis=-1) if len(ends) else []
    return [
        part.reshape(*values.shape[:-1], *grid)
        for part, grid in zip(parts, grids, strict=True)  # visual tokens are row by row
    ]


def to_grids(values: np.ndarray, grids: Grids) -> np.ndarray:
    """Return values [..., visual] as [..., view, row, column], with NaN beyond a view's own grid.

    Example:
        >>> to_grids(np.array([[1.0, 2.0, 3.0]]), [(1, 2), (1, 1)]).tolist()
        [[[[1.0, 2.0]], [[3.0, nan]]]]
    """
    height = max((rows for rows, _ in grids), default=0)
    width = max((columns for _, columns in grids), default=0)
    out = np.full((*values.shape[:-1], len(grids), height, width), np.nan, values.dtype)
    for view, part in enumerate(split_grids(values, grids)):
        out[..., view, : part.shape[-2], : part.shape[-1]] = part
    return out


class ShownView(NamedTuple):
    """What a view of a trace shows.

    Attributes:
        file: an image, or a video.
        frame: its first frame, in a file that is a video; None for an image.
        box: the part of the image that it shows: x, y, width and height in pixels.
        name: "" for an image, and for frames their video, numbers and time.
        shown: how many images or frames it shows.
    """

    file: Path
    frame: int | None
    box: tuple[float, float, float, float]
    name: str
    shown: int


def find_views(trace: Trace) -> list[ShownView]:
    """Return what each view of a trace shows.

    Example:
        >>> find_views(run["0001"])[0].file.name                    # doctest: +SKIP
        'a.png'
    """
    sample = trace.sample
    sources, boxes = (trace.array(f"images/{name}").values.tolist() for name in ("source", "box"))
    videos: list[Any] = [(-1, (-1, -1), np.nan)] * len(sources)
    if "images/video" in trace.captured:
        places = (trace.array(f"images/{name}").values.tolist() for name in ("video", "frames", "time"))
        videos = list(zip(*places, strict=True))
    views = []
    for source, box, (number, (first, last), time) in zip(sources, boxes, videos, strict=True):
        if number < 0:
            views.append(ShownView(sample.images[source], None, tuple(box), "", 1))
            continue
        video = sample.videos[number]
        frames = f"frame {first}" if first == last else f"frames {first} to {last}"
        at = f" at {format_number(time)} s" if np.isfinite(time) else ""
        file = video.frames[min(first, len(video.frames) - 1)] if video.file is None else video.file
        frame = None if video.file is None else first
        views.append(
            ShownView(file, frame, tuple(box), f"Video {number + 1}, {frames}{at}", last - first + 1)
        )
    return views


class Patch(NamedTuple):
    """Cells of a view that a region covers: rows `top` to `bottom` - 1, columns `left` to `right` - 1."""

    view: int
    top: int
    bottom: int
    left: int
    right: int


def find_patches(trace: Trace, regions: Sequence[Region] | None = None) -> list[Patch]:
    """Return the cells that each region covers; the regions are by default all those of the sample.

    A region covers the cells whose centres are in it, and at least one row and one column. A region that
    several views show gives several patches; a region that no view shows gives none.

    Example:
        >>> find_patches(run["0001"])                               # doctest: +SKIP
        [Patch(view=1, top=2, bottom=3, left=0, right=1)]
    """
    source, box, grid = (trace.array(f"images/{name}").values for name in ("source", "box", "grid"))
    if regions is None:
        regions = trace.sample.regions
    if "images/video" in trace.captured:  # a view may show several frames: a region on one is on the view's
        starts = [source[source <= region.image].max(initial=-1) for region in regions]
        regions = [
            region.model_copy(update={"image": int(start)})
            for region, start in zip(regions, starts, strict=True)
        ]
    return _place_regions(regions, source, box, grid)


def _place_regions(
    regions: Sequence[Region], source: np.ndarray, box: np.ndarray, grid: np.ndarray
) -> list[Patch]:
    """Return the cells that each region covers, as `find_patches`, of views that are given.

    Args:
        source: int [view], the image that each view shows.
        box: [view, 4], the part of it: x, y, width and height in pixels.
        grid: int [view, 2], rows and columns of its visual tokens.

    Example:
        >>> region = Region(image=0, box=(28, 0, 28, 28))
        >>> _place_regions([region], np.array([0]), np.array([[0, 0, 56, 28]]), np.array([[1, 2]]))
        [Patch(view=0, top=0, bottom=1, left=1, right=2)]
    """
    patches = []
    for region in regions:
        for view in np.flatnonzero(source == region.image):
            left, top, width, height = box[view]
            rows, columns = grid[view]
            x, y, wide, high = region.box
            across = _cells((x - left) / width * columns, (x + wide - left) / width * columns, int(columns))
            down = _cells((y - top) / height * rows, (y + high - top) / height * rows, int(rows))
            if across and down:
                patches.append(Patch(int(view), *down, *across))
    return patches


def _cells(low: float, high: float, count: int) -> tuple[int, int] | None:
    """Return the first and last + 1 of the cells whose centres are in [low, high).

    If there is none, return the cell that contains the middle; None if the range is outside all `count` cells.
    """
    if high <= 0 or low >= count:
        return None
    first, last = int(np.ceil(max(low, 0) - 0.5)), int(np.ceil(min(high, count) - 0.5))
    if first >= last:
        first = min(int((max(low, 0) + min(high, count)) / 2), count - 1)
        last = first + 1
    return first, last


def covered_shares(start: float, length: float, pixels: float, cells: int) -> np.ndarray:
    """Return the share of each cell that an interval covers, float64 [cell], along one side of a view.

    Args:
        start, length: the interval, in pixels of the view.
        pixels, cells: of that side of the view.

    Example:
        >>> covered_shares(7, 14, 56, 4).tolist()
        [0.5, 0.5, 0.0, 0.0]
    """
    edges = np.arange(cells + 1) * pixels / cells
    covered = np.minimum(edges[1:], start + length) - np.maximum(edges[:-1], start)
    return np.asarray(np.maximum(covered, 0) * cells / pixels)


def image_sizes(trace: Trace) -> list[tuple[int, int]]:
    """Return the pixels (height, width) of each image of a trace, as far as its views show it; (0, 0) for one without a view.

    Example:
        >>> image_sizes(run["0001"])                                # doctest: +SKIP
        [(112, 112), (112, 112)]
    """
    source, box = (trace.array(f"images/{name}").values for name in ("source", "box"))
    ends = [
        (box[source == image, :2] + box[source == image, 2:]).max(0, initial=0)
        for image in range(len(trace.sample.images))
    ]
    return [(round(float(height)), round(float(width))) for width, height in ends]


def mask_patches(patches: list[Patch], grids: list[tuple[int, int]]) -> np.ndarray:
    """Return a mask bool [visual] of the patches' cells, view by view and row by row.

    Example:
        >>> mask_patches([Patch(1, 0, 1, 1, 2)], [(1, 1), (2, 2)]).tolist()
        [False, False, True, False, False]
    """
    views = [np.zeros(grid, bool) for grid in grids]
    for patch in patches:
        views[patch.view][patch.top : patch.bottom, patch.left : patch.right] = True
    return np.concatenate([view.ravel() for view in views]) if views else np.zeros(0, bool)


def random_masks(
    patches: list[Patch], grids: list[tuple[int, int]], draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw masks bool [draw, visual] with each patch at a random place.

    A patch keeps its size and its view. All places on the view are equally likely.

    Example:
        >>> random_masks([Patch(0, 0, 1, 0, 1)], [(2, 2)], 3, np.random.default_rng(0)).sum(1).tolist()
        [1, 1, 1]
    """
    views = [np.zeros((draws, rows, columns), bool) for rows, columns in grids]
    for view, top, bottom, left, right in patches:
        down, across = (
            _random_spans(size, count, draws, rng)
            for size, count in zip((bottom - top, right - left), grids[view], strict=True)
        )
        views[view] |= down[:, :, None] & across[:, None, :]
    return np.concatenate([view.reshape(draws, -1) for view in views], axis=1)


def _random_spans(size: int, count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw masks bool [draw, cell] of `size` neighbouring cells among `count`."""
    first = rng.integers(count - size + 1, size=(draws, 1))
    cells = np.arange(count)
    return (first <= cells) & (cells < first + size)


_LOOK_AHEAD = 8  # characters of the answer that a token's text may be away from the last token's end


def find_mentions(trace: Trace, names: Sequence[str]) -> dict[str, list[list[int]]]:
    """Return the steps of each mention of a name in an answer: one list of steps a mention.

    A mention is the whole name, in any case, with or without a plural's s; a name of several words or tokens
    is one mention. The longest name wins: a `teddy bear` does not mention a `bear`. Names that are not in the
    answer are left out, and those outside the span of the trace.

    Example:
        >>> find_mentions(run["0001"], ["star", "traffic light"])   # doctest: +SKIP
        {'star': [[3], [17]], 'traffic light': [[8, 9]]}
    """
    if not names:
        return {}
    answer, spans = align_tokens(trace.whole.step_texts, trace.answer)
    kept = range(len(spans)) if trace.kept_steps is None else trace.kept_steps.tolist()
    place = {step: shown for shown, step in enumerate(kept)}
    ordered = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"({re.escape(name)})" for name in ordered)
    mentions: dict[str, list[list[int]]] = {}
    for match in re.finditer(rf"(?<!\w)(?:{pattern})(?:e?s)?(?!\w)", answer, re.IGNORECASE):
        assert match.lastindex is not None
        name = ordered[match.lastindex - 1]
        first, last = match.span(match.lastindex)
        steps = [
            place[step]
            for step, (start, end) in enumerate(spans)
            if start < last and end > first and step in place
        ]
        if steps:
            mentions.setdefault(name, []).append(steps)
    return mentions


def align_tokens(texts: Sequence[str], answer: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the answer, and the place (start, end) of each token's text in it.

    Some tokenizers drop the space before a word where they decode a token on its own. So the texts are looked
    up in the answer, one after another. A token that is not in the answer, such as a control token, has an
    empty place. If no answer is stored, it is the joined texts.

    Example:
        >>> align_tokens(["A", "tra", "ffic", "light", "</s>"], "A traffic light")[1]
        [(0, 1), (2, 5), (5, 9), (10, 15), (15, 15)]
    """
    answer = answer or "".join(texts)
    spans, cursor = [], 0
    for text in texts:
        word = text.strip()
        start = answer.find(word, cursor, cursor + len(word) + _LOOK_AHEAD) if word else -1
        if start < 0:
            spans.append((cursor, cursor))
            continue
        cursor = start + len(word)
        spans.append((start, cursor))
    return answer, spans
