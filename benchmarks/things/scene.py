"""Scenes of things on a three by three grid, the edits that change them, and their pixels.

The 64 things are drawn from the font Noto Color Emoji (SIL Open Font License 1.1) as shades, which take any of six colours.
A thing is named once in a scene, so "the shoe" names exactly one. Equal scenes give equal bytes, and an edit changes no pixel outside
its boxes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, MAX_DIFFERENCES, EditType
from mmprobe.samples import Box, Region, open_image

SHEET = Path(__file__).with_name("things.png")
SPRITE_PIXELS = 64
IMAGE_PIXELS = 192
GRID = 3
CELL_PIXELS = 61.44  # distance of the cells' centres
MAX_SHIFT = 3.84  # pixels from the centre of the cell
SIDES = (46.08, 61.44)  # pixels of the smallest and the largest thing
OBJECT_COUNT = (2, 3)

_THINGS = """
apple banana lemon strawberry carrot tomato pear cherry pineapple mushroom
dog cat horse cow pig rabbit elephant fish bird duck frog turtle lion bear snake
car bus bicycle train airplane boat rocket tractor truck helicopter
book clock key umbrella chair phone camera guitar drum hat shoe shirt cup hammer scissors
star heart flower tree cactus house bell balloon gift candle ball crown egg bread
"""
THINGS = tuple(_THINGS.split())
"""The things by their names, in the order of the sheet."""
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "yellow": (240, 210, 30),
    "green": (40, 170, 60),
    "blue": (50, 90, 230),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
}
_USUAL_COLOURS = {
    "red": "apple strawberry tomato cherry heart rocket car book balloon",
    "yellow": "banana lemon star bus crown bell key",
    "green": "frog turtle snake tree cactus pear tractor",
    "orange": "carrot lion",
    "blue": "fish",
    "purple": "umbrella",
}
USUAL_COLOURS = {name: colour for colour, names in _USUAL_COLOURS.items() for name in names.split()}
"""Half of the time, these things have these colours. So a guess from the name alone is often right."""
PLACES = (
    "top left",
    "top center",
    "top right",
    "middle left",
    "center",
    "middle right",
    "bottom left",
    "bottom center",
    "bottom right",
)


@dataclass(frozen=True)
class PlacedThing:
    """A thing in a scene: its cell is 0 to 8 in reading order; shift (right, down) and side are in pixels."""

    name: str
    colour: str
    cell: int
    shift: tuple[float, float]
    side: float

    @property
    def place(self) -> str:
        """The name of its cell, such as `top left`."""
        return PLACES[self.cell]


@dataclass(frozen=True)
class ThingScene:
    """Things on a background that goes from one colour at the top to another at the bottom, each RGB of 0 to 1."""

    things: tuple[PlacedThing, ...]
    top: tuple[float, float, float]
    bottom: tuple[float, float, float]

    def find_free_cells(self) -> list[int]:
        """Return the cells that hold nothing."""
        taken = {thing.cell for thing in self.things}
        return [cell for cell in range(GRID * GRID) if cell not in taken]

    def find_absent(self) -> list[str]:
        """Return the names of the things that the scene lacks."""
        present = {thing.name for thing in self.things}
        return [name for name in THINGS if name not in present]


@dataclass(frozen=True)
class ThingEdit:
    """A change of one thing. Without `after` it is removed, and without `before` it is added."""

    before: PlacedThing | None
    after: PlacedThing | None

    @property
    def type(self) -> EditType:
        """What differs. Of a thing in one of the two scenes alone, it is `remove`."""
        if self.before is None or self.after is None:
            return "remove"
        return "color" if self.before.colour != self.after.colour else "position"

    @property
    def name(self) -> str:
        """The thing's name."""
        thing = self.before or self.after
        assert thing is not None
        return thing.name

    def apply(self, scene: ThingScene) -> ThingScene:
        """Return the scene with the change, its other things in their order."""
        things = [self.after if thing == self.before else thing for thing in scene.things]
        added = [self.after] if self.before is None else []
        return replace(scene, things=tuple(thing for thing in (*things, *added) if thing is not None))


def draw_scene(rng: np.random.Generator, count: int) -> ThingScene:
    """Draw a random scene of some things.

    Example:
        >>> len(draw_scene(np.random.default_rng(0), 3).things)
        3
    """
    cells = rng.permutation(GRID * GRID)[:count].tolist()
    names = [THINGS[index] for index in rng.permutation(len(THINGS))[:count]]
    things = tuple(draw_thing(rng, name, cell) for name, cell in zip(names, cells, strict=True))
    top, bottom = (0.55 + 0.45 * rng.random((2, 3))).tolist()
    return ThingScene(things, tuple(top), tuple(bottom))


def draw_thing(rng: np.random.Generator, name: str, cell: int) -> PlacedThing:
    """Draw the colour, the shift and the side of a thing."""
    usual = USUAL_COLOURS.get(name)
    colour = usual if usual and rng.random() < 0.5 else list(COLOURS)[rng.integers(len(COLOURS))]
    right, down = rng.uniform(-MAX_SHIFT, MAX_SHIFT, 2).tolist()
    return PlacedThing(name, colour, cell, (right, down), float(rng.uniform(*SIDES)))


def recolour(rng: np.random.Generator, thing: PlacedThing) -> ThingEdit:
    """Draw another colour for a thing."""
    others = [colour for colour in COLOURS if colour != thing.colour]
    return ThingEdit(thing, replace(thing, colour=others[rng.integers(len(others))]))


