"""SPD-Faith Bench (arXiv:2602.07833): parquet files of pairs, with the images inside."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import BaseModel, ConfigDict

from mmprobe.benchmarks.layouts.base import (
    Layout,
    Lines,
    find_parquet,
    has_columns,
    make_id,
    parquet_rows,
    save_image,
)
from mmprobe.benchmarks.spd_faith.data import find_difficulty
from mmprobe.errors import InputError
from mmprobe.samples import Id, read_picture


class PairRow(BaseModel):
    """The row of one pair, as `spd_faith.data.parse_row` reads it, with its images beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: Id
    image1: str
    image2: str
    differences: list[dict[str, Any]] | dict[str, list[Any]]


_IMAGES = (("image1", "image2"), ("original_image", "modified_image"), ("original", "modified"))
_MERGED = ("image", "merged_image")


def _matches(path: Path) -> bool:
    shown = (*_IMAGES, *((name,) for name in _MERGED))
    return any(
        has_columns(path, *names, truth) for names in shown for truth in ("differences", "modifications")
    )


def _read(path: Path, folder: Path) -> Lines:
    """Yield the rows. One merged picture, the original above, is cut into its halves."""
    file_difficulty = {str(file): find_difficulty(file) for file in find_parquet(path)}
    for where, row in parquet_rows(path):
        name = make_id(row.get("image_id", row.get("id", row.get("qid"))), where)
        differences = row.get("differences", row.get("modifications"))
        kept = {key: value for key, value in row.items() if value is not None and not _is_image(value)}
        line = {
            **kept,
            "id": name,
            "image_id": name,
            "differences": differences,
            "image1": "",
            "image2": "",
        }
        difficulty = file_difficulty.get(where.rpartition(", row")[0])
        if "difficulty" not in line and difficulty:
            line["difficulty"] = difficulty
        pair = next((names for names in _IMAGES if all(row.get(each) is not None for each in names)), None)
        contents: list[object]
        if pair is not None:
            contents = [row[each] for each in pair]
        else:
            contents = list(
                _cut_in_halves(next((row[each] for each in _MERGED if row.get(each)), None), where)
            )
        for number, content in enumerate(contents, 1):
            line[f"image{number}"] = save_image(content, folder, f"{name}-{number}", where)
        yield where, line


def _is_image(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, Mapping) and "bytes" in value)


def _cut_in_halves(content: object, where: str) -> tuple[bytes, bytes]:
    """Return the upper and the lower half of a picture, as PNG."""
    data = content.get("bytes") if isinstance(content, Mapping) else content
    if not isinstance(data, bytes) or not data:
        raise InputError(f"{where}: its image contains no bytes")
    try:
        picture = read_picture(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError(f"{where}: its image cannot be read") from None
    middle = picture.height // 2
    halves = []
    for top, bottom in ((0, middle), (picture.height - middle, picture.height)):
        file = io.BytesIO()
        picture.crop((0, top, picture.width, bottom)).save(file, "PNG")
        halves.append(file.getvalue())
    return halves[0], halves[1]


SPD_FAITH = Layout("SPD-Faith Bench, parquet", "spd-faith", PairRow, _matches, _read)
