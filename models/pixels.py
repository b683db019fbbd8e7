"""How large a model is shown its images: limits of pixels and lengths of edges, in the words of its own processor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.errors import InputError
from mmprobe.samples import Sample, read_header, tell_changes
from mmprobe.settings import ModelSettings

if TYPE_CHECKING:
    from mmprobe.models.loading import Model


def scale_images(processor: Any, settings: ModelSettings) -> None:
    """Set up a processor for images as large as the settings say.

    Args:
        processor: a `transformers.ProcessorMixin`, whose part for images is replaced.

    Raises:
        InputError: the processor has no such setting.

    Example:
        >>> from mmprobe.models import load_model
        >>> processor = load_model("tiny-spd", device="cpu").processor
        >>> scale_images(processor, ModelSettings(name="tiny-spd", max_pixels=50_000))
        >>> processor.image_processor.size["longest_edge"]
        50000
    """
    images = processor.image_processor
    size = dict(getattr(images, "size", None) or {})
    counts_pixels = _counts_pixels(images)
    chosen: dict[str, Any] = {}
    for wanted, value in settings.pixels.items():
        if wanted == "image_size":
            edge = None if counts_pixels or size.get("longest_edge") is None else "longest_edge"
            chosen |= {"size": {**_given(size), edge: value}} if edge else {}
        elif counts_pixels:
            chosen[wanted] = value
        if not chosen:
            sides = ", ".join(f"{name} {side}" for name, side in _given(size).items())
            has = "min_pixels and max_pixels" if counts_pixels else sides or "no size that can be chosen"
            raise InputError(f"model {settings.name!r}: its processor has no {wanted}; it has {has}")
    if not chosen:
        return
    processor.image_processor = type(images).from_dict(images.to_dict(), **chosen)
    video = getattr(processor, "video_processor", None)
    if video is not None and getattr(video, "images", None) is images:  # of the embedded model
        video.images = processor.image_processor


def _counts_pixels(images: Any) -> bool:
    """Return whether a processor limits the pixels of an image, as Qwen's does, and not its edges."""
    return "min_pixels" in getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})


def tell_seen(samples: Iterable[Sample], model: Model | None) -> None:
    """Say in one line how many images a model sees otherwise than they are stored, where that was not said before.

    They are turned upright or into RGB, or shown with fewer pixels than they have where its processor limits these. Other
    processors show all images in one size, or in tiles of it. Images that cannot be read are left to who asks about them.

    Args:
        model: None for one behind an API.

    Example:
        >>> from mmprobe.models import load_model
        >>> tell_seen([], load_model("tiny-spd", device="cpu"))
    """
    images = None if model is None else model.processor.image_processor
    most = int(images.size["longest_edge"]) if images is not None and _counts_pixels(images) else None
    shown, frames = set[Path](), set[Path]()
    for sample in samples:
        shown.update(sample.images)
        frames.update(frame for video in sample.videos for frame in video.frames)
    changes: list[tuple[Path, str]] = []
    for file in sorted(shown | frames):
        try:
            header = read_header(file, "images")
        except InputError:
            continue
        height, width = header.size
        changes += [(file, change) for change in header.changes]
        if most is not None and file in shown and height * width > most:
            changes.append((file, f"shown smaller, as they have over {most:,} pixels (max_pixels)"))
    tell_changes(changes, "images", len(shown | frames))


def _given(size: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in size.items() if value is not None}
