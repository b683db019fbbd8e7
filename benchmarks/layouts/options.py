"""MMBench, MMStar, MathVista and MathVision, on which SPD-Faith Bench (arXiv:2602.07833, C.2) disturbs questions: parquet files of the hub or tables of VLMEvalKit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.options import find_mark, split_options
from mmprobe.benchmarks.answers.texts import same_text
from mmprobe.benchmarks.layouts.base import (
    Layout,
    Lines,
    has_columns,
    letter_choices,
    make_id,
    parquet_rows,
    save_image,
)
from mmprobe.benchmarks.layouts.mmreason import decode_image, read_table, table_columns
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_LETTERS = "ABCDEFGHIJ"
_LONGEST_INDEX = (
    64  # a shorter image in a table is the index of an earlier row that contains it, as in VLMEvalKit
)
_MARK = re.compile(r"<image\d*>\s*")
_NOTHING = ("", "nan", "none")


def _matches(parquet: tuple[str, ...], table: tuple[str, ...], path: Path) -> bool:
    return has_columns(path, *parquet) or table_columns(path) >= {"image", "question", "answer", *table}


def _read(data_set: str, path: Path, folder: Path) -> Lines:
    """Yield the questions: `choices`, `options` or the columns `A`, `B`, … are the options, or they stand in the question."""
    saved: dict[str, str] = {}
    for number, (where, row) in enumerate(_rows(path), 1):
        name = make_id(next((row[key] for key in ("index", "pid", "id") if _text(row, key)), number), where)
        saved[name] = _save(row, saved, folder, name, where)
        hint, question = _text(row, "hint"), _MARK.sub("", _text(row, "question")).strip()
        given = row.get("choices", row.get("options"))
        options = {letter: _text(row, letter) for letter in _LETTERS if _text(row, letter)}
        if given is not None and str(given).strip().casefold() not in (*_NOTHING, "[]"):
            options = letter_choices(given, where)
        answer = _text(row, "answer")
        if not options and len(answer) == 1 and answer.isalpha():
            question, options = split_options(question, answer)
        if not answer:
            raise InputError(f"{where}: has no answer; take a split with answers")
        if (
            options
            and find_mark(answer, options) is None
            and not any(same_text(answer, text) for text in options.values())
        ):
            raise InputError(f"{where}: its answer {answer!r} is none of its options")
        about = {key: _text(row, key) for key in ("category", "subject", "level") if _text(row, key)}
        yield (
            where,
            {
                "id": name,
                "images": [saved[name]],
                "question": f"{hint}\n{question}" if hint else question,
                "answer": answer,
                "metadata": {"data_set": data_set, **about} | ({"options": options} if options else {}),
            },
        )


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return read_table(path) if path.suffix == ".tsv" else parquet_rows(path)


def _text(row: Mapping[str, Any], key: str) -> str:
    """Return a cell as text; empty where there is none."""
    text = "" if row.get(key) is None else str(row[key]).strip()
    return "" if text.casefold() in _NOTHING else text


def _save(row: Mapping[str, Any], saved: Mapping[str, str], folder: Path, name: str, where: str) -> str:
    """Return the file of a row's image: saved, or that of the row whose index it names."""
    image = row.get("decoded_image") or row["image"]
    if not isinstance(image, str):
        return save_image(image, folder, name, where)
    if len(image) > _LONGEST_INDEX:
        return save_image(decode_image(image, where), folder, name, where)
    if image.strip() not in saved:
        raise InputError(f"{where}: its image {image!r} is neither base64 nor the index of an earlier row")
    return saved[image.strip()]


_SETS = {
    "MathVista": (("pid", "decoded_image", "choices", "answer"), ("question_type", "answer_type")),
    "MathVision": (("id", "decoded_image", "options", "level"), ("level",)),
    "MMStar": (("index", "image", "question", "answer", "l2_category"), ("A", "B", "l2_category")),
    "MMBench": (("index", "image", "question", "answer", "A", "B"), ("A", "B")),
}
MATHVISTA, MATHVISION, MMSTAR, MMBENCH = (
    Layout(name, "vqa", Sample, partial(_matches, *columns), partial(_read, name))
    for name, columns in _SETS.items()
)
