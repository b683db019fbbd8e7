"""Molmo2: each image is shown as a whole, and then joined from overlapping crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, Frames, View, build_stretched_frames


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return two views of each image, both stretched to the whole: in low and in high resolution."""
    grids = inputs["image_grids"].tolist() if sizes else []
    views = []
    for (low_rows, low_columns, rows, columns), (height, width) in zip(grids, sizes, strict=True):
        box = (0, 0, width, height)
        views.append([View((low_rows, low_columns), box), View((rows, columns), box)])
    return views


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, stretched to a square, with a cell for each pooled square of patches."""
    grids = inputs["video_grids"].tolist() if videos else []
    return [
        frames
        for video, (_, rows, columns) in zip(videos, grids, strict=True)
        for frames in build_stretched_frames([video], rows, columns)
    ]


MOLMO2 = Family(
    name="molmo2",
    model_types=("molmo2",),
    views=build_views,
    video_views=build_video_views,
    videos_alone=True,
    extras=("hub",),
    image_token_id=lambda config: config.image_patch_id,
    video_token_id=lambda config: config.image_patch_id,
    notes="Each image is shown twice: as a whole, and in high resolution. Visual tokens see each other. "
    "Takes one video a prompt.",
)
