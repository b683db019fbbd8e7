"""Read the official question and answer files of POPE (arXiv:2305.10355)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator

from mmprobe.errors import InputError
from mmprobe.files import json_lines, validate_record
from mmprobe.samples import Sample, check_image

Setting = Literal["random", "popular", "adversarial"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
_SETTING = re.compile("|".join(SETTINGS))
Line = TypeVar("Line", bound=BaseModel)


def read_pope(path: str | Path, images: str | Path | None = None) -> list[Sample]:
    """Read official question files: a JSON object a line with question_id, image, text and label.

    A folder's `*random*`, `*popular*` and `*adversarial*` files are all read. Without a folder of images,
    answers can still be scored. Samples have the label as answer, and `image` and `setting` (None if the
    file's name does not hold it) in the metadata. The id is the question's; for a folder it is `random-1` and
    so on. Raises InputError, with the line, for a malformed file, an id that is used twice, or an unreadable
    image.
    """
    path = Path(path)
    folder = Path(images) if images else None
    if not path.is_dir():
        return make_samples(_read_lines(path, QuestionLine), folder, _find_setting(path))
    files = sorted(
        file for file in path.iterdir() if _find_setting(file) and file.suffix in (".json", ".jsonl")
    )
    if not files:
        raise InputError(f"{path}: contains no file such as coco_pope_random.json")
    settings = [_find_setting(file) for file in files]
    for file, setting in zip(files, settings, strict=True):
        if settings.count(setting) > 1:
            raise InputError(f"{file}: the folder contains more than one file of {setting} questions")
    return [
        sample
        for file, setting in zip(files, settings, strict=True)
        for sample in make_samples(_read_lines(file, QuestionLine), folder, setting, f"{setting}-")
    ]


def _find_setting(path: Path) -> str | None:
    match = _SETTING.search(path.stem)
    return match[0] if match else None


class QuestionLine(BaseModel):
    """A line of an official file."""

    question_id: int | str
    image: str
    text: str
    label: Annotated[Literal["yes", "no"], BeforeValidator(lambda label: str(label).strip().lower())]


class _AnswerLine(BaseModel):
    answer: str
    question: str | None = None


def _read_lines(path: Path, form: type[Line]) -> list[tuple[str, Line]]:
    """Return the lines of a file, each with its place."""
    lines = [(f"{path}, line {number}", row) for number, row in json_lines(path)]
    if not lines:
        raise InputError(f"{path}: contains no lines")
    return [(where, validate_record(row, form, where)) for where, row in lines]


def make_samples(
    rows: Iterable[tuple[str, QuestionLine]],
    folder: Path | None,
    setting: str | None,
    prefix: str = "",
    system: str | None = None,
) -> list[Sample]:
    """Return the samples of official rows, each given with its place."""
    samples: dict[str, Sample] = {}
    checked: set[Path] = set()
    for where, row in rows:
        name = f"{prefix}{row.question_id}"
        if name in samples:
            raise InputError(f"{where}: question_id {row.question_id!r} was used before")
        images = [] if folder is None else [(folder / row.image).absolute()]
        for image in set(images) - checked:
            check_image(image, where)
            checked.add(image)
        name_of_image = (
            Path(row.image).name if Path(row.image).is_absolute() else row.image
        )  # drawn data may move
        metadata = {"setting": setting, "image": name_of_image}
        fields = {"question": row.text, "system": system, "answer": row.label, "metadata": metadata}
        samples[name] = validate_record(fields | {"id": name, "images": images}, Sample, where)
    return list(samples.values())


def read_pope_answers(path: str | Path, samples: Sequence[Sample]) -> dict[str, str]:
    """Read answers in the official form, lines of `{"question": …, "answer": …}` in the questions' order."""
    rows = _read_lines(Path(path), _AnswerLine)
    if len(rows) != len(samples):
        raise InputError(f"{path}: contains {len(rows)} answers to {len(samples)} questions; they must match")
    for (where, row), sample in zip(rows, samples, strict=True):
        if row.question not in (None, sample.question):
            raise InputError(f"{where}: answers another question than {sample.question!r}")
    return {sample.id: row.answer for (_, row), sample in zip(rows, samples, strict=True)}
