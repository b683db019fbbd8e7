"""Choose the objects of a photograph and their edits, by rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from mmprobe.benchmarks.photo_pairs.colours import list_new_colours
from mmprobe.benchmarks.photo_pairs.masks import Mask, bounding_box, dilate, shift_mask, union
from mmprobe.benchmarks.photo_pairs.photos import Photo, Rejection
from mmprobe.benchmarks.spd_faith.data import name_place
from mmprobe.benchmarks.synthetic.scene import Difficulty, EditType

MAX_EDITS = 5
# Probabilities where all types are possible. 40 % for color is the paper's (medium and hard), the others are
# our choice.
TYPE_PROBABILITIES: dict[EditType, float] = {"color": 0.4, "remove": 0.3, "position": 0.3}
# A mask does not separate skin or fur from clothes, so living things keep their colour. Ours.
LIVING = frozenset(
    ("person", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
)


@dataclass(frozen=True)
class Rules:
    """Limits of the planner. Where no source is given, we chose the numbers.

    Attributes:
        smallest, largest: share of the image that an editable object covers.
        overlap: largest share of an editable object that other masks cover.
        margin: pixels around an object's mask that an edit may change, since masks are not exact.
        level: largest vertical move of an object, as a share of the image height, if such a place is free.
        few, many: smallest number of objects in a medium and in a hard image (appendix A.2: up to 6 in easy
            images, 17 in hard images).
        small, large: a change is hard to see below the share `small` of the image, and easy to see above
            `large`.
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
class PhotoEdit:
    """One atomic edit of one object, by its index in the photograph's instances.

    `color` has the new colour, `position` the shift in pixels to the right and down.
    """

    type: EditType
    instance: int
    colour: str | None = None
    shift: tuple[int, int] | None = None


def rate_difficulty(n_objects: int, changed_share: float, rules: Rules) -> Difficulty:
    """Return the difficulty from the number of objects and the changed area (appendix A.2).

    The number decides. If the area says the opposite, the pair is medium. We chose this combination.

    Example:
        >>> [rate_difficulty(n, share, Rules()) for n, share in ((3, 0.02), (3, 0.001), (20, 0.001))]
        ['easy', 'medium', 'hard']
    """
    by_count = 0 if n_objects < rules.few else 1 if n_objects < rules.many else 2
    by_area = 0 if changed_share > rules.large else 2 if changed_share < rules.small else 1
    levels: tuple[Difficulty, ...] = ("easy", "medium", "hard")
    return "medium" if abs(by_count - by_area) == 2 else levels[by_count]


def find_editable(photo: Photo, rules: Rules) -> tuple[list[int], Counter[str]]:
    """Return the indices of the editable objects, and the number of other objects by reason.

    An object is editable if it is not a crowd, is neither too small nor too large, and hardly overlaps with
    others.
    """
    editable = []
    reasons = Counter[str]()
    n_masks = np.zeros(photo.pixels.shape[:2], dtype=np.int32)
    for instance in photo.instances:
        n_masks += instance.mask
    for index, instance in enumerate(photo.instances):
        area = int(instance.mask.sum())
        image_area = instance.mask.size
        if instance.crowd:
            reasons["crowds"] += 1
        elif area < rules.smallest * image_area:
            reasons["too small"] += 1
        elif area > rules.largest * image_area:
            reasons["too large"] += 1
        elif (n_masks[instance.mask] > 1).sum() > rules.overlap * area:
            reasons["overlap others"] += 1
        else:
            editable.append(index)
    return editable, reasons


def find_occupied(photo: Photo, edits: list[PhotoEdit]) -> Mask:
    """Return the pixels of all objects, and of the new places of moved objects."""
    new_places = [shift_mask(photo.instances[edit.instance].mask, edit.shift) for edit in edits if edit.shift]
    return union([*(instance.mask for instance in photo.instances), *new_places], photo.pixels.shape[:2])


