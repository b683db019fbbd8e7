"""Pairs and their true differences, from files of SPD-Faith Bench (arXiv:2602.07833) or of the synthetic world.

They are read row by row. `pair_statistics` counts what a set of pairs contains (figure 10).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mmprobe.benchmarks.answers.claims import Claim, parse_claims
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, EDIT_TYPES, SHAPES, EditType
from mmprobe.errors import InputError
from mmprobe.files import json_lines, read_json
from mmprobe.samples import Region, Sample, check_id

if TYPE_CHECKING:
    import xarray as xr

_log = logging.getLogger(__name__)
ParsedBox = tuple[float, float, float, float]
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
    box: ParsedBox | None = None
    before: str | None = None
    after: str | None = None
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two images and all their differences, none if the images are equal.

    Difficulty and image files are there if they are known. An answer may come under any of `question_ids`.
    `caption` is a description of the pair as a whole, where the data set has one in place of a description of each
    difference. `regions` are the changed places in both images: those of the row, else those of its differences.
    """

    id: str
    differences: tuple[Difference, ...]
    difficulty: str | None = None
    images: tuple[Path, ...] = ()
    question_ids: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    caption: str = ""


class UnknownRow(InputError):
    """A row of the published form with a type that we do not know, or another number of differences than it says."""


def parse_row(row: Mapping[str, Any], where: str = "row") -> Pair:
    """Return the pair of one row of the published data set.

    `differences` may be a list of objects or one object of lists. Colours and places are read from the
    descriptions. Published rows have the caption of the whole pair in the first description; such differences
    get their own descriptions. Raises InputError for a field that is missing or malformed, as UnknownRow for an
    unknown type or a wrong number.

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
        raise UnknownRow(
            f"{where}: num_differences is {n_differences!r}, but {len(items)} differences are listed"
        )
    differences = [
        _parse_published(item, f"{where}, difference {number}") for number, item in enumerate(items, 1)
    ]
    difficulty = row.get("difficulty")
    if difficulty is not None and not isinstance(difficulty, str):
        raise InputError(f"{where}: field 'difficulty' is not a text")
    descriptions = [each.description for each in differences]
    described = (
        "" if _describe_one_each(descriptions) else " ".join(dict.fromkeys(filter(None, descriptions)))
    )
    return Pair(
        str(name),
        _add_attributes(differences),
        difficulty.lower() if difficulty else None,
        caption=_text_or(row, "caption", described),
        regions=_parse_regions(row["regions"], where)
        if row.get("regions")  # the rows of `make-pairs`
        else tuple(region for difference in differences for region in difference.regions),
    )


def _parse_regions(value: Any, where: str) -> tuple[Region, ...]:
    try:
        return tuple(Region.model_validate(region) for region in value)
    except (ValidationError, TypeError):
        raise InputError(f"{where}: field 'regions' must be a list of {{image, box}}") from None


def _boxes_in_both_images(boxes: Sequence[ParsedBox]) -> tuple[Region, ...]:
    return tuple(Region(image=image, box=_round_box(box)) for box in boxes for image in (0, 1))


def _round_box(box: ParsedBox) -> tuple[int, int, int, int]:
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
        **({"caption": pair.caption} if pair.caption else {}),
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
        raise UnknownRow(f"{where}: type is {edit_type!r}; it must be color, remove or position")
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{where}: field 'category' is missing or not a text")
    category = category.strip().lower()
    box = _parse_box(item, where)
    boxes = [box] if box else []
    if item.get("new_bbox") is not None or item.get("new_bbox_x") is not None:
        boxes += filter(None, [_parse_box(item, where, "new_bbox")])  # a move changes both places
    regions = item.get("regions")
    return Difference(
        _SPELLINGS[edit_type.strip().lower().replace("_", " ")],
        find_category(category) or category,
        _text_or(item, "description", ""),
        box,
        _text_or(item, "before", None),
        _text_or(item, "after", None),
        _parse_regions(regions, where) if regions else _boxes_in_both_images(boxes),
    )


def _text_or(item: Mapping[str, Any], key: str, default: Any) -> Any:
    return item[key] if isinstance(item.get(key), str) else default


def _parse_box(item: Mapping[str, Any], where: str, key: str = "bbox") -> ParsedBox | None:
    numbers = [item.get(f"{key}_{side}") for side in "xywh"]
    if any(number is None for number in numbers):
        numbers = item.get(key) or (item.get("original_bbox") if key == "bbox" else None) or []
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
    """Return the differences with the colours or places from the captions, and with their own descriptions.

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
    """Return the ninth of an image that contains the centre of a box: `top left`, `right`, `center`.

    Example:
        >>> name_place((80, 0, 20, 20), (100, 100))
        'top right'
    """
    x, y, width, height = box
    row = ("top", "", "bottom")[min(2, int(3 * (y + height / 2) / size[1]))]
    column = ("left", "", "right")[min(2, int(3 * (x + width / 2) / size[0]))]
    return f"{row} {column}".strip() or "center"


