"""Draw scenes as pixels. Equal scenes give equal bytes, and an edit changes no pixel outside its boxes."""

from __future__ import annotations

from functools import cache

import numpy as np

from mmprobe.benchmarks.synthetic.scene import CELL_PIXELS, IMAGE_PIXELS, Edit, Scene, SceneObject
from mmprobe.samples import Box

SUPERSAMPLE = 4
NOISE_STD = 4.0


def _contains(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return whether points are in the unit shape. x points right and y down, both in [-1, 1]."""
    distance = np.hypot(x, y)
    if shape == "circle":
        return distance <= 1
    if shape == "ring":
        return (distance <= 1) & (distance >= 0.55)
    if shape == "square":
        return np.maximum(abs(x), abs(y)) <= 0.85
    if shape == "diamond":
        return abs(x) + abs(y) <= 1
    if shape == "cross":
        return ((abs(x) <= 0.34) | (abs(y) <= 0.34)) & (np.maximum(abs(x), abs(y)) <= 1)
    if shape == "triangle":
        return (y <= 0.85) & (abs(x) <= (y + 1) * 0.54)
    if shape == "heart":
        u, v = x * 1.2, -y * 1.2 + 0.15
        return (u**2 + v**2 - 1) ** 3 - u**2 * v**3 <= 0
    if shape == "star":
        sector = 2 * np.pi / 5
        angle = np.abs((np.arctan2(x, -y) + sector / 2) % sector - sector / 2)
        tip, notch = np.array([0.0, 1.0]), 0.4 * np.array([np.sin(sector / 2), np.cos(sector / 2)])
        across, along = distance * np.sin(angle), distance * np.cos(angle)
        edge = notch - tip
        return edge[1] * (across - tip[0]) - edge[0] * (along - tip[1]) >= 0
    raise ValueError(f"unknown shape {shape!r}")


@cache
def _coverage(shape: str, radius: int) -> np.ndarray:
    """Return the share of each pixel that a centred shape covers, float32 [cell, cell, 1]."""
    fine = CELL_PIXELS * SUPERSAMPLE
    axis = (np.arange(fine) + 0.5 - fine / 2) / SUPERSAMPLE / radius
    inside = _contains(shape, *np.meshgrid(axis, axis))
    blocks = inside.reshape(CELL_PIXELS, SUPERSAMPLE, CELL_PIXELS, SUPERSAMPLE)
    return blocks.mean(axis=(1, 3), dtype=np.float32)[..., None]


def _footprint(obj: SceneObject) -> tuple[np.ndarray, Box]:
    """Return the cropped coverage of an object, and its box (x, y, width, height) in the image."""
    coverage = _coverage(obj.shape, obj.radius)
    rows, columns = np.nonzero(coverage[..., 0])
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    y = obj.row * CELL_PIXELS + obj.shift[0] + int(top)
    x = obj.column * CELL_PIXELS + obj.shift[1] + int(left)
    return coverage[top:bottom, left:right], (x, y, int(right - left), int(bottom - top))


def object_box(obj: SceneObject) -> Box:
    """Return the smallest box (x, y, width, height in pixels) around all pixels of an object."""
    return _footprint(obj)[1]


def render(scene: Scene) -> np.ndarray:
    """Draw a scene as RGB pixels, uint8 [112, 112, 3].

    Example:
        >>> from mmprobe.benchmarks.synthetic.scene import draw_scene
        >>> render(draw_scene(np.random.default_rng(0), "easy")).shape
        (112, 112, 3)
    """
    background = scene.background
    ramp = np.linspace(-0.5, 0.5, IMAGE_PIXELS, dtype=np.float32)
    grey = ramp[:, None] * background.gradient[0] + ramp[None, :] * background.gradient[1]
    canvas = np.asarray(background.rgb, np.float32) + grey[..., None]
    for obj in scene.objects:
        coverage, (x, y, width, height) = _footprint(obj)
        patch = canvas[y : y + height, x : x + width]
        patch += coverage * (np.asarray(obj.rgb, np.float32) - patch)
    noise = np.random.default_rng(background.noise_seed).standard_normal(grey.shape, dtype=np.float32)
    canvas += NOISE_STD * noise[..., None]
    return canvas.round().clip(0, 255).astype(np.uint8)


def edit_boxes(edit: Edit) -> list[tuple[int, Box]]:
    """Return the regions that an edit changes, as (image index, box).

    Pixels outside them are equal in both images. A colour change and a removal have one box, in both images.
    A change of position has two boxes in both images: the old place and the new place.
    """
    boxes = [object_box(edit.before)]
    if edit.type == "position":
        assert edit.after is not None
        boxes.append(object_box(edit.after))
    return [(image, box) for image in (0, 1) for box in boxes]