def find_free_shift(
    photo: Photo, index: int, occupied: Mask, rng: np.random.Generator, rules: Rules
) -> tuple[int, int] | None:
    """Return a random shift that moves an object, with its margin, to a free place; None if there is none.

    Objects at the edge of the image are not moved, because they are probably cut off there. Places at a
    similar height are preferred, and among them places with another name, such as `top left`.
    """
    x, y, width, height = bounding_box(photo.instances[index].mask)
    rows, columns = occupied.shape
    if x <= 1 or y <= 1 or x + width >= columns - 1 or y + height >= rows - 1:
        return None
    window_height, window_width = height + 2 * rules.margin, width + 2 * rules.margin
    if window_height > rows or window_width > columns:
        return None
    # Summed-area table: the number of occupied pixels in every window, without a loop over the windows.
    sums = np.pad(dilate(occupied, rules.margin).astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    n_occupied = (
        sums[window_height:, window_width:]
        - sums[:-window_height, window_width:]
        - sums[window_height:, :-window_width]
        + sums[:-window_height, :-window_width]
    )
    tops, lefts = (indices + rules.margin for indices in np.nonzero(n_occupied == 0))
    if not len(tops):
        return None
    same_level = np.abs(tops - y) <= rules.level * rows
    old_name = name_place((x, y, width, height), (columns, rows))
    corners = zip(lefts.tolist(), tops.tolist(), strict=True)
    names = np.array([name_place((left, top, width, height), (columns, rows)) for left, top in corners])
    other_name = names != old_name
    for preferred in (same_level & other_name, other_name, same_level, np.ones_like(same_level)):
        if preferred.any():
            choice = rng.choice(np.flatnonzero(preferred))
            return int(lefts[choice]) - x, int(tops[choice]) - y
    return None


def plan_by_rules(
    photo: Photo, differences: tuple[int, int], rng: np.random.Generator, rules: Rules
) -> list[PhotoEdit]:
    """Return random edits of different editable objects. Raises Rejection where too few can be edited."""
    editable, reasons = find_editable(photo, rules)
    n_edits = int(rng.integers(differences[0], differences[1] + 1))
    edits: list[PhotoEdit] = []
    for index in rng.permutation(editable).tolist():
        edit = _choose_edit(photo, index, find_occupied(photo, edits), rng, rules)
        if edit is not None:
            edits.append(edit)
        if len(edits) == n_edits:
            break
    if len(edits) < differences[0]:
        others = "".join(f", {count} {reason}" for reason, count in sorted(reasons.items()))
        raise Rejection(
            "plan",
            f"{len(edits)} of {len(photo.instances)} objects can be edited, {differences[0]} needed{others}",
        )
    return edits


def _choose_edit(
    photo: Photo, index: int, occupied: Mask, rng: np.random.Generator, rules: Rules
) -> PhotoEdit | None:
    """Return an edit of a random type, among the types that are possible for the object."""
    probabilities = dict(TYPE_PROBABILITIES)
    while probabilities:
        weights = np.array(list(probabilities.values()))
        edit_type = list(probabilities)[rng.choice(len(probabilities), p=weights / weights.sum())]
        edit = make_edit(photo, index, edit_type, None, occupied, rng, rules)
        if edit is not None:
            return edit
        del probabilities[edit_type]
    return None


def make_edit(
    photo: Photo,
    index: int,
    edit_type: EditType,
    colour: str | None,
    occupied: Mask,
    rng: np.random.Generator,
    rules: Rules,
) -> PhotoEdit | None:
    """Return an edit of one type of one object; None if it is impossible."""
    if edit_type == "remove":
        return PhotoEdit(edit_type, index)
    if edit_type == "position":
        shift = find_free_shift(photo, index, occupied, rng, rules)
        return PhotoEdit(edit_type, index, shift=shift) if shift else None
    if photo.instances[index].category in LIVING:
        return None
    colours = list_new_colours(photo.pixels, photo.instances[index].mask)
    if colour is None and colours:
        colour = colours[rng.integers(len(colours))]
    return PhotoEdit(edit_type, index, colour=colour) if colour in colours else None