def read_synthetic_pairs(samples: Iterable[Sample]) -> list[Pair]:
    """Return the pairs of a samples file of the synthetic world, which contains several questions a pair."""
    pairs: dict[str, Pair] = {}
    for sample in samples:
        metadata = sample.metadata
        if not isinstance(metadata.get("differences"), list) or not isinstance(metadata.get("scene"), str):
            raise InputError(
                f"sample {sample.id}: its metadata have no differences and scene; is it synthetic?"
            )
        name = Path(metadata["scene"]).stem
        if name not in pairs:
            differences = [_parse_synthetic(item, sample.id) for item in metadata["differences"]]
            pairs[name] = Pair(name, tuple(differences), metadata.get("difficulty"))
        pair = replace(pairs[name], question_ids=(*pairs[name].question_ids, sample.id))
        pairs[name] = replace(pair, images=tuple(sample.images)) if len(sample.images) == 2 else pair
    return list(pairs.values())


def _parse_synthetic(item: Any, sample_id: str) -> Difference:
    where = f"sample {sample_id}"
    try:
        edit_type, shape, sentence = item["type"], item["shape"], item["sentence"]
    except (KeyError, TypeError):
        raise InputError(f"{where}: a difference in its metadata lacks type, shape or sentence") from None
    if edit_type not in EDIT_TYPES or shape not in SHAPES:
        raise InputError(f"{where}: the synthetic world has no difference {edit_type} of {shape}")
    claims = parse_claims(sentence)
    claim = claims[0] if len(claims) == 1 else Claim(edit_type, shape)
    return Difference(edit_type, shape, sentence, None, claim.before, claim.after)


def find_difficulty(path: Path) -> str | None:
    """Return the difficulty that a part of a path names: easy, medium, hard or multi (2 to 5 differences).

    Example:
        >>> find_difficulty(Path("data/multi_diff/3/metadata.json")), find_difficulty(Path("richard/rows.jsonl"))
        ('multi', None)
    """
    for part in (path.stem, path.parent.name, path.parent.parent.name):
        words = re.split(r"[^a-z]+", part.lower())
        for name in ("easy", "medium", "hard", "multi"):
            if name in words:
                return name
    return None


def original_of(pair_id: str) -> str | None:
    """Return the number of the photograph that a published pair was made of, if others may be made of it, too.

    `2153_1` to `2153_3` are three pairs of one photograph. A bare number is its own pair.

    Example:
        >>> [original_of(name) for name in ("2153_1", "139_139_color1", "785")]
        ['2153', '139', None]
    """
    match = re.fullmatch(r"(\d+)_\w+", pair_id)
    return match[1] if match else None