def move(rng: np.random.Generator, thing: PlacedThing, free: list[int]) -> ThingEdit:
    """Draw another cell for a thing, one of those that are free."""
    return ThingEdit(thing, replace(thing, cell=free[rng.integers(len(free))]))


def draw_edits(rng: np.random.Generator, scene: ThingScene, differences: int) -> tuple[ThingEdit, ...]:
    """Draw changes of different things, in the scene's order. At least one thing is not removed.

    Raises:
        ValueError: there are fewer things than differences, or more than 3 differences are asked for.
    """
    if not 0 <= differences <= min(MAX_DIFFERENCES, len(scene.things)):
        raise ValueError(f"{differences} differences in a scene of {len(scene.things)} things")
    changed = sorted(rng.permutation(len(scene.things))[:differences].tolist())
    types = [EDIT_TYPES[i] for i in rng.integers(len(EDIT_TYPES), size=differences)]
    if types.count("remove") == len(scene.things):
        types[-1] = "color"
    free, edits = scene.find_free_cells(), []
    for index, kind in zip(changed, types, strict=True):
        thing = scene.things[index]
        if kind == "color":
            edits.append(recolour(rng, thing))
        elif kind == "remove":
            edits.append(ThingEdit(thing, None))
        else:
            edits.append(move(rng, thing, free))
            assert edits[-1].after is not None
            free.remove(edits[-1].after.cell)
    return tuple(edits)


def apply_edits(scene: ThingScene, edits: Iterable[ThingEdit]) -> ThingScene:
    """Return the scene with all the changes."""
    for edit in edits:
        scene = edit.apply(scene)
    return scene


@cache
def _read_sheet() -> np.ndarray:
    """Return shade and opacity of each thing, float32 [thing, 64, 64, 2] in 0 to 1."""
    with open_image(SHEET) as file:
        sheet = np.asarray(file, np.float32) / 255
    rows, columns = (side // SPRITE_PIXELS for side in sheet.shape[:2])
    tiles = sheet.reshape(rows, SPRITE_PIXELS, columns, SPRITE_PIXELS, 2).swapaxes(1, 2)
    return tiles.reshape(-1, SPRITE_PIXELS, SPRITE_PIXELS, 2)


def _weigh_pixels(centre: float, side: float) -> np.ndarray:
    """Return the weight of each pixel of a sprite in each pixel of the image, along one axis, float32 [192, 64]."""
    image, sprite = np.arange(IMAGE_PIXELS), np.arange(SPRITE_PIXELS)
    place = (image + 0.5 - centre + side / 2) / side * SPRITE_PIXELS - 0.5
    return np.clip(1 - np.abs(place[:, None] - sprite), 0, None).astype(np.float32)  # bilinear


def _spread(thing: PlacedThing) -> tuple[np.ndarray, np.ndarray]:
    """Return the colours of a thing over the image, float32 [192, 192, 3], and its opacity [192, 192, 1]."""
    shade, opacity = np.moveaxis(_read_sheet()[THINGS.index(thing.name)], -1, 0)
    light = 0.45 + 0.55 * shade[..., None]
    colour = np.asarray(COLOURS[thing.colour], np.float32) / 255
    tinted = 0.85 * np.minimum(1.1 * light, 1) * colour + 0.15 * light
    row, column = divmod(thing.cell, GRID)
    middle = IMAGE_PIXELS / 2
    across = _weigh_pixels(middle + (column - 1) * CELL_PIXELS + thing.shift[0], thing.side)
    down = _weigh_pixels(middle + (row - 1) * CELL_PIXELS + thing.shift[1], thing.side)
    layers = np.moveaxis(np.concatenate([tinted, opacity[..., None]], -1), -1, 0)
    spread = np.moveaxis(down @ layers @ across.T, 0, -1)
    return spread[..., :3], spread[..., 3:]


def render(scene: ThingScene) -> np.ndarray:
    """Draw a scene as RGB pixels, uint8 [192, 192, 3].

    Example:
        >>> render(draw_scene(np.random.default_rng(0), 2)).shape
        (192, 192, 3)
    """
    down = np.linspace(0, 1, IMAGE_PIXELS, dtype=np.float32)[:, None, None]
    top, bottom = np.asarray(scene.top, np.float32), np.asarray(scene.bottom, np.float32)
    canvas = np.broadcast_to(top * (1 - down) + bottom * down, (IMAGE_PIXELS, IMAGE_PIXELS, 3))
    for thing in scene.things:
        colours, opacity = _spread(thing)
        canvas = canvas * (1 - opacity) + colours * opacity
    return (canvas * 255).round().clip(0, 255).astype(np.uint8)


def thing_box(thing: PlacedThing) -> Box:
    """Return the smallest box (x, y, width, height in pixels) around all pixels of a thing."""
    rows, columns = np.nonzero(_spread(thing)[1][..., 0])
    top, left = int(rows.min()), int(columns.min())
    return left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top


def edit_regions(edit: ThingEdit, images: Iterable[int] = (0, 1)) -> list[Region]:
    """Return the regions that an edit changes: of a move both places. Pixels outside them are equal in both images."""
    boxes = dict.fromkeys(thing_box(thing) for thing in (edit.before, edit.after) if thing is not None)
    return [Region(image=image, box=box) for image in images for box in boxes]
