"""Drawn images, which can be drawn again with other things in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from mmprobe.benchmarks.synthetic.scene import Background, Scene, SceneObject, render
from mmprobe.samples import Sample


def read_scenes(sample: Sample) -> Iterator[tuple[Path, Scene]]:
    """Yield the images of a drawn sample with their scenes; nothing where the file of the scenes is not there."""
    name = sample.metadata.get("scene")
    file = None if not isinstance(name, str) else sample.images[0].parent.parent / name
    if file is None or not file.is_file():
        return
    scenes = json.loads(file.read_text(encoding="utf-8"))
    for image, key in zip(sample.images, ("first", "second"), strict=False):
        objects = [SceneObject(**thing) for thing in scenes[key]["objects"]]
        yield image, Scene(tuple(objects), Background(**scenes[key]["background"]))


def draw(scene: Scene) -> Image.Image:
    """Return the image of a scene."""
    return Image.fromarray(render(scene))
