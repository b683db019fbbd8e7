"""Read the official question and answer files of POPE (arXiv:2305.10355)."""

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
        images: folder of the images. None leaves them out; answers can be scored without them.

    Returns:
        Samples with the label as answer, and `image` and `setting` in the metadata. `setting` is None if the
        name of the file does not hold it. The id is that of the question; for a folder it is `random-1` and
        so on.

    Raises:
        InputError: a file is malformed, an id is used twice, or an image is unreadable. The message names the
            line.
    """
    path = Path(path)
    folder = Path(images) if images else None
    if not path.is_dir():
        return make_samples(_read_lines(path), path, folder, _find_setting(path), prefix="")
    files = sorted(
        file for file in path.iterdir() if _find_setting(file) and file.suffix in (".json", ".jsonl")
    )
    if not files:
        raise InputError(f"{path}: holds no file such as coco_pope_random.json")
    settings = [_find_setting(file) for file in files]
    for file, setting in zip(files, settings, strict=True):
        if settings.count(setting) > 1:
            raise InputError(f"{file}: the folder holds more than one file of {setting} questions")
    return [
        sample
        for file, setting in zip(files, settings, strict=True)
        for sample in make_samples(_read_lines(file), file, folder, setting, prefix=f"{setting}-")
    ]


def _find_setting(path: Path) -> str | None:
    match = _SETTING.search(path.stem)
    return match[0] if match else None


def _read_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a file of JSON lines, each with its line number."""
    rows = list(json_lines(path))
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: not a JSON object; one is expected on each line")
    if not rows:
        raise InputError(f"{path}: holds no lines")
    return rows


def make_samples(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    path: Path,
    folder: Path | None,
    setting: str | None,
    prefix: str = "",
    system: str | None = None,
) -> list[Sample]:
    """Return the samples of official rows."""
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
        images = [] if folder is None else [(folder / str(row["image"])).absolute()]
        for image in images:
            if image not in checked:
                check_image(image, where)
                checked.add(image)
        metadata = {"setting": setting, "image": str(row["image"])}
        try:
            samples[name] = Sample(
                id=name,
                images=images,
                question=str(row["text"]),
                system=system,
                answer=label,
                metadata=metadata,
            )
        except ValueError:
            raise InputError(f"{where}: question_id {row['question_id']!r} cannot name a sample") from None
    return list(samples.values())


def read_pope_answers(path: str | Path, samples: Sequence[Sample]) -> dict[str, str]:
    """Read answers in the official form, lines of `{"question": …, "answer": …}`.

    The lines have the order of the questions.
    """
    rows = _read_lines(Path(path))
    if len(rows) != len(samples):
        raise InputError(f"{path}: holds {len(rows)} answers to {len(samples)} questions; they must match")
    answers = {}
    for (number, row), sample in zip(rows, samples, strict=True):
        if not isinstance(row.get("answer"), str):
            raise InputError(f"{path}, line {number}: has no 'answer', or it is not a text")
        if row.get("question", sample.question) != sample.question:
            raise InputError(f"{path}, line {number}: answers another question than {sample.question!r}")
        answers[sample.id] = row["answer"]
    return answers
