"""Questions and answers of MME in their official folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmprobe.errors import InputError
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


_IMAGES = (".jpg", ".jpeg", ".png")


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def read_mme(path: str | Path) -> list[Sample]:
    """Read the official folder: one folder a subtask, holding pictures and a text file of questions for each.

    Pictures and texts lie side by side, or in `images/` and `questions_answers_YN/`. A text has two lines, each a
    question, a tab and Yes or No.

    Returns:
        Samples with the ids `subtask-picture-1` and `-2`, yes or no as answer, and `subtask` and `image` in the
        metadata.

    Raises:
        InputError: naming the file, for what is not such a folder or such a file, or unreadable pictures.

    Example:
        >>> read_mme("MME_Benchmark_release_version")[0].metadata["subtask"]        # doctest: +SKIP
        'existence'
    """
    path = Path(path)
    samples: dict[str, Sample] = {}
    for subtask in SUBTASKS:
        folder = path / subtask
        texts = folder / "questions_answers_YN"
        for file in sorted((texts if texts.is_dir() else folder).glob("*.txt")):
            image = _image(folder / "images" if texts.is_dir() else folder, file)
            check_image(image, str(file))
            lines = [(where, line.rsplit("\t", 1)) for where, line in _lines(file)]
            if len(lines) != 2:
                raise InputError(f"{file}: holds {len(lines)} questions; MME asks two about each picture")
            for number, (where, fields) in enumerate(lines, 1):
                if len(fields) != 2:
                    raise InputError(f"{where}: not a question, a tab and Yes or No")
                _add(samples, where, subtask, image.name, number, fields[0], fields[1], [image.absolute()])
    if not samples:
        raise InputError(f"{path}: holds no questions in folders such as {path / 'existence'}")
    return list(samples.values())


def _image(folder: Path, text: Path) -> Path:
    found = [folder / (text.stem + suffix) for suffix in _IMAGES if (folder / (text.stem + suffix)).is_file()]
    if not found:
        raise InputError(f"{text}: its picture {folder / text.stem}.jpg (or .jpeg, .png) is missing")
    return found[0]


def read_mme_answers(path: str | Path) -> tuple[list[Sample], dict[str, str]]:
    """Read the official folder of results: `existence.txt` and so on, of lines picture, question, truth, answer.

    The fields have tabs between them, and two lines in turn are about one picture.

    Returns:
        The questions, without pictures, and what was answered to each by its id.

    Raises:
        InputError: naming file and line, for what is not such a folder or such a file.

    Example:
        >>> samples, responses = read_mme_answers("Your_Results")                   # doctest: +SKIP
        >>> score_mme(samples, responses)[0]["perception"].value                    # doctest: +SKIP
        1450.5
    """
    path = Path(path)
    samples: dict[str, Sample] = {}
    responses: dict[str, str] = {}
    for subtask in SUBTASKS:
        file = path / f"{subtask}.txt"
        if not file.is_file():
            continue
        lines = [(where, line.split("\t", 3)) for where, line in _lines(file)]
        for number, (where, fields) in enumerate(lines):
            if len(fields) != 4:
                raise InputError(f"{where}: not picture, question, truth and answer with tabs between")
            mate = lines[number ^ 1][1] if number ^ 1 < len(lines) else [""]
            if mate[0] != fields[0]:
                raise InputError(
                    f"{where}: picture {fields[0]!r} has one question here; MME asks two in turn"
                )
            name = _add(samples, where, subtask, fields[0], number % 2 + 1, fields[1], fields[2], [])
            responses[name] = fields[3]
    if not samples:
        raise InputError(f"{path}: holds no results such as {path / 'existence.txt'}")
    return list(samples.values()), responses


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 text ({error})") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{file}, line {number}", line.strip("\r")


def _add(
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
    name = f"{subtask}-{_UNSAFE.sub('-', Path(image).stem)[:100]}-{number}"
    if name in samples:
        raise InputError(f"{where}: picture {image!r} was asked about before")
    facts = {"subtask": subtask, "image": image}
    samples[name] = Sample(id=name, images=images, question=question.strip(), answer=label, metadata=facts)
    return name
