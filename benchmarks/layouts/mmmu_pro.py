"""MMMU-Pro (arXiv:2409.02813): parquet files of one configuration, standard or vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.layouts.base import (
    Layout,
    Lines,
    has_columns,
    letter_choices,
    make_id,
    parquet_rows,
    save_image,
)
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.prompts import MirageEffectPrompts
from mmprobe.errors import InputError

_VISION = "Answer the multiple-choice question that the image shows."


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions. In the configuration `vision` the image shows the question with its options."""
    for where, row in parquet_rows(path):
        name = make_id(row["id"], where)
        pictures = [row.get("image"), *(row.get(f"image_{number}") for number in range(1, 8))]
        images = [
            save_image(picture, folder, f"{name}-{number}", where)
            for number, picture in enumerate((each for each in pictures if each is not None), 1)
        ]
        if not images:
            raise InputError(f"{where}: has no image")
        line: dict[str, Any] = {
            "id": name,
            "images": images,
            "question": row.get("question") or _VISION,
            "choices": letter_choices(row["options"], where),
            "answer": row["answer"],
            "category": row["subject"] or "",
            "metadata": {"data_set": "MMMU-Pro"},
        }
        if not row.get("question"):
            line["prompt"] = f"{_VISION}\n\n{default_prompts(MirageEffectPrompts).letter}"
        yield where, line


_COLUMNS = ("id", "options", "answer", "subject")
MMMU_PRO = Layout(
    "MMMU-Pro", "mirage-effect", ChoiceQuestion, lambda path: has_columns(path, *_COLUMNS), _read
)