def read_pairs(path: str | Path, failed: list[str] | None = None) -> list[Pair]:
    """Read the published data set: a `.jsonl` file of rows, a `metadata.json`, or an exported folder.

    A folder contains `<id>/metadata.json`, `<id>/<id>_original.jpg` and `<id>/<id>_modified_final.jpg`, either
    directly or in one folder a split. A missing difficulty is taken from the folders' or the file's name. A row with
    an unknown type or a wrong number of differences is left out: `failed` gets its place and reason, and a warning
    names it. Raises InputError, with the line, for a file that cannot be read, another malformed row, an id that is
    used twice, or if nothing is left.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted([*path.glob("*/metadata.json"), *path.glob("*/*/metadata.json")])
        files = files or sorted(path.glob("metadata.json")) or sorted(path.glob("*.jsonl"))
        if not files:
            raise InputError(f"{path}: contains neither <id>/metadata.json nor a .jsonl file")
    else:
        files = [path]
    pairs: dict[str, Pair] = {}
    unknown: list[str] = []
    for file in files:
        for where, row in _read_rows(file):
            try:
                parsed = parse_row(row, where)
            except UnknownRow as problem:
                unknown.append(str(problem))
                continue
            pair = _add_files(parsed, row, file)
            if pair.id in pairs:
                raise InputError(f"{where}: id {pair.id!r} was used already")
            pairs[pair.id] = pair
    if unknown and not pairs:
        raise InputError(f"{path}: no row can be read; the first: {unknown[0]}")
    for reason in unknown:
        _log.warning("spd-faith: a row is left out: %s", reason)
    if failed is not None:
        failed += unknown
    return list(pairs.values())


def _read_rows(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each row of a file with its place for error messages."""
    if file.suffix == ".jsonl":
        parts = [(f"{file}, line {number}", data) for number, data in json_lines(file)]
    else:
        parts = [(str(file), read_json(file))]
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for where, data in parts:
        for row in data if isinstance(data, list) else [data]:
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: must hold objects, one a pair")
            if file.name == "metadata.json" and "image_id" not in row and "id" not in row:
                row = {**row, "image_id": file.parent.name}
            rows.append((where, row))
    if not rows:
        raise InputError(f"{file}: contains no pairs")
    return rows


def _add_files(pair: Pair, row: Mapping[str, Any], file: Path) -> Pair:
    """Return the pair with its image files, and with the difficulty that the path names."""
    if pair.difficulty is None and (difficulty := find_difficulty(file)):
        pair = replace(pair, difficulty=difficulty)
    for folder in (file.parent, file.parent / pair.id, file.parent / file.stem / pair.id):
        images = (folder / f"{pair.id}_original.jpg", folder / f"{pair.id}_modified_final.jpg")
        if all(image.is_file() for image in images):
            return replace(pair, images=images)
    names = [row.get(key) for key in ("image1", "image2")]
    if all(isinstance(name, str) for name in names):
        return replace(pair, images=tuple(file.parent / str(name) for name in names))
    return pair


def pair_statistics(pairs: Sequence[Pair]) -> xr.Dataset:
    """Return numbers of `pairs` (difficulty, differences) and `changes` (difficulty, differences, type).

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pair = Pair("7", (Difference("remove", "dog"), Difference("color", "car")), "easy")
        >>> int(pair_statistics([pair]).changes.sel(difficulty="easy", type="color").sum())
        1
    """
    import xarray as xr

    kinds = [(pair.difficulty or "unknown", len(pair.differences)) for pair in pairs]
    levels = [name for name in (*DIFFICULTIES, "unknown") if name in {level for level, _ in kinds}]
    counts = sorted({count for _, count in kinds})
    n_pairs = Counter(kinds)
    n_changes = Counter(
        (*kind, difference.type)
        for kind, pair in zip(kinds, pairs, strict=True)
        for difference in pair.differences
    )
    return xr.Dataset(
        {
            "pairs": (
                ("difficulty", "differences"),
                [[n_pairs[level, count] for count in counts] for level in levels],
            ),
            "changes": (
                ("difficulty", "differences", "type"),
                [
                    [[n_changes[level, count, name] for name in EDIT_TYPES] for count in counts]
                    for level in levels
                ],
            ),
        },
        coords={"difficulty": levels, "differences": counts, "type": list(EDIT_TYPES)},
        attrs={"analysis": "pair_statistics"},
    )
