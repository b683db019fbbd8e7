"""The true differences of pairs, from the files of SPD-Faith Bench (arXiv:2602.07833) or the synthetic world."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.lexical.claims import Claim, parse_claims
from mmprobe.benchmarks.core.jsonl import json_lines, read_json
from mmprobe.benchmarks.spd_faith.rows import Difference, Pair, parse_row
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, SHAPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def read_synthetic_pairs(samples: Iterable[Sample]) -> list[Pair]:
    """Return the pairs of a samples file of the synthetic world, which holds several questions a pair."""
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


def read_pairs(path: str | Path) -> list[Pair]:
    """Read the published data set: a `.jsonl` file of rows, a `metadata.json`, or an exported folder.

    A folder holds `<id>/metadata.json`, `<id>/<id>_original.jpg` and `<id>/<id>_modified_final.jpg`, either
    directly or in one folder a split. A missing difficulty is taken from the path. Raises InputError, with
    the line, for a file that cannot be read, a malformed row, or an id that is used twice.
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
        for where, row in _read_rows(file):
            pair = _add_files(parse_row(row, where), row, file)
            if pair.id in pairs:
                raise InputError(f"{where}: id {pair.id!r} was used already")
            pairs[pair.id] = pair
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
        raise InputError(f"{file}: holds no pairs")
    return rows


def _add_files(pair: Pair, row: Mapping[str, Any], file: Path) -> Pair:
    """Return the pair with its image files, and with the difficulty that the path names."""
    split = re.search(
        r"easy|medium|hard", f"{file.parent.parent.name}/{file.parent.name}/{file.stem}".lower()
    )
    if pair.difficulty is None and split:
        pair = replace(pair, difficulty=split.group())
    for folder in (file.parent, file.parent / pair.id, file.parent / file.stem / pair.id):
        images = (folder / f"{pair.id}_original.jpg", folder / f"{pair.id}_modified_final.jpg")
        if all(image.is_file() for image in images):
            return replace(pair, images=images)
    names = [row.get(key) for key in ("image1", "image2")]
    if all(isinstance(name, str) for name in names):
        return replace(pair, images=tuple(file.parent / str(name) for name in names))
    return pair
