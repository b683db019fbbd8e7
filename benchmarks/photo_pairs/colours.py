"""The colour of an object by name, and an object in another colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import Mask
from mmprobe.benchmarks.photo_pairs.photos import Pixels

# hue in degrees, saturation and value in 0-1 that an object is given; ours
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
# upper ends of the hues' ranges in degrees; ours
_HUES = (
    *(
        (15, "red"),
        (42, "orange"),
        (70, "yellow"),
        (165, "green"),
        (200, "cyan"),
        (255, "blue"),
        (300, "purple"),
    ),
    *((342, "pink"), (360, "red")),
)
_UNLIKE = (
    90.0  # smallest distance of two colours in red, green and blue, of 0-255, for a change to be seen; ours
)


def _hsv(pixels: Pixels) -> NDArray[np.float64]:
    """Hue in degrees, saturation and value in 0-1, [..., 3]."""
    flat = Image.fromarray(pixels.reshape(1, -1, 3)).convert("HSV")
    return np.asarray(flat, dtype=np.float64).reshape(pixels.shape) * (360 / 256, 1 / 255, 1 / 255)


def colour_of(pixels: Pixels, mask: Mask) -> str:
    """The name of an object's colour: that of the median of its pixels.

    Example:
        >>> colour_of(np.full((2, 2, 3), (30, 60, 200), np.uint8), np.ones((2, 2), bool))
        'blue'
    """
    median = np.median(pixels[mask], axis=0).astype(np.uint8)
    hue, saturation, value = _hsv(median[None])[0]
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.8 else "gray"
    name = next(name for end, name in _HUES if hue <= end)
    return "brown" if name in ("red", "orange", "yellow") and hue > 10 and value < 0.62 else name


def new_colours(pixels: Pixels, mask: Mask) -> list[str]:
    """The colours that an object can be given so that the change is seen."""
    median = np.median(pixels[mask], axis=0)
    plain = np.array([_rgb(*told) for told in PALETTE.values()])
    far = np.linalg.norm(plain - median, axis=1) >= _UNLIKE
    now = colour_of(pixels, mask)
    return [name for name, unlike in zip(PALETTE, far, strict=True) if unlike and name != now]


def _rgb(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    code = tuple(round(part) for part in (hue * 255 / 360, saturation * 255, value * 255))
    return Image.new("HSV", (1, 1), code).convert("RGB").getpixel((0, 0))  # type: ignore[return-value]


def recoloured(pixels: Pixels, mask: Mask, colour: str) -> Pixels:
    """A picture whose every pixel is recoloured as the object must be; the edit then takes the object from
    it.

    The hue is set; saturation and value are moved so that the object's medians are the palette's, since a
    grey or dark object hardly changes with its hue alone. Light, shade and texture stay.
    """
    hue, saturation, value = PALETTE[colour]
    hsv = _hsv(pixels)
    wanted = np.empty_like(hsv)
    wanted[..., 0] = hue * 255 / 360
    for channel, target in ((1, saturation), (2, value)):
        moved = hsv[..., channel] + target - np.median(hsv[mask][:, channel])
        wanted[..., channel] = 255 * np.clip(moved, 0.15 if channel == 1 else 0.0, 1)
    return np.asarray(Image.fromarray(wanted.round().astype(np.uint8), "HSV").convert("RGB"))
