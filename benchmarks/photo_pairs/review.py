"""Write the page where a person accepts, rejects and describes pairs, and apply the decisions."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmprobe.benchmarks.photo_pairs.layout import (
    append_rejection,
    find_pair_folders,
    read_rejections,
    read_row,
    write_lists,
    write_metadata,
)
from mmprobe.benchmarks.photo_pairs.photos import Rejection
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, EditType
from mmprobe.errors import InputError
from mmprobe.files import read_text, write_atomic


class ReviewCounts(NamedTuple):
    """The numbers of pairs that a person accepted, rejected, and has not decided on."""

    accepted: int
    rejected: int
    left: int


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Review(_StrictModel):
    id: str
    decision: Literal["accept", "reject"]
    descriptions: list[Annotated[str, Field(min_length=1, max_length=1000)]]
    types: list[EditType] = []
    categories: list[Annotated[str, Field(min_length=1, max_length=100)]] = []
    reason: Annotated[str, Field(max_length=1000)] = ""


class _Reviews(_StrictModel):
    format: Literal[1]
    reviews: list[_Review]


def write_review(out: Path) -> Path | None:
    """Write `review.html`, which needs only the images beside it, and return it; None if there are no pairs."""
    pairs = []
    for name, folder in find_pair_folders(out).items():
        row = read_row(folder)
        pairs.append(
            {
                "id": name,
                "images": [f"{folder.parent.name}/{name}/{row[key]}" for key in ("image1", "image2")],
                "properties": ", ".join(
                    (row["difficulty"], f"{row['instances']} objects", f"{row['changed_area']:.1%} changed")
                ),
                "regions": row["regions"],
                "differences": [
                    {key: difference[key] for key in ("type", "category", "description")}
                    for difference in row["differences"]
                ],
                "types": list(EDIT_TYPES),
                "reviewed": row["reviewed"],
            }
        )
    if not pairs:
        (out / "review.html").unlink(missing_ok=True)
        return None
    script = _read_asset("review.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    key = hashlib.sha256((out / "make-pairs.json").read_bytes()).hexdigest()[:16]  # of the browser's storage
    data = json.dumps({"key": key, "pairs": pairs}).replace("<", "\\u003c")
    page = _read_asset("review.html")
    for placeholder, text in (("DIGEST", digest), ("SCRIPT", script), ("DATA", data)):
        page = page.replace(f"%{placeholder}%", text)
    return write_atomic(out / "review.html", page)


def _read_asset(name: str) -> str:
    return resources.files("mmprobe.benchmarks.photo_pairs").joinpath(name).read_text(encoding="utf-8")


def apply_reviews(out: str | Path, reviews: str | Path) -> ReviewCounts:
    """Apply a person's decisions: accepted pairs get descriptions, types and categories, others are deleted.

    Reasons of rejections are written to `rejected.jsonl`. If the file that the review page saves has an
    error, nothing is changed. It may be applied again: pairs that were rejected before are skipped. Raises
    InputError where folder or file is not of this kind, a pair is missing, or descriptions and differences
    are not as many.

    Example:
        >>> apply_reviews("photo-pairs", "reviews.json")                               # doctest: +SKIP
        ReviewCounts(accepted=90, rejected=8, left=2)
    """
    out, reviews = Path(out), Path(reviews)
    if not (out / "make-pairs.json").is_file():
        raise InputError(f"{out}: contains no pairs of photographs; make pairs before you review them")
    folders = find_pair_folders(out)
    rejected_ids = {row["image_id"] for row in read_rejections(out)}
    decisions = _read_reviews(reviews)
    for review in decisions:
        _check_review(review, folders, rejected_ids, reviews)
    for review in decisions:
        if review.id not in folders:
            continue
        folder = folders[review.id]
        if review.decision == "reject":
            if review.id not in rejected_ids:
                reason = review.reason or "rejected by a reviewer"
                append_rejection(out, review.id, Rejection("review", reason))
            shutil.rmtree(folder)
            continue
        row = read_row(folder)
        corrected: dict[str, Sequence[str]] = {
            "description": review.descriptions,
            "type": review.types,
            "category": [category.lower() for category in review.categories],
        }
        for key, values in corrected.items():
            for difference, value in zip(row["differences"], values, strict=False):
                difference[key] = " ".join(value.split())
        write_metadata(folder, {**row, "reviewed": True})
    write_lists(out)
    write_review(out)
    rows = [read_row(folder) for folder in find_pair_folders(out).values()]
    n_accepted = sum(row["reviewed"] for row in rows)
    n_rejected = sum(row["stage"] == "review" for row in read_rejections(out))
    return ReviewCounts(n_accepted, n_rejected, len(rows) - n_accepted)


def _read_reviews(path: Path) -> list[_Review]:
    text = read_text(path)
    try:
        return _Reviews.model_validate_json(text).reviews
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise InputError(
            f"{path}: field {field!r}: {first['msg']}; use a file that the review page saved"
        ) from None


def _check_review(review: _Review, folders: dict[str, Path], rejected_ids: set[str], path: Path) -> None:
    if review.id not in folders:
        if review.id in rejected_ids:
            return
        raise InputError(f"{path}: pair {review.id[:60]!r} is not in this folder")
    n_differences = read_row(folders[review.id])["num_differences"]
    n_descriptions = len(review.descriptions)
    if review.decision == "accept" and n_descriptions != n_differences:
        raise InputError(
            f"{path}: pair {review.id!r} has {n_differences} differences, {n_descriptions} descriptions"
        )
    for name, values in (("types", review.types), ("categories", review.categories)):
        if review.decision == "accept" and values and len(values) != n_differences:
            raise InputError(
                f"{path}: pair {review.id!r} has {n_differences} differences, {len(values)} {name}"
            )
    if not all(text.strip() for text in (*review.descriptions, *review.categories)):
        raise InputError(f"{path}: pair {review.id!r} has an empty description or category")
