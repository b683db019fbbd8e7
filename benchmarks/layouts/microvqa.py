"""MicroVQA (arXiv:2503.13399): parquet files of questions about microscope images."""

from __future__ import annotations

from pathlib import Path

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
from mmprobe.errors import InputError


def _read(path: Path, folder: Path) -> Lines:
    for where, row in parquet_rows(path):
        name = make_id(row["key_question"], where)
        choices = letter_choices(row["choices"], where)
        letters, index = list(choices), row["correct_index"]
        if not isinstance(index, int) or not 0 <= index < len(letters):
            raise InputError(f"{where}: correct_index {index!r} names none of its {len(letters)} choices")
        images = [
            save_image(image, folder, f"{name}-{number}", where)
            for number, image in enumerate(row["images_list"] or [], 1)
        ]
        yield (
            where,
            {
                "id": name,
                "images": images,
                "question": row["question"],
                "choices": choices,
                "answer": letters[index],
                "category": row.get("task_str") or "",
                "metadata": {"data_set": "MicroVQA"},
            },
        )


_COLUMNS = ("key_question", "images_list", "choices", "correct_index")
MICROVQA = Layout(
    "MicroVQA", "mirage-effect", ChoiceQuestion, lambda path: has_columns(path, *_COLUMNS), _read
)
