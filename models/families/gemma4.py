"""Gemma 4: one view of each image in its own shape, whose patches are pooled in squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, Frames, Size, View, build_stretched_frames


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image; its patches' columns and rows are `image_position_ids`, -1 for padding."""
    return _build(inputs, sizes, processor.image_processor.pooling_kernel_size)


def _build_unified_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, whose positions are those of pooled patches."""
    return _build(inputs, sizes, 1)


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, whose patches are pooled in squares."""
    return _build_videos(inputs, videos, processor.video_processor.pooling_kernel_size)


def _build_unified_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, whose positions are those of pooled patches."""
    return _build_videos(inputs, videos, 1)


def _build_videos(inputs: Mapping[str, Any], videos: Sequence[Frames], side: int) -> list[list[View]]:
    views, first = [], 0
    for video in videos:
        rows, columns = _find_grid(inputs["video_position_ids"][first], side)
        views += build_stretched_frames([video], rows, columns)
        first += video.number
    return views


def _build(inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], side: int) -> list[list[View]]:
    views = []
    for positions, (height, width) in zip(inputs.get("image_position_ids", []), sizes, strict=True):
        views.append([View(_find_grid(positions, side), (0, 0, width, height))])
    return views


def _find_grid(positions: Any, side: int) -> Size:
    """Return the grid of squares of patches at columns and rows, int [patch, 2]; -1 for padding."""
    last_column, last_row = positions.max(0).values.tolist()
    return (last_row + 1) // side, (last_column + 1) // side


WINDOW = "Most layers see a window of the last tokens only."
GEMMA4 = Family(
    name="gemma4",
    model_types=("gemma4",),
    views=build_views,
    video_views=build_video_views,
    extras=("hub",),
    notes=WINDOW,
)
GEMMA4_UNIFIED = Family(
    name="gemma4_unified",
    model_types=("gemma4_unified",),
    views=_build_unified_views,
    video_views=_build_unified_video_views,
    extras=("hub",),
    notes=WINDOW,
)
