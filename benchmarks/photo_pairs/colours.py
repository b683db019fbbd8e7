"""Name the colour of an object, and give it another colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import Mask
from mmprobe.benchmarks.photo_pairs.photos import Pixels

# Hue in degrees, saturation and value in 0-1 of each new colour; our choice.
PALETTE: dict[str, tuple[float, float, float]] = {
    "red": (0, 0.80, 0.75),
    "orange": (28, 0.90, 0.92),
    "yellow": (55, 0.80, 0.92),
    "green": (125, 0.70, 0.60),
    "cyan": (185, 0.70, 0.80),
    "blue": (222, 0.80, 0.75),
    "purple": (280, 0.65, 0.62),
    "pink": (325, 0.45, 0.95),
}
# Upper limit of each range of hues in degrees, and its colour; our choice.
_HUE_LIMITS = (
    (15, "red"),
    (42, "orange"),
    (70, "yellow"),
    (165, "green"),
    (200, "cyan"),
    (255, "blue"),
    (300, "purple"),
    (342, "pink"),
    (360, "red"),
)
_MIN_DISTANCE = 90.0  # smallest visible distance of two RGB colours of 0-255, our choice


def _to_hsv(pixels: Pixels) -> NDArray[np.float64]:
    """Return hue in degrees, saturation and value in 0-1, [..., 3]."""
    flat = Image.fromarray(pixels.reshape(1, -1, 3)).convert("HSV")
    return np.asarray(flat, dtype=np.float64).reshape(pixels.shape) * (360 / 256, 1 / 255, 1 / 255)


def name_colour(pixels: Pixels, mask: Mask) -> str:
    """Return the name of an object's colour, taken from the median of its pixels.

    Example:
        >>> name_colour(np.full((2, 2, 3), (30, 60, 200), np.uint8), np.ones((2, 2), bool))
        'blue'
    """
    median = np.median(pixels[mask], axis=0).astype(np.uint8)
    hue, saturation, value = _to_hsv(median[None])[0]
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.8 else "gray"
    name = next(name for limit, name in _HUE_LIMITS if hue <= limit)
    return "brown" if name in ("red", "orange", "yellow") and hue > 10 and value < 0.62 else name


def list_new_colours(pixels: Pixels, mask: Mask) -> list[str]:
    """Return the colours that would visibly change an object."""
    median = np.median(pixels[mask], axis=0)
    palette = np.array([_to_rgb(*colour) for colour in PALETTE.values()])
    is_far = np.linalg.norm(palette - median, axis=1) >= _MIN_DISTANCE
    current = name_colour(pixels, mask)
    return [name for name, far in zip(PALETTE, is_far, strict=True) if far and name != current]


def _to_rgb(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    code = tuple(round(part) for part in (hue * 255 / 360, saturation * 255, value * 255))
    return Image.new("HSV", (1, 1), code).convert("RGB").getpixel((0, 0))  # type: ignore[return-value]


def recolour(pixels: Pixels, mask: Mask, colour: str) -> Pixels:
    """Return the image with all pixels recoloured. The caller then cuts the object out of it.

    The hue is set. Saturation and value are shifted until the object's medians equal those of the palette,
    since a new hue alone hardly changes a grey or dark object. Light, shade and texture stay.
    """
    hue, saturation, value = PALETTE[colour]
    hsv = _to_hsv(pixels)
    new_hsv = np.empty_like(hsv)
    new_hsv[..., 0] = hue * 255 / 360
    for channel, target in ((1, saturation), (2, value)):
        shifted = hsv[..., channel] + target - np.median(hsv[mask][:, channel])
        new_hsv[..., channel] = 255 * np.clip(shifted, 0.15 if channel == 1 else 0.0, 1)
    return np.asarray(Image.fromarray(new_hsv.round().astype(np.uint8), "HSV").convert("RGB"))
