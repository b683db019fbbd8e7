"""Questions and answers of POPE in their official files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_image

Setting = Literal["random", "popular", "adversarial"]


SETTINGS: tuple[Setting, ...] = get_args(Setting)


_SETTING = re.compile("|".join(SETTINGS))


def read_pope(path: str | Path, images: str | Path | None = None) -> list[Sample]:
    """Read official question files: a JSON object a line with question_id, image, text and label.

    Args:
        path: one file, or a folder whose `*random*`, `*popular*` and `*adversarial*` files are all read.
        images: folder of the pictures; None leaves them out, which is enough to score answers.

    Returns:
        Samples with the question's id (of a folder: `random-1` and so on), the label as answer, and `setting`
        (None where the file's name does not tell), `image` in the metadata.

    Raises:
        InputError: naming file and line, for what is not such a file, ids used twice, or unreadable pictures.

    Example:
        >>> read_pope("coco_pope_random.json", images="val2014")[0].question       # doctest: +SKIP
        'Is there a snowboard in the image?'
    """
    path, folder = Path(path), Path(images) if images else None
    if not path.is_dir():
        return pope_samples(_lines(path), path, folder, _setting(path), prefix="")
    found = sorted(file for file in path.iterdir() if _setting(file) and file.suffix in (".json", ".jsonl"))
    if not found:
        raise InputError(f"{path}: holds no file such as coco_pope_random.json")
    settings = [_setting(file) for file in found]
    for file, setting in zip(found, settings, strict=True):
        if settings.count(setting) > 1:
            raise InputError(f"{file}: the folder holds more than one file of {setting} questions")
    return [
        sample
        for file, setting in zip(found, settings, strict=True)
        for sample in pope_samples(_lines(file), file, folder, setting, prefix=f"{setting}-")
    ]


def _setting(path: Path) -> str | None:
    found = _SETTING.search(path.stem)
    return found[0] if found else None


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its line's number."""
    rows = list(json_lines(path))
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: not a JSON object; one is expected on each line")
    if not rows:
        raise InputError(f"{path}: holds no lines")
    return rows


def pope_samples(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    path: Path,
    folder: Path | None,
    setting: str | None,
    prefix: str = "",
    system: str | None = None,
) -> list[Sample]:
    """Samples of official rows.

    Args:
        rows: each with its line's number.
        path: the file they are of, for messages.
        folder: of the pictures; None leaves them out.
        setting: random, popular, adversarial, or None.
        prefix: of the samples' ids.
        system: prompt of every sample.

    Raises:
        InputError: naming file and line.

    Example:
        >>> row = {"question_id": 1, "image": "a.jpg", "text": "Is there a dog?", "label": "no"}
        >>> pope_samples([(1, row)], Path("pope.json"), None, "random")[0].answer
        'no'
    """
    samples: dict[str, Sample] = {}
    checked: set[Path] = set()
    for number, row in rows:
        where = f"{path}, line {number}"
        missing = [name for name in ("question_id", "image", "text", "label") if name not in row]
        if missing:
            raise InputError(
                f"{where}: has no {missing[0]!r}; POPE's lines have question_id, image, text, label"
            )
        label = str(row["label"]).strip().lower()
        if label not in ("yes", "no"):
            raise InputError(f"{where}: label {row['label']!r} is neither yes nor no")
        name = f"{prefix}{row['question_id']}"
        if name in samples:
            raise InputError(f"{where}: question_id {row['question_id']!r} was used before")
        pictures = [] if folder is None else [(folder / str(row["image"])).absolute()]
        for picture in pictures:
            if picture not in checked:
                check_image(picture, where)
                checked.add(picture)
        facts = {"setting": setting, "image": str(row["image"])}
        try:
            samples[name] = Sample(
                id=name,
                images=pictures,
                question=str(row["text"]),
                system=system,
                answer=label,
                metadata=facts,
            )
        except ValueError:
            raise InputError(f"{where}: question_id {row['question_id']!r} cannot name a sample") from None
    return list(samples.values())


def read_pope_answers(path: str | Path, samples: Sequence[Sample]) -> dict[str, str]:
    """Read the answers in the official form: `{"question": …, "answer": …}` a line, in the questions' order.

    Raises:
        InputError: the lines are not those of the samples, one for one.

    Example:
        >>> read_pope_answers("answers.json", samples)["1"]                        # doctest: +SKIP
        'Yes, there is.'
    """
    rows = _lines(Path(path))
    if len(rows) != len(samples):
        raise InputError(f"{path}: holds {len(rows)} answers to {len(samples)} questions; they must match")
    answers = {}
    for (number, row), sample in zip(rows, samples, strict=True):
        if not isinstance(row.get("answer"), str):
            raise InputError(f"{path}, line {number}: has no 'answer' that is a text")
        if row.get("question", sample.question) != sample.question:
            raise InputError(f"{path}, line {number}: answers another question than {sample.question!r}")
        answers[sample.id] = row["answer"]
    return answers
