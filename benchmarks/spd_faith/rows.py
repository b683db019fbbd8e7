"""One true difference, one pair, and the published rows (SPD-Faith Bench, arXiv:2602.07833) that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.lexical.claims import parse_claims
from mmprobe.benchmarks.synthetic.scene import EditType
from mmprobe.errors import InputError
from mmprobe.samples import Region, check_id

Box = tuple[float, float, float, float]
_MAX_PIXELS = 1e9  # larger than any image; NaN is not below it either
_SPELLINGS: dict[str, EditType] = {
    **dict.fromkeys(("color", "colour", "color change", "colour change", "recolor"), "color"),
    **dict.fromkeys(("remove", "removal", "removed", "object removal"), "remove"),
    **dict.fromkeys(("position", "position change", "move", "moved"), "position"),
}


@dataclass(frozen=True)
class Difference:
    """One true difference, of a COCO category or a shape of the synthetic world.

    The description may be empty. The box is x, y, width, height in pixels. `before` and `after` are the
    colour or place, if the description names it. `regions` are the places that it changes in both images:
    those of the data set, else the box.
    """

    type: EditType
    category: str
    description: str = ""
    box: Box | None = None
    before: str | None = None
    after: str | None = None
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two images and all their differences, none if the images are equal.

    Difficulty and image files are there if they are known. An answer may come under any of `question_ids`.
    `regions` are the changed places in both images: those of the row, else those of its differences.
    """

    id: str
    differences: tuple[Difference, ...]
    difficulty: str | None = None
    images: tuple[Path, ...] = ()
    question_ids: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()


def parse_row(row: Mapping[str, Any], where: str = "row") -> Pair:
    """Return the pair of one row of the published data set.

    `differences` may be a list of objects or one object of lists. Colours and places are read from the
    descriptions. Published rows have the caption of the whole pair in the first description; such differences
    get descriptions of their own. Raises InputError for a field that is missing or malformed.

    Example:
        >>> parse_row({"image_id": 7, "num_differences": 1, "differences": [
        ...     {"type": "color", "category": "car", "description": "The car turned from red to blue."}]}).id
        '7'
    """
    name = row.get("image_id", row.get("id"))
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise InputError(f"{where}: field 'image_id' is missing or not a text or number")
    longest_id = f"{name}-different"  # of all ids of questions about the pair
    try:
        check_id(longest_id)
    except ValueError as error:
        raise InputError(f"{where}: field 'image_id': {longest_id!r}, a question's id, {error}") from None
    items = _list_differences(row.get("differences"), where)
    n_differences = row.get("num_differences", len(items))
    if n_differences != len(items):
        raise InputError(
            f"{where}: num_differences is {n_differences!r}, but {len(items)} differences are listed"
        )
    differences = [
        _parse_published(item, f"{where}, difference {number}") for number, item in enumerate(items, 1)
    ]
    difficulty = row.get("difficulty")
    if difficulty is not None and not isinstance(difficulty, str):
        raise InputError(f"{where}: field 'difficulty' is not a text")
    return Pair(
        str(name),
        _add_attributes(differences),
        difficulty.lower() if difficulty else None,
        regions=_parse_regions(row["regions"], where)
        if row.get("regions")  # the rows of `make-pairs`
        else tuple(region for difference in differences for region in difference.regions),
    )


def _parse_regions(value: Any, where: str) -> tuple[Region, ...]:
    try:
        return tuple(Region.model_validate(region) for region in value)
    except (ValidationError, TypeError):
        raise InputError(f"{where}: field 'regions' must be a list of {{image, box}}") from None


def _box_in_both_images(box: Box | None) -> tuple[Region, ...]:
    return tuple(Region(image=image, box=_round_box(box)) for image in (0, 1)) if box else ()


def _round_box(box: Box) -> tuple[int, int, int, int]:
    """Return the smallest box of whole pixels around a box."""
    x, y, width, height = box
    return floor(x), floor(y), ceil(x + width) - floor(x), ceil(y + height) - floor(y)


def to_row(pair: Pair) -> dict[str, Any]:
    """Return what `parse_row` reads: the published row of a pair, as JSON values."""
    differences = []
    for each in pair.differences:
        row = {key: getattr(each, key) for key in ("type", "category", "description", "before", "after")}
        regions = [region.model_dump(mode="json") for region in each.regions]
        differences.append({**row, "bbox": list(each.box or ()), "regions": regions})
    return {
        "image_id": pair.id,
        "num_differences": len(differences),
        "differences": differences,
        "difficulty": pair.difficulty,
    }


