"""VQA-RAD (Lau et al., 2018): the authors' JSON with its folder of images, or parquet files."""

from __future__ import annotations

from pathlib import Path

from mmprobe.benchmarks.layouts.base import (
    Layout,
    Lines,
    has_columns,
    make_id,
    parquet_rows,
    save_image,
)
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.errors import InputError
from mmprobe.files import read_json
from mmprobe.samples import check_image

_FILE = "VQA_RAD Dataset Public.json"
_IMAGES = "VQA_RAD Image Folder"


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions of the test split: those whose phrase_type begins with `test`."""
    rows = read_json(path / _FILE)
    if not isinstance(rows, list):
        raise InputError(f"{path / _FILE}: not a list of questions")
    for number, row in enumerate(rows, 1):
        where = f"{path / _FILE}, entry {number}"
        try:
            if not row["phrase_type"].startswith("test"):
                continue
            image = (path / _IMAGES / row["image_name"]).absolute()
            line = {
                "id": make_id(row["qid"], where),
                "images": [str(image)],
                "question": row["question"].strip(),
                "answer": str(row["answer"]).strip(),
                "category": f"{row['image_organ']}/{row['question_type']}".replace(" ", ""),
                "metadata": {"data_set": "VQA-RAD", "answer_type": str(row["answer_type"]).strip()},
            }
        except (AttributeError, KeyError, TypeError):
            raise InputError(f"{where}: not a question of VQA-RAD with qid, image_name and answer") from None
        check_image(image, where)
        yield where, line


def _is_parquet(path: Path) -> bool:
    return has_columns(path, "image", "question", "answer") and not has_columns(path, "options")


def _read_parquet(path: Path, folder: Path) -> Lines:
    """Yield the questions of the test split. The rows have no ids, so they are numbered."""
    for number, (where, row) in enumerate(parquet_rows(path), 1):
        name = f"{number:04d}"
        yield (
            where,
            {
                "id": name,
                "images": [save_image(row["image"], folder, name, where)],
                "question": row["question"],
                "answer": str(row["answer"]).strip(),
                "metadata": {"data_set": "VQA-RAD"},
            },
        )


VQA_RAD = Layout("VQA-RAD", "mirage-effect", ChoiceQuestion, lambda path: (path / _FILE).is_file(), _read)
VQA_RAD_PARQUET = Layout("VQA-RAD, parquet", "mirage-effect", ChoiceQuestion, _is_parquet, _read_parquet)
