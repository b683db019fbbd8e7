"""POPE: yes-or-no questions about objects that are, or are not, in a picture.

Li et al. (2023), "Evaluating Object Hallucination in Large Vision-Language Models", arXiv 2305.10355. Each
picture gets three questions about objects it shows and three about objects it does not show, which are drawn
at random, or the most frequent ones of all pictures (popular), or those that most often stand beside the
objects it does show (adversarial).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mmprobe.benchmarks.lines import json_lines
from mmprobe.benchmarks.results import Direction, Metric, count_metric, of_samples
from mmprobe.benchmarks.yes_no import yes_no
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


# Counts of a question, one of them 1: what it was answered, and whether that is right.
_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO = range(6)
_CELLS = {
    ("yes", "yes"): _TP,
    ("yes", "no"): _FP,
    ("no", "no"): _TN,
    ("no", "yes"): _FN,
    ("unknown", "yes"): _UNKNOWN_YES,
    ("unknown", "no"): _UNKNOWN_NO,
}


def _share(over: Sequence[int], under: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda counts: counts[..., list(over)].sum(-1) / counts[..., list(under)].sum(-1)


_ALL, _KNOWN = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3)
_METRICS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Direction]] = {
    "accuracy": (_share((_TP, _TN), _ALL), "higher"),
    "precision": (_share((_TP,), (_TP, _FP)), "higher"),
    "recall": (_share((_TP,), (_TP, _FN, _UNKNOWN_YES)), "higher"),
    "f1": (_share((_TP, _TP), (_TP, _TP, _FP, _FN, _UNKNOWN_YES)), "higher"),
    "yes_ratio": (_share((_TP, _FP), _ALL), "neither"),
    "unknown": (_share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
    "accuracy_known": (_share((_TP, _TN), _KNOWN), "higher"),
    "recall_known": (_share((_TP,), (_TP, _FN)), "higher"),
    "f1_known": (_share((_TP, _TP), (_TP, _TP, _FP, _FN)), "higher"),
    "yes_ratio_known": (_share((_TP, _FP), _KNOWN), "neither"),
}


def score_pope(
    samples: Sequence[Sample], responses: Mapping[str, str]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Accuracy, precision, recall and F1 (positive = yes), and the share of answers that say yes.

    An answer that says neither yes nor no is unknown: it is wrong in `accuracy`, `recall` and `f1`, left out of
    `accuracy_known`, `recall_known` and `f1_known`, and counted by `unknown`. `yes_ratio` is the share of all
    answers, `yes_ratio_known` of those that say yes or no. A question without an answer lowers the coverage.

    Args:
        samples: the questions, their answers yes or no.
        responses: what was answered, by the sample's id.

    Returns:
        Metrics by name, and again for each setting (`accuracy_random`) if there are several; and a row a
        question with what was said and whether it is right.

    Raises:
        InputError: a response to no question of these.

    Example:
        >>> questions = [Sample(id=name, question="?", answer="yes") for name in "12"]
        >>> metrics, rows = score_pope(questions, {"1": "Yes.", "2": "Perhaps"})
        >>> metrics["accuracy"].value, metrics["accuracy_known"].value, metrics["unknown"].value, rows[1]["said"]
        (0.5, 1.0, 0.5, 'unknown')
    """
    known = {sample.id for sample in samples}
    for name in responses:
        if name not in known:
            raise InputError(f"POPE: response {name!r} answers no question of the data")
    counts: list[list[int] | None] = []
    rows = []
    for sample in samples:
        answer, label = responses.get(sample.id), (sample.answer or "").lower()
        if label not in ("yes", "no"):
            raise InputError(f"sample {sample.id}: its answer is neither yes nor no")
        said = None if answer is None else yes_no(answer)
        counts.append(None if said is None else [int(_CELLS[said, label] == cell) for cell in range(6)])
        rows.append(
            {
                "id": sample.id,
                "question": sample.question,
                "answer": answer,
                "label": label,
                "said": said,
                "correct": None if said is None else said == label,
                "setting": sample.metadata.get("setting"),
            }
        )
    metrics = _measured(counts, rows)
    settings = [setting for setting in SETTINGS if any(row["setting"] == setting for row in rows)]
    for setting in settings if len(settings) > 1 else []:
        of_setting = [row["setting"] == setting for row in rows]
        part = _measured(list(compress(counts, of_setting)), list(compress(rows, of_setting)))
        metrics |= {f"{name}_{setting}": metric for name, metric in part.items()}
    return metrics, rows


def _measured(counts: Sequence[list[int] | None], rows: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    metrics = {name: count_metric(counts, of, direction) for name, (of, direction) in _METRICS.items()}
    return of_samples(metrics, [row["id"] for row in rows])
