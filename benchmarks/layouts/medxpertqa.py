"""MedXpertQA MM (arXiv:2501.18362): `MM/test.jsonl`, and `images/` unpacked from `images.zip`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmprobe.benchmarks.layouts.base import Layout, Lines, make_id
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.errors import InputError
from mmprobe.files import json_lines
from mmprobe.samples import check_image

_FILE = "MM/test.jsonl"
_HEADING = "\nAnswer Choices:"  # the question's text repeats the options after itself


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions. The options are a JSON object, or a list of `{"letter", "content"}`."""
    for number, row in json_lines(path / _FILE):
        where = f"{path / _FILE}, line {number}"
        try:
            options, label = row["options"], row["label"]
            if isinstance(options, list):
                options = {option["letter"]: option["content"] for option in options}
            names = [each["image_path"] if isinstance(each, dict) else each for each in row["images"]]
            images = [(path / "images" / name).absolute() for name in names]
            line: dict[str, Any] = {
                "id": make_id(row["id"], where),
                "images": [str(image) for image in images],
                "question": row["question"].partition(_HEADING)[0].strip(),
                "choices": {letter: text for letter, text in options.items() if text is not None},
                "answer": label[0] if isinstance(label, list) else label,
                "category": f"{row.get('body_system', '')}/{row.get('medical_task', '')}".strip("/"),
                "metadata": {"data_set": "MedXpertQA-MM"},
            }
        except (AttributeError, IndexError, KeyError, TypeError):
            raise InputError(
                f"{where}: not a question with id, question, options, label and images"
            ) from None
        for image in images:
            check_image(image, where)
        yield where, line


MEDXPERTQA = Layout(
    "MedXpertQA", "mirage-effect", ChoiceQuestion, lambda path: (path / _FILE).is_file(), _read
)
