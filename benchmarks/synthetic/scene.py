"""Scenes of coloured shapes on a four by four grid, the atomic edits that change them, and their pixels.

The vocabulary is closed. So every statement of a model can be checked against the scene that was drawn. Difficulties
and numbers of differences can be mixed as in SPD-Faith Bench. Equal scenes give equal bytes, and an edit changes no pixel
outside its boxes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from mmprobe.samples import Box

GRID = 4
CELL_PIXELS = 28
IMAGE_PIXELS = GRID * CELL_PIXELS
COLUMNS = "ABCD"
SUPERSAMPLE = 4
NOISE_STD = 4.0

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring", "heart")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (245, 135, 20),
    "yellow": (240, 220, 40),
    "green": (40, 160, 60),
    "cyan": (50, 200, 215),
    "blue": (40, 80, 210),
    "purple": (135, 50, 170),
    "black": (25, 25, 28),
}

Difficulty = Literal["easy", "medium", "hard"]
EditType = Literal["color", "remove", "position"]
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
EDIT_TYPES: tuple[EditType, ...] = ("color", "remove", "position")
OBJECT_COUNT = {"easy": (2, 3), "medium": (4, 5), "hard": (6, 7)}
RADIUS_PIXELS = {"easy": (11, 12), "medium": (9, 10), "hard": (7, 8)}
MAX_DIFFERENCES = 3


@dataclass(frozen=True)
class SceneObject:
    """One shape in a scene. Its objects have different shapes, so "the circle" names exactly one."""

    shape: str
    colour: str
    row: int
    column: int
    radius: int
    shift: tuple[int, int]
    rgb: tuple[int, int, int]

    @property
    def cell(self) -> str:
        """The name of the cell: column letter and row number from the top, such as `B3`."""
        return f"{COLUMNS[self.column]}{self.row + 1}"


@dataclass(frozen=True)
class Background:
    """A base colour, a linear gradient (change of grey level over the image, down and right) and noise."""

    rgb: tuple[int, int, int]
    gradient: tuple[int, int]
    noise_seed: int


@dataclass(frozen=True)
class Scene:
    """Objects in reading order on a background."""

    objects: tuple[SceneObject, ...]
    background: Background

    def find(self, shape: str) -> SceneObject | None:
        """Return the object of a shape, or None."""
        return next((obj for obj in self.objects if obj.shape == shape), None)

    def to_json(self) -> dict:
        """Return the scene as a dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Edit:
    """One atomic change of one object. `after` is None if the object was removed."""

    type: EditType
    before: SceneObject
    after: SceneObject | None


@dataclass(frozen=True)
class ScenePair:
    """A scene, its edited copy, and the edits in the reading order of the first scene."""

    first: Scene
    second: Scene
    edits: tuple[Edit, ...]
    difficulty: Difficulty


def _reading_order(objects: list[SceneObject]) -> tuple[SceneObject, ...]:
    return tuple(sorted(objects, key=lambda obj: (obj.row, obj.column)))


def _draw_rgb(rng: np.random.Generator, colour: str) -> tuple[int, int, int]:
    red, green, blue = np.clip(np.array(COLOURS[colour]) + rng.integers(-12, 13, 3), 0, 255).tolist()
    return red, green, blue


