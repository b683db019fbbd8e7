"""MIRAGE (arXiv:2505.24238): `mirage.tsv`, with images in base64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.numbers import parse_quantity
from mmprobe.benchmarks.layouts.base import Layout, Lines, make_id, save_image
from mmprobe.benchmarks.layouts.mmreason import decode_image, read_table, table_columns
from mmprobe.benchmarks.mirage.data import TOPICS, AnswerType, MirageQuestion, Topic
from mmprobe.errors import InputError

_COLUMNS = {"prompt", "image", "answer"}
_OTHERS = ("question_type", "refine_thinking", "classification", "normalized_classification")
_OPTION = re.compile(r"^\s*[(\[]?([A-Z])[)\].:]\s*(\S.*?)\s*$", re.MULTILINE)
_TOPIC_NAMES: dict[str, Topic] = {
    **{name: name for name in TOPICS},
    "algebraic": "algebra",
    "geometric": "geometry",
    "numeric commonsense": "arithmetic",
    "numeric": "arithmetic",
    "logic": "logical",
    "science": "scientific",
}
_TYPES: dict[str, AnswerType] = {
    "multiple choice": "multiple_choice",
    "multi choice": "multiple_choice",
    "mcq": "multiple_choice",
    "free form": "free_form",
    "approximate": "approximate",
    "approximation": "approximate",
}


def _matches(path: Path) -> bool:
    columns = table_columns(path)
    return columns >= _COLUMNS and bool(columns & set(_OTHERS))


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions. The topic and the form of the answer come from their columns; options are in the prompt."""
    for number, (where, row) in enumerate(read_table(path), 1):
        name = make_id(row.get("index") or row.get("id") or f"{number:04d}", where)
        prompt, answer = row["prompt"].strip(), row["answer"].strip()
        topic = _find_topic(row, where)
        kind, options = _find_type(row, prompt, answer)
        stem = prompt
        if kind == "multiple_choice":
            answer = answer.strip("()[]. ").upper()
            stem = _OPTION.sub("", prompt).strip()
        line: dict[str, Any] = {
            "id": name,
            "images": [save_image(decode_image(row["image"], where), folder, name, where)]
            if row["image"].strip()
            else [],
            "question": stem or prompt,
            "choices": options if kind == "multiple_choice" else {},
            "answer": answer,
            "topic": topic,
            "type": kind,
            "references": _references(row),
            "question_hint": row.get("question_specific_hint", "").strip() or None,
        }
        yield where, line


def _find_topic(row: dict[str, str], where: str) -> Topic:
    for column in ("topic", "category", "normalized_classification", "classification", "question_type"):
        name = row.get(column, "").strip().lower().replace("_", " ")
        if name in _TOPIC_NAMES:
            return _TOPIC_NAMES[name]
    raise InputError(f"{where}: names none of the topics {', '.join(TOPICS)}")


def _find_type(row: dict[str, str], prompt: str, answer: str) -> tuple[AnswerType, dict[str, str]]:
    """Return the form of the answer, and the options that the prompt lists."""
    options = dict(_OPTION.findall(prompt))
    for column in ("answer_type", "question_type", "type"):
        kind = _TYPES.get(row.get(column, "").strip().lower().replace("_", " ").replace("-", " "))
        if kind is not None and (kind != "approximate" or parse_quantity(answer) is not None):
            return kind, options
    letter = answer.strip("()[]. ").upper()
    return ("multiple_choice", options) if len(options) > 1 and letter in options else ("free_form", {})


def _references(row: dict[str, str]) -> list[str]:
    """Return the true chain and its rewrites, in the order of their numbers."""
    rewrites = sorted(
        (name for name in row if re.fullmatch(r"rephrase_thinking_\d+", name)),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    return [text for name in ("refine_thinking", *rewrites) if (text := row.get(name, "").strip())]


MIRAGE = Layout("MIRAGE", "mirage", MirageQuestion, _matches, _read)
