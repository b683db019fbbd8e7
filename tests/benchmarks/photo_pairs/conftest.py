"""A small data set in COCO's form: drawn images with noise and shade, and objects with polygons."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 320, 240
CATEGORIES = ["person", "car", "dog", "cup", "chair", "skis"]
# category, centre x and y, half width and height, colour
OBJECTS = [
    ("car", 50, 60, 26, 16, (200, 30, 30)),
    ("dog", 150, 70, 18, 18, (120, 80, 40)),
    ("cup", 260, 60, 14, 18, (40, 90, 210)),
    ("person", 60, 170, 14, 36, (230, 190, 160)),
    ("chair", 170, 175, 22, 22, (128, 128, 128)),
    ("car", 260, 170, 28, 18, (240, 240, 240)),
]


def ring(x, y, half_width, half_height, corners=24):
    """Return a polygon like an ellipse, in COCO's form: x, y, x, y, …"""
    angles = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return np.stack([x + half_width * np.cos(angles), y + half_height * np.sin(angles)], 1).round(2).ravel()


def draw(objects, seed):
    """Return an image of objects on a shaded, noisy background."""
    rng = np.random.default_rng(seed)
    shade = np.linspace(90, 190, WIDTH)[None, :, None] + np.linspace(0, 40, HEIGHT)[:, None, None]
    pixels = shade + rng.normal(0, 4, (HEIGHT, WIDTH, 3)) + rng.uniform(-15, 15, 3)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _, x, y, half_width, half_height, colour in objects:
        points = [tuple(point) for point in ring(x, y, half_width, half_height).reshape(-1, 2)]
        pen.polygon(points, fill=colour)
        pen.line([(x - half_width / 2, y), (x + half_width / 2, y)], fill=tuple(part // 2 for part in colour))
    return image.filter(ImageFilter.GaussianBlur(0.6))


def annotation(number, image_id, obj):
    category, *place, _ = obj
    polygon = ring(*place).tolist()
    return {
        "id": number,
        "image_id": image_id,
        "category_id": CATEGORIES.index(category) + 1,
        "segmentation": [polygon],
        "iscrowd": 0,
        "bbox": [place[0] - place[2], place[1] - place[3], 2 * place[2], 2 * place[3]],
        "area": 3.14 * place[2] * place[3],
    }


@pytest.fixture
def coco(tmp_path):
    """Return a function that writes such a data set and returns its folder of images and instances file."""

    def write(n_images=3, objects=OBJECTS, change=lambda data: None):
        folder = tmp_path / "coco"
        folder.mkdir(exist_ok=True)
        images, annotations = [], []
        for number in range(1, n_images + 1):
            name = f"{number:012d}.jpg"
            draw(objects, number).save(folder / name, quality=92)
            images.append({"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT, "license": 1})
            annotations += [annotation(10 * number + k, number, obj) for k, obj in enumerate(objects)]
        categories = [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)]
        data = {"images": images, "annotations": annotations, "categories": categories}
        change(data)
        (tmp_path / "instances.json").write_text(json.dumps(data))
        return folder, tmp_path / "instances.json"

    return write