def _list_differences(value: Any, where: str) -> list[Mapping[str, Any]]:
    """Return the differences as a list of objects, from such a list or from an object of columns."""
    if isinstance(value, Mapping):
        columns = {key: column for key, column in value.items() if isinstance(column, Sequence)}
        lengths = {len(column) for column in columns.values()}
        if len(columns) != len(value) or len(lengths) > 1:
            raise InputError(f"{where}: field 'differences' has columns of several lengths")
        value = [
            {key: column[index] for key, column in columns.items()}
            for index in range(max(lengths, default=0))
        ]
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InputError(f"{where}: field 'differences' must be a list of objects")
    return value


def _parse_published(item: Mapping[str, Any], where: str) -> Difference:
    edit_type, category = item.get("type"), item.get("category")
    if not isinstance(edit_type, str) or edit_type.strip().lower().replace("_", " ") not in _SPELLINGS:
        raise InputError(f"{where}: type is {edit_type!r}; it must be color, remove or position")
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{where}: field 'category' is missing or not a text")
    category = category.strip().lower()
    box = _parse_box(item, where)
    regions = item.get("regions")
    return Difference(
        _SPELLINGS[edit_type.strip().lower().replace("_", " ")],
        find_category(category) or category,
        _text_or(item, "description", ""),
        box,
        _text_or(item, "before", None),
        _text_or(item, "after", None),
        _parse_regions(regions, where) if regions else _box_in_both_images(box),
    )


def _text_or(item: Mapping[str, Any], key: str, default: Any) -> Any:
    return item[key] if isinstance(item.get(key), str) else default


def _parse_box(item: Mapping[str, Any], where: str) -> Box | None:
    numbers = [item.get(f"bbox_{side}") for side in "xywh"]
    if any(number is None for number in numbers):
        numbers = item.get("bbox") or []
    if numbers == []:
        return None
    if (
        not isinstance(numbers, list)
        or len(numbers) != 4
        or not all(isinstance(number, int | float) and abs(number) < _MAX_PIXELS for number in numbers)
    ):
        raise InputError(f"{where}: its box must be four numbers: x, y, width and height")
    x, y, width, height = (float(number) for number in numbers)
    return x, y, width, height


def _add_attributes(differences: list[Difference]) -> tuple[Difference, ...]:
    """Return the differences with the colours or places from the captions, and with descriptions of their own.

    Each difference without colours or places takes the first unused claim of its type and category.
    """
    claims = [
        claim
        for difference in differences
        for claim in parse_claims(difference.description)
        if not claim.negated
    ]
    completed = []
    for difference in differences:
        key = (difference.type, difference.category)
        claim = next((claim for claim in claims if (claim.type, claim.category) == key), None)
        if claim is not None:
            claims.remove(claim)
        if claim is not None and difference.before is difference.after is None:
            difference = replace(difference, before=claim.before, after=claim.after)
        completed.append(difference)
    if not _describe_one_each([each.description for each in differences]):
        completed = [replace(each, description=describe_change(each)) for each in completed]
    return tuple(completed)


def _describe_one_each(texts: Sequence[str]) -> bool:
    """Return whether each text describes one difference. A caption of the whole pair does not.

    The published rows have such a caption in the first description and nothing in the others.
    """
    return all(text.strip() for text in texts) and not any(
        text in other for i, text in enumerate(texts) for j, other in enumerate(texts) if i != j
    )


def describe_change(difference: Difference) -> str:
    """Return a difference in words, from its type, category and colours or places.

    Example:
        >>> describe_change(Difference("color", "car", before="red", after="blue"))
        'The car changed from red to blue.'
    """
    subject, before, after = f"The {difference.category}", difference.before, difference.after
    if difference.type == "remove":
        return f"{subject} was removed."
    if difference.type == "color":
        return f"{subject} changed {f'from {before} to {after}' if before and after else 'colour'}."
    return f"{subject} moved{f' from the {before} to the {after}' if before and after else ''}."


def name_place(box: Sequence[float], size: tuple[int, int]) -> str:
    """Return the ninth of an image that holds the centre of a box: `top left`, `right`, `center`.

    Example:
        >>> name_place((80, 0, 20, 20), (100, 100))
        'top right'
    """
    x, y, width, height = box
    row = ("top", "", "bottom")[min(2, int(3 * (y + height / 2) / size[1]))]
    column = ("left", "", "right")[min(2, int(3 * (x + width / 2) / size[0]))]
    return f"{row} {column}".strip() or "center"
