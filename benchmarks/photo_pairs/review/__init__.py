"""The page on which a person accepts, rejects and describes pairs, and what that person decided."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmprobe.benchmarks.core.jsonl import write_whole
from mmprobe.benchmarks.photo_pairs.layout import (
    pair_folders,
    read_rejected,
    read_row,
    reject,
    write_lists,
    write_metadata,
)
from mmprobe.benchmarks.photo_pairs.photos import Rejected
from mmprobe.errors import InputError


class Reviewed(NamedTuple):
    """How many pairs of a folder a person accepted, rejected and has not seen yet."""

    accepted: int
    rejected: int
    left: int


class StrictReply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Review(StrictReply):
    id: str
    decision: Literal["accept", "reject"]
    descriptions: list[Annotated[str, Field(min_length=1, max_length=1000)]]
    reason: Annotated[str, Field(max_length=1000)] = ""


class _Reviews(StrictReply):
    format: Literal[1]
    reviews: list[_Review]


def write_review(out: Path) -> Path | None:
    """Write `review.html`: all pairs with their boxes; it needs no network, only the pictures beside it.

    Returns:
        The page; None where there are no pairs.
    """
    pairs = []
    for name, folder in pair_folders(out).items():
        row = read_row(folder)
        pairs.append(
            {
                "id": name,
                "pictures": [f"{folder.parent.name}/{name}/{row[key]}" for key in ("image1", "image2")],
                "about": f"{row['difficulty']}, {row['instances']} objects, {row['changed_area']:.1%} changed",
                "regions": row["regions"],
                "differences": [
                    {key: one[key] for key in ("type", "category", "description")}
                    for one in row["differences"]
                ],
                "reviewed": row["reviewed"],
            }
        )
    if not pairs:
        (out / "review.html").unlink(missing_ok=True)
        return None
    script = _asset("review.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps({"key": _key(out), "pairs": pairs}).replace("<", "\\u003c")
    page = _asset("review.html")
    for mark, text in (("DIGEST", digest), ("SCRIPT", script), ("DATA", data)):
        page = page.replace(f"%{mark}%", text)
    return write_whole(out / "review.html", page)


def _asset(name: str) -> str:
    return resources.files("mmprobe.benchmarks.photo_pairs.review").joinpath(name).read_text(encoding="utf-8")


def _key(out: Path) -> str:
    """Under which the browser remembers decisions: that of the options that made the pairs."""
    return hashlib.sha256((out / "make-pairs.json").read_bytes()).hexdigest()[:16]


def apply_reviews(out: str | Path, reviews: str | Path) -> Reviewed:
    """Do what a person decided: accepted pairs get their descriptions, rejected ones are deleted.

    Nothing is done unless the whole file is right. It may be applied again; pairs that were rejected before
    are skipped then. Why a pair was rejected stands in `rejected.jsonl`.

    Args:
        out: a folder of `make_photo_pairs`.
        reviews: the file that the review page saves.

    Raises:
        InputError: not such a folder or file, a pair that is not there, or another number of descriptions
        than
            differences.

    Example:
        >>> apply_reviews("photo-pairs", "reviews.json")                               # doctest: +SKIP
        Reviewed(accepted=90, rejected=8, left=2)
    """
    out, reviews = Path(out), Path(reviews)
    if not (out / "make-pairs.json").is_file():
        raise InputError(f"{out}: holds no pairs of photographs; make them first, without --reviews")
    folders = pair_folders(out)
    gone = {row["image_id"] for row in read_rejected(out)}
    told = _read_reviews(reviews)
    for one in told:
        _check(one, folders, gone, reviews)
    for one in told:
        if one.id not in folders:
            continue
        if one.decision == "reject":
            if one.id not in gone:
                reject(out, one.id, Rejected("review", one.reason or "rejected by a reviewer"))
            shutil.rmtree(folders[one.id])
            continue
        row = read_row(folders[one.id])
        for difference, text in zip(row["differences"], one.descriptions, strict=True):
            difference["description"] = " ".join(text.split())
        write_metadata(folders[one.id], {**row, "reviewed": True})
    write_lists(out)
    write_review(out)
    rows = [read_row(folder) for folder in pair_folders(out).values()]
    accepted = sum(row["reviewed"] for row in rows)
    rejected = sum(row["stage"] == "review" for row in read_rejected(out))
    return Reviewed(accepted, rejected, len(rows) - accepted)


def _read_reviews(path: Path) -> list[_Review]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    try:
        return _Reviews.model_validate_json(text).reviews
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise InputError(
            f"{path}: field {field!r}: {first['msg']}; it is no file of the review page"
        ) from None


def _check(one: _Review, folders: dict[str, Path], gone: set[str], path: Path) -> None:
    if one.id not in folders:
        if one.id in gone:
            return
        raise InputError(f"{path}: pair {one.id[:60]!r} is none of this folder")
    wanted = read_row(folders[one.id])["num_differences"]
    if one.decision == "accept" and len(one.descriptions) != wanted:
        raise InputError(
            f"{path}: pair {one.id!r} has {wanted} differences, {len(one.descriptions)} descriptions"
        )
    if not all(text.strip() for text in one.descriptions):
        raise InputError(f"{path}: pair {one.id!r} has an empty description")
