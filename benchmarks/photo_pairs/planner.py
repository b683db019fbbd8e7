"""Which objects of a photograph are edited, and how: by rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from mmprobe.benchmarks.photo_pairs.colours import new_colours
from mmprobe.benchmarks.photo_pairs.masks import Mask, box_of, dilate, shifted, union
from mmprobe.benchmarks.photo_pairs.photos import Photo, Rejected
from mmprobe.benchmarks.synthetic.scene import Difficulty, EditType

MOST_EDITS = 5
# The share of each type where all are possible: 40 % for color is the paper's (medium and hard), the rest ours.
TYPE_SHARES: dict[EditType, float] = {"color": 0.4, "remove": 0.3, "position": 0.3}
# A mask has no skin or fur apart from clothes: what lives is not recoloured. Ours.
LIVING = frozenset(
    ("person", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
)


@dataclass(frozen=True)
class Rules:
    """What the planner may choose; where the paper gives no number, which is nearly everywhere, they are
    ours.

    Attributes:
        smallest, largest: share of the picture that an object may cover.
        overlap: largest share of an object that other objects' masks may cover, too.
        margin: pixels around an object's mask that an edit may change; masks are never exact.
        level: largest part of the picture's height that a moved object goes up or down where there is room.
        few, many: fewest objects of a medium and of a hard picture (paper, appendix A.2: up to 6 easy, 17 on hard).
        small, large: share of the picture whose change is hard to see if smaller, easy if larger.
    """

    smallest: float = 0.003
    largest: float = 0.15
    overlap: float = 0.02
    margin: int = 5
    level: float = 0.15
    few: int = 7
    many: int = 17
    small: float = 0.01
    large: float = 0.05


@dataclass(frozen=True)
class Edit:
    """One atomic edit of one object.

    Attributes:
        instance: index into the photograph's instances.
        colour: the new one, for `color`.
        shift: pixels to the right and down, for `position`.
    """

    type: EditType
    instance: int
    colour: str | None = None
    shift: tuple[int, int] | None = None


def difficulty_of(count: int, changed: float, rules: Rules) -> Difficulty:
    """Easy, medium or hard, from the number of objects and the changed area (paper, appendix A.2).

    The count decides; where the area says the very opposite, the pair is medium. How the two go together is
    ours.

    Args:
        count: objects in the picture.
        changed: share of the picture whose pixels differ.

    Example:
        >>> [difficulty_of(*told, Rules()) for told in ((3, 0.02), (3, 0.001), (20, 0.001))]
        ['easy', 'medium', 'hard']
    """
    by_count = 0 if count < rules.few else 1 if count < rules.many else 2
    by_area = 0 if changed > rules.large else 2 if changed < rules.small else 1
    levels: tuple[Difficulty, ...] = ("easy", "medium", "hard")
    return "medium" if abs(by_count - by_area) == 2 else levels[by_count]


def fit_instances(photo: Photo, rules: Rules) -> tuple[list[int], Counter[str]]:
    """Indices of the objects that can be edited, and how many cannot for which reason.

    An object is fit if it is no crowd, is neither small nor large, and shares no pixels with another.
    """
    fit, unfit = [], Counter[str]()
    covered = np.zeros(photo.pixels.shape[:2], dtype=np.int32)
    for instance in photo.instances:
        covered += instance.mask
    for index, instance in enumerate(photo.instances):
        area, size = int(instance.mask.sum()), instance.mask.size
        if instance.crowd:
            unfit["crowds"] += 1
        elif area < rules.smallest * size:
            unfit["too small"] += 1
        elif area > rules.largest * size:
            unfit["too large"] += 1
        elif (covered[instance.mask] > 1).sum() > rules.overlap * area:
            unfit["overlap others"] += 1
        else:
            fit.append(index)
    return fit, unfit


def taken_by(photo: Photo, edits: list[Edit]) -> Mask:
    """The pixels where nothing can be put: all objects, and what was put elsewhere already."""
    moved = [shifted(photo.instances[edit.instance].mask, edit.shift) for edit in edits if edit.shift]
    return union([*(one.mask for one in photo.instances), *moved], photo.pixels.shape[:2])


def find_room(
    photo: Photo, index: int, taken: Mask, rng: np.random.Generator, rules: Rules
) -> tuple[int, int] | None:
    """A shift that brings an object's box, with its margin, to where nothing is taken; None if there is no
    room.

    An object that touches the picture's edge is likely cut off there, and has none. Places at about the same
    height are preferred, and of these such as have another name.
    """
    x, y, width, height = box_of(photo.instances[index].mask)
    rows, columns = taken.shape
    if x <= 1 or y <= 1 or x + width >= columns - 1 or y + height >= rows - 1:
        return None
    tall, wide = height + 2 * rules.margin, width + 2 * rules.margin
    if tall > rows or wide > columns:
        return None
    sums = np.pad(dilate(taken, rules.margin).astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    inside = sums[tall:, wide:] - sums[:-tall, wide:] - sums[tall:, :-wide] + sums[:-tall, :-wide]
    tops, lefts = (found + rules.margin for found in np.nonzero(inside == 0))
    if not len(tops):
        return None
    level = np.abs(tops - y) <= rules.level * rows
    here = place_of((x, y, width, height), taken.shape)
    centres = zip(lefts.tolist(), tops.tolist(), strict=True)
    names = np.array([place_of((left, top, width, height), taken.shape) for left, top in centres])
    for wanted in (level & (names != here), names != here, level, np.ones_like(level)):
        if wanted.any():
            chosen = rng.choice(np.flatnonzero(wanted))
            return int(lefts[chosen]) - x, int(tops[chosen]) - y
    return None


def place_of(box: tuple[int, int, int, int], shape: tuple[int, ...]) -> str:
    """The ninth of the picture in which a box has its centre: `top left`, `right`, `center`.

    Args:
        box: x, y, width and height in pixels.
        shape: height and width of the picture.
    """
    x, y, width, height = box
    row = ("top", "", "bottom")[min(2, int(3 * (y + height / 2) / shape[0]))]
    column = ("left", "", "right")[min(2, int(3 * (x + width / 2) / shape[1]))]
    return f"{row} {column}".strip() or "center"


def plan_by_rules(
    photo: Photo, differences: tuple[int, int], rng: np.random.Generator, rules: Rules
) -> list[Edit]:
    """Edits of different objects, chosen at random among those that are fit.

    Args:
        differences: fewest and most; the number is drawn, and lowered where fewer objects can be edited.

    Raises:
        Rejected: fewer objects can be edited than the fewest that are wanted.
    """
    fit, unfit = fit_instances(photo, rules)
    wanted = int(rng.integers(differences[0], differences[1] + 1))
    edits: list[Edit] = []
    for index in rng.permutation(fit).tolist():
        edit = _choose(photo, index, taken_by(photo, edits), rng, rules)
        if edit is not None:
            edits.append(edit)
        if len(edits) == wanted:
            break
    if len(edits) < differences[0]:
        others = "".join(f", {count} {reason}" for reason, count in sorted(unfit.items()))
        raise Rejected(
            "plan",
            f"{len(edits)} of {len(photo.instances)} objects can be edited, {differences[0]} needed{others}",
        )
    return edits


def _choose(photo: Photo, index: int, taken: Mask, rng: np.random.Generator, rules: Rules) -> Edit | None:
    left = dict(TYPE_SHARES)
    while left:
        shares = np.array(list(left.values()))
        kind = list(left)[rng.choice(len(left), p=shares / shares.sum())]
        edit = edit_of(photo, index, kind, None, taken, rng, rules)
        if edit is not None:
            return edit
        del left[kind]
    return None


def edit_of(
    photo: Photo,
    index: int,
    kind: EditType,
    colour: str | None,
    taken: Mask,
    rng: np.random.Generator,
    rules: Rules,
) -> Edit | None:
    """An edit of one kind of one object; None where it cannot be made.

    Args:
        colour: the new one, for `color`; None for any.
        taken: where a moved object may not go.
    """
    if kind == "remove":
        return Edit(kind, index)
    if kind == "position":
        shift = find_room(photo, index, taken, rng, rules)
        return Edit(kind, index, shift=shift) if shift else None
    if photo.instances[index].category in LIVING:
        return None
    colours = new_colours(photo.pixels, photo.instances[index].mask)
    if colour is None and colours:
        colour = colours[rng.integers(len(colours))]
    return Edit(kind, index, colour=colour) if colour in colours else None