def draw_scene(rng: np.random.Generator, difficulty: Difficulty, min_objects: int = 1) -> Scene:
    """Draw a random scene. A harder scene has more and smaller objects."""
    low, high = OBJECT_COUNT[difficulty]
    count = int(rng.integers(max(low, min_objects), high + 1))
    shapes = rng.permutation(len(SHAPES))[:count]
    cells = rng.permutation(GRID * GRID)[:count]
    smallest, largest = RADIUS_PIXELS[difficulty]
    objects = []
    for shape, cell in zip(shapes, cells, strict=True):
        radius = int(rng.integers(smallest, largest + 1))
        slack = min(2, CELL_PIXELS // 2 - 1 - radius)
        colour = list(COLOURS)[rng.integers(len(COLOURS))]
        dy, dx = rng.integers(-slack, slack + 1, 2).tolist()
        objects.append(
            SceneObject(
                SHAPES[shape],
                colour,
                int(cell) // GRID,
                int(cell) % GRID,
                radius,
                (dy, dx),
                _draw_rgb(rng, colour),
            )
        )
    grey = int(rng.integers(150, 236))
    red, green, blue = np.clip(grey + rng.integers(-14, 15, 3), 0, 255).tolist()
    down, right = rng.integers(-30, 31, 2).tolist()
    background = Background((red, green, blue), (down, right), int(rng.integers(2**31)))
    return Scene(_reading_order(objects), background)


def draw_pair(rng: np.random.Generator, difficulty: Difficulty, differences: int) -> ScenePair:
    """Draw a scene and its copy with `differences` atomic edits, each of another object.

    At least one object is not removed.

    Raises:
        ValueError: differences is not 0 to 3.
    """
    if not 0 <= differences <= MAX_DIFFERENCES:
        raise ValueError(f"differences must be 0 to {MAX_DIFFERENCES}, got {differences}")
    first = draw_scene(rng, difficulty, min_objects=differences)
    indices = sorted(rng.permutation(len(first.objects))[:differences].tolist())
    types = [EDIT_TYPES[i] for i in rng.integers(len(EDIT_TYPES), size=differences)]
    if types.count("remove") == len(first.objects):
        types[-1] = "color"
    used_cells = {(obj.row, obj.column) for obj in first.objects}
    edits = []
    for index, edit_type in zip(indices, types, strict=True):
        before = first.objects[index]
        after = None
        if edit_type == "color":
            others = [name for name in COLOURS if name != before.colour]
            colour = others[rng.integers(len(others))]
            after = replace(before, colour=colour, rgb=_draw_rgb(rng, colour))
        elif edit_type == "position":
            free_cells = [
                (row, column)
                for row in range(GRID)
                for column in range(GRID)
                if (row, column) not in used_cells
            ]
            row, column = free_cells[rng.integers(len(free_cells))]
            used_cells.add((row, column))
            after = replace(before, row=row, column=column)
        edits.append(Edit(edit_type, before, after))
    replacements = {edit.before: edit.after for edit in edits}
    remaining = [replacements.get(obj, obj) for obj in first.objects]
    second = Scene(_reading_order([obj for obj in remaining if obj is not None]), first.background)
    return ScenePair(first, second, tuple(edits), difficulty)


Mix = Literal["even", "paper"]
# The mix of SPD-Faith Bench (arXiv:2602.07833, appendix A.2). Two thirds of its pairs have one difference, and the others
# have 2 to 5. 10 % of the former are easy, 50 % medium and 40 % hard; we assume the same of the latter. The paper
# gives the shares of 2 and 3 differences; we assume that the others are equal.
MIX_LEVELS: dict[Difficulty, float] = {"easy": 0.1, "medium": 0.5, "hard": 0.4}
MIX_COUNTS = {1: 2 / 3, 2: 0.187 / 3, 3: 0.275 / 3, 4: 0.269 / 3, 5: 0.269 / 3}


def draw_count(rng: np.random.Generator, most: int) -> int:
    """Return a number of differences. Pairs with more than `most` are left out of the mix."""
    counts = [count for count in MIX_COUNTS if count <= most]
    single, others = MIX_COUNTS[1], np.array([MIX_COUNTS[count] for count in counts[1:]])
    shares = [single, *((1 - single) * others / others.sum())]
    return int(rng.choice(counts, p=shares))


def draw_level(rng: np.random.Generator) -> Difficulty:
    """Return a difficulty."""
    return list(MIX_LEVELS)[rng.choice(len(MIX_LEVELS), p=list(MIX_LEVELS.values()))]


def count_levels(n: int) -> dict[Difficulty, int]:
    """Return how many of n pairs have each difficulty.

    Example:
        >>> count_levels(25)
        {'easy': 2, 'medium': 13, 'hard': 10}
    """
    easy, hard = round(MIX_LEVELS["easy"] * n), round(MIX_LEVELS["hard"] * n)
    return {"easy": easy, "medium": n - easy - hard, "hard": hard}


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


def is_drawn(listed: Any) -> bool:
    """Return whether a list of what images hold is of the synthetic world: of each image the texts of its objects.

    Others list names, or annotations of photographs.

    Example:
        >>> [is_drawn(listed) for listed in ([["red star B2"], []], [["dog"]], [[{"name": "dog"}]], None)]
        [True, False, False, False]
    """
    return isinstance(listed, list) and all(
        isinstance(image, list) and all(isinstance(each, str) and len(each.split()) == 3 for each in image)
        for image in listed
    )
