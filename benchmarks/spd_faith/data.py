"""What truly differs between the pictures of a pair, read from the published files and from the synthetic world."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.lexical.claims import Claim, parse_claims
from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, SHAPES, EditType
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_id

Box = tuple[float, float, float, float]
_FAR = 1e9  # pixels; no picture is as large, and what is not a number is not below it
_SPELLINGS: dict[str, EditType] = {
    **dict.fromkeys(("color", "colour", "color change", "colour change", "recolor"), "color"),
    **dict.fromkeys(("remove", "removal", "removed", "object removal"), "remove"),
    **dict.fromkeys(("position", "position change", "move", "moved"), "position"),
}


@dataclass(frozen=True)
class Difference:
    """One true difference.

    Attributes:
        type: what was done.
        category: the object it was done to: a COCO category or a shape of the synthetic world.
        description: in words, where the data set has them.
        box: x, y, width, height in pixels, where the data set has it.
        before, after: colours or places, where the description tells them.
    """

    type: EditType
    category: str
    description: str = ""
    box: Box | None = None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Pair:
    """Two pictures and all their differences.

    Attributes:
        id: unique in its data set.
        differences: none where the pictures are equal.
        difficulty: easy, medium or hard, where the data set says it.
        images: the two files, where they are known.
        question_ids: ids of the single questions about this pair, under which answers may come too.
    """

    id: str
    differences: tuple[Difference, ...]
    difficulty: str | None = None
    images: tuple[Path, ...] = ()
    question_ids: tuple[str, ...] = ()


def synthetic_pairs(samples: Iterable[Sample]) -> list[Pair]:
    """The pairs of a samples file of the synthetic world, which has several questions about each.

    Raises:
        InputError: a sample's metadata do not say what differs.

    Example:
        >>> synthetic_pairs(load_samples("pairs/samples.jsonl"))[0].id          # doctest: +SKIP
        '0000'
    """
    pairs: dict[str, Pair] = {}
    for sample in samples:
        facts = sample.metadata
        if not isinstance(facts.get("differences"), list) or not isinstance(facts.get("scene"), str):
            raise InputError(
                f"sample {sample.id}: its metadata hold no differences and scene; is it synthetic?"
            )
        name = Path(facts["scene"]).stem
        if name not in pairs:
            told = [_synthetic_difference(item, sample.id) for item in facts["differences"]]
            pairs[name] = Pair(name, tuple(told), facts.get("difficulty"))
        pair = replace(pairs[name], question_ids=(*pairs[name].question_ids, sample.id))
        pairs[name] = replace(pair, images=tuple(sample.images)) if len(sample.images) == 2 else pair
    return list(pairs.values())


def _synthetic_difference(item: Any, name: str) -> Difference:
    try:
        kind, shape, sentence = item["type"], item["shape"], item["sentence"]
    except (KeyError, TypeError):
        raise InputError(
            f"sample {name}: a difference of its metadata lacks type, shape or sentence"
        ) from None
    if kind not in EDIT_TYPES or shape not in SHAPES:
        raise InputError(f"sample {name}: no such difference in the synthetic world: {kind} of {shape}")
    claims = parse_claims(sentence)
    told = claims[0] if len(claims) == 1 else Claim(kind, shape)
    return Difference(kind, shape, sentence, None, told.before, told.after)


def pair_of_row(row: Mapping[str, Any], where: str = "row") -> Pair:
    """A pair from one row of the published data set.

    `differences` may be a list of objects or one object of lists. Descriptions are read for colours and places;
    the data set puts the caption of the whole pair in the first one.

    Args:
        row: image_id, num_differences, differences [{type, category, description, bbox_x, bbox_y, bbox_w,
            bbox_h}], and where it is known difficulty.
        where: named in errors.

    Raises:
        InputError: a field is missing or malformed, or the number of differences is another than it says.

    Example:
        >>> pair_of_row({"image_id": 7, "num_differences": 1, "differences": [
        ...     {"type": "color", "category": "car", "description": "The car turned from red to blue."}]}).id
        '7'
    """
    name = row.get("image_id", row.get("id"))
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise InputError(f"{where}: field 'image_id' is missing or no text or number")
    longest = f"{name}-different"  # of the ids of the questions about the pair
    try:
        check_id(longest)
    except ValueError as error:
        raise InputError(f"{where}: field 'image_id': {longest!r}, a question's id, {error}") from None
    items = _items(row.get("differences"), where)
    said = row.get("num_differences", len(items))
    if said != len(items):
        raise InputError(f"{where}: num_differences is {said!r}, but {len(items)} differences are listed")
    differences = [_published_difference(item, f"{where}, difference {k}") for k, item in enumerate(items, 1)]
    difficulty = row.get("difficulty")
    if difficulty is not None and not isinstance(difficulty, str):
        raise InputError(f"{where}: field 'difficulty' is no text")
    return Pair(str(name), _with_attributes(differences), difficulty.lower() if difficulty else None)


def _items(told: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(told, Mapping):  # columns: {"type": [...], "category": [...]}
        columns = {key: value for key, value in told.items() if isinstance(value, Sequence)}
        lengths = {len(value) for value in columns.values()}
        if len(columns) != len(told) or len(lengths) > 1:
            raise InputError(f"{where}: field 'differences' has columns of several lengths")
        told = [{key: value[k] for key, value in columns.items()} for k in range(max(lengths, default=0))]
    if not isinstance(told, list) or not all(isinstance(item, Mapping) for item in told):
        raise InputError(f"{where}: field 'differences' must be a list of objects")
    return told


def _published_difference(item: Mapping[str, Any], where: str) -> Difference:
    kind, category = item.get("type"), item.get("category")
    if not isinstance(kind, str) or kind.strip().lower().replace("_", " ") not in _SPELLINGS:
        raise InputError(f"{where}: type is {kind!r}; it must be color, remove or position")
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{where}: field 'category' is missing or no text")
    description = item.get("description")
    bare = category.strip().lower()
    return Difference(
        _SPELLINGS[kind.strip().lower().replace("_", " ")],
        find_category(bare) or bare,
        description if isinstance(description, str) else "",
        _box(item, where),
    )


def _box(item: Mapping[str, Any], where: str) -> Box | None:
    numbers = [item.get(f"bbox_{side}") for side in "xywh"]
    if any(number is None for number in numbers):
        numbers = item.get("bbox") or []
    if numbers == []:
        return None
    if (
        not isinstance(numbers, list)
        or len(numbers) != 4
        or not all(isinstance(number, int | float) and abs(number) < _FAR for number in numbers)
    ):
        raise InputError(f"{where}: its box must be four numbers, x, y, width and height")
    x, y, width, height = (float(number) for number in numbers)
    return x, y, width, height


def _with_attributes(differences: list[Difference]) -> tuple[Difference, ...]:
    """Each with the colours or places that the captions tell of its type and category, in the order told."""
    claims = [claim for told in differences for claim in parse_claims(told.description) if not claim.negated]
    filled = []
    for told in differences:
        found = next((one for one in claims if (one.type, one.category) == (told.type, told.category)), None)
        if found is not None:
            claims.remove(found)
            told = replace(told, before=found.before, after=found.after)
        filled.append(told)
    return tuple(filled)


def read_pairs(path: str | Path) -> list[Pair]:
    """Read the published data set as it is: a `.jsonl` of rows, a `metadata.json`, or an exported folder.

    A folder holds `<id>/metadata.json`, `<id>/<id>_original.jpg` and `<id>/<id>_modified_final.jpg`, itself or one
    level deeper by split. Where a row has no difficulty, a file or folder that is called easy, medium or hard
    gives it.

    Raises:
        InputError: naming file and line, for what cannot be read, malformed rows and ids used twice.

    Example:
        >>> read_pairs("single_difference/easy.jsonl")[0].differences[0].type         # doctest: +SKIP
        'color'
    """
    path = Path(path)
    if path.is_dir():
        files = sorted([*path.glob("*/metadata.json"), *path.glob("*/*/metadata.json")])
        files = files or sorted(path.glob("metadata.json")) or sorted(path.glob("*.jsonl"))
        if not files:
            raise InputError(f"{path}: holds neither <id>/metadata.json nor a .jsonl file")
    else:
        files = [path]
    pairs: dict[str, Pair] = {}
    for file in files:
        for where, row in _rows(file):
            pair = _with_files(pair_of_row(row, where), row, file)
            if pair.id in pairs:
                raise InputError(f"{where}: id {pair.id!r} was used already")
            pairs[pair.id] = pair
    return list(pairs.values())


def _rows(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    if file.suffix == ".jsonl":
        parts = [(f"{file}, line {number}", data) for number, data in json_lines(file)]
    else:
        parts = [(str(file), _json(file))]
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for where, data in parts:
        for row in data if isinstance(data, list) else [data]:
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: must hold objects, one a pair")
            if file.name == "metadata.json" and "image_id" not in row and "id" not in row:
                row = {**row, "image_id": file.parent.name}
            rows.append((where, row))
    if not rows:
        raise InputError(f"{file}: holds no pairs")
    return rows


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 text ({error})") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file}: not JSON that can be read") from None


def _with_files(pair: Pair, row: Mapping[str, Any], file: Path) -> Pair:
    split = re.search(
        r"easy|medium|hard", f"{file.parent.parent.name}/{file.parent.name}/{file.stem}".lower()
    )
    if pair.difficulty is None and split:
        pair = replace(pair, difficulty=split.group())
    folders = (file.parent, file.parent / pair.id, file.parent / file.stem / pair.id)
    for folder in folders:
        images = (folder / f"{pair.id}_original.jpg", folder / f"{pair.id}_modified_final.jpg")
        if all(image.is_file() for image in images):
            return replace(pair, images=images)
    named = [row.get(key) for key in ("image1", "image2")]
    if all(isinstance(name, str) for name in named):
        return replace(pair, images=tuple(file.parent / str(name) for name in named))
    return pair
