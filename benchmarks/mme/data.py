"""Read the official question and result folders of MME (arXiv:2306.13394)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmprobe.errors import InputError
from mmprobe.files import read_text
from mmprobe.samples import Sample, check_image

PERCEPTION = (
    "existence",
    "count",
    "position",
    "color",
    "posters",
    "celebrity",
    "scene",
    "landmark",
    "artwork",
    "OCR",
)
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
SUBTASKS = (*PERCEPTION, *COGNITION)
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")


def read_mme(path: str | Path) -> list[Sample]:
    """Read the official folder: one folder a subtask, with images and one text file of questions an image.

    Images and texts are side by side, or in `images/` and `questions_answers_YN/`. A text has two lines, each
    a question, a tab, and Yes or No. The samples have the ids `subtask-image-1` and `subtask-image-2`, and
    `subtask` and `image` in the metadata. Raises InputError, with the file, for another form or an unreadable
    image.
    """
    path = Path(path)
    samples: dict[str, Sample] = {}
    for subtask in SUBTASKS:
        folder = path / subtask
        texts = folder / "questions_answers_YN"
        for file in sorted((texts if texts.is_dir() else folder).glob("*.txt")):
            image = _find_image(folder / "images" if texts.is_dir() else folder, file)
            check_image(image, str(file))
            lines = [(where, line.rsplit("\t", 1)) for where, line in _read_lines(file)]
            if len(lines) != 2:
                raise InputError(f"{file}: contains {len(lines)} questions; MME has two about each image")
            for number, (where, fields) in enumerate(lines, 1):
                if len(fields) != 2:
                    raise InputError(f"{where}: not a question, a tab and Yes or No")
                _add_sample(
                    samples, where, subtask, image.name, number, fields[0], fields[1], [image.absolute()]
                )
    if not samples:
        raise InputError(f"{path}: contains no questions in folders such as {path / 'existence'}")
    return list(samples.values())


def _find_image(folder: Path, text: Path) -> Path:
    candidates = [folder / (text.stem + suffix) for suffix in _IMAGE_SUFFIXES]
    images = [path for path in candidates if path.is_file()]
    if not images:
        raise InputError(f"{text}: its image {folder / text.stem}.jpg (or .jpeg, .png) is missing")
    return images[0]


def read_mme_answers(path: str | Path) -> tuple[list[Sample], dict[str, str]]:
    """Read the official folder of results, such as `existence.txt`: questions without images, answers by id.

    Each line contains image, question, truth and answer, separated by tabs. Two lines in a row are about one
    image.
    """
    path = Path(path)
    samples: dict[str, Sample] = {}
    responses: dict[str, str] = {}
    for subtask in SUBTASKS:
        file = path / f"{subtask}.txt"
        if not file.is_file():
            continue
        lines = [(where, line.split("\t", 3)) for where, line in _read_lines(file)]
        for number, (where, fields) in enumerate(lines):
            if len(fields) != 4:
                raise InputError(f"{where}: not image, question, truth and answer with tabs between")
            partner = number ^ 1  # the other line about the same image
            if partner >= len(lines) or lines[partner][1][0] != fields[0]:
                raise InputError(f"{where}: image {fields[0]!r} has one question here; MME has two in a row")
            name = _add_sample(samples, where, subtask, fields[0], number % 2 + 1, fields[1], fields[2], [])
            responses[name] = fields[3]
    if not samples:
        raise InputError(f"{path}: contains no results such as {path / 'existence.txt'}")
    return list(samples.values()), responses


def _read_lines(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            yield f"{file}, line {number}", line.strip("\r")


def _add_sample(
    samples: dict[str, Sample],
    where: str,
    subtask: str,
    image: str,
    number: int,
    question: str,
    truth: str,
    images: list[Path],
) -> str:
    label = truth.strip().lower()
    if label not in ("yes", "no"):
        raise InputError(f"{where}: the truth {truth.strip()!r} is neither Yes nor No")
    name = f"{subtask}-{_UNSAFE_CHARACTERS.sub('-', Path(image).stem)[:100]}-{number}"
    if name in samples:
        raise InputError(f"{where}: image {image!r} was asked about before")
    metadata = {"subtask": subtask, "image": image}
    samples[name] = Sample(id=name, images=images, question=question.strip(), answer=label, metadata=metadata)
    return name
