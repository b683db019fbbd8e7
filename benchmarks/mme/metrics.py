"""MME: two questions an image, one with the answer yes and one with no, in fourteen subtasks.

Fu et al. (2023), "MME: A Comprehensive Evaluation Benchmark for Multimodal Large Language Models",
arXiv:2306.13394.

In both profiles an unread answer is wrong, as in the authors' `calculation.py`. Profile `own` reads yes or no as
`answers.yes_no` does, `code` by the authors' rule. For a table beside published numbers use `code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mmprobe.benchmarks.core.results import Metric, count_metric, share, with_bounds, with_ids
from mmprobe.benchmarks.mme.data import COGNITION, PERCEPTION, SUBTASKS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

# Columns of an image's counts in one subtask.
_CORRECT, _QUESTIONS, _BOTH_CORRECT, _IMAGES = range(4)
_N_COLUMNS = 4


_accuracy, _accuracy_plus = share(_CORRECT, _QUESTIONS), share(_BOTH_CORRECT, _IMAGES)


def _score(counts: np.ndarray) -> np.ndarray:
    return 100 * (_accuracy(counts) + _accuracy_plus(counts))


def _sum_scores(counts: np.ndarray) -> np.ndarray:
    """Return the sum of the scores of subtasks, whose counts are concatenated."""
    return _score(counts.reshape(*counts.shape[:-1], -1, _N_COLUMNS)).sum(-1)


def read_official(answer: str) -> Literal["yes", "no", "unknown"]:
    """Return the answer by the rule of the authors' code: yes, or else no, within the first four characters.

    They are the first four of the text as it is, so two spaces or `**"` before the word hide a yes, and a first word
    such as `none` or `know` is a no.

    Example:
        >>> [read_official(answer) for answer in ("Yes, it is.", "**No**", "  Yes", "None", "There is no dog.")]
        ['yes', 'no', 'unknown', 'no', 'unknown']
    """
    beginning = answer.lower()[:4]
    return "yes" if "yes" in beginning else "no" if "no" in beginning else "unknown"


def make_record(sample: Sample, answer: str | None, said: str | None) -> dict[str, Any]:
    """Return the record of a question with its answer, and the yes, no or unknown that it says. An unknown answer is wrong."""
    subtask = sample.metadata.get("subtask")
    if subtask not in SUBTASKS or sample.answer not in ("yes", "no"):
        raise InputError(f"sample {sample.id}: not a question of MME with a subtask and the answer yes or no")
    return {
        "id": sample.id,
        "subtask": subtask,
        "image": sample.metadata.get("image"),
        "question": sample.question,
        "answer": answer,
        "label": sample.answer,
        "said": said,
        "correct": None if said is None else said == sample.answer,
    }


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute the score of each subtask, 100 (accuracy + accuracy+), and the sums perception and cognition.

    accuracy+ is the share of images with two correct answers. `unknown` and `unread` are the share of answers that say
    neither yes nor no, and are wrong. `n` and the intervals are over images; one with a missing answer lowers the coverage.
    A sum is over the subtasks in the data, with a range of 0 to 200 for each.
    """
    counts, ids = _count_by_subtask(records)
    unread = [record for record in records if record["said"] == "unknown"]
    best, _ = _count_by_subtask(
        [
            {**record, "correct": record["correct"] or record["said"] == "unknown"}
            if record["said"]
            else record
            for record in records
        ]
    )
    metrics: dict[str, Metric] = {}
    for subtask in (subtask for subtask in SUBTASKS if subtask in counts):
        n_unread = sum(record["subtask"] == subtask for record in unread)
        subtask_metrics = {
            name: with_bounds(
                count_metric(counts[subtask], combine, "higher", limits),
                n_unread,
                combine,
                counts[subtask],
                best[subtask],
            )
            for name, combine, limits in (
                (subtask, _score, (0.0, 200.0)),
                (f"{subtask}_accuracy", _accuracy, (0.0, 1.0)),
                (f"{subtask}_accuracy_plus", _accuracy_plus, (0.0, 1.0)),
            )
        }
        metrics |= with_ids(subtask_metrics, ids[subtask])
    for name, group in (("perception", PERCEPTION), ("cognition", COGNITION)):
        subtasks = [subtask for subtask in group if subtask in counts]
        if subtasks:
            rows, most = (
                _concatenate_counts([each[subtask] for subtask in subtasks]) for each in (counts, best)
            )
            total = with_bounds(
                count_metric(rows, _sum_scores, "higher", (0.0, 200.0 * len(subtasks))),
                sum(record["subtask"] in subtasks for record in unread),
                _sum_scores,
                rows,
                most,
            )
            metrics |= with_ids({name: total}, [image for subtask in subtasks for image in ids[subtask]])
    unknown = count_metric(_count_unknown(records), share(0, 1), "lower")
    metrics |= with_ids(
        {"unknown": unknown, "unread": unknown}, [image for images in ids.values() for image in images]
    )
    return metrics


def _count_by_subtask(
    records: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, list[list[int] | None]], dict[str, list[str]]]:
    """Return the counts and the ids of the images of each subtask. Unanswered images have None as counts."""
    by_image: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        by_image.setdefault((record["subtask"], record["image"]), []).append(record)
    counts: dict[str, list[list[int] | None]] = {}
    ids: dict[str, list[str]] = {}
    for (subtask, image), image_records in by_image.items():
        if len(image_records) != 2:
            raise InputError(
                f"MME: {subtask}, image {image!r}: {len(image_records)} questions; two are needed"
            )
        counts.setdefault(subtask, []).append(_count_image(image_records))
        ids.setdefault(subtask, []).append(f"{subtask}/{image}")
    return counts, ids


def _count_image(records: Sequence[Mapping[str, Any]]) -> list[int] | None:
    if any(record["correct"] is None for record in records):
        return None
    n_correct = sum(record["correct"] for record in records)
    return [n_correct, 2, int(n_correct == 2), 1]


def _count_unknown(records: Sequence[Mapping[str, Any]]) -> list[list[int] | None]:
    """Return the numbers of unknown and of all answers of each image, in the order of `_count_by_subtask`."""
    by_image: dict[str, dict[str, list[str | None]]] = {}
    for record in records:
        by_image.setdefault(record["subtask"], {}).setdefault(record["image"], []).append(record["said"])
    return [
        None if None in said else [said.count("unknown"), len(said)]
        for images in by_image.values()
        for said in images.values()
    ]


def _concatenate_counts(counts: Sequence[Sequence[list[int] | None]]) -> list[list[int] | None]:
    """Return one row an image, with its counts at the place of its subtask and zeros elsewhere."""
    rows: list[list[int] | None] = []
    for place, subtask_counts in enumerate(counts):
        before = [0] * _N_COLUMNS * place
        after = [0] * _N_COLUMNS * (len(counts) - place - 1)
        rows += [None if row is None else before + row + after for row in subtask_counts]
    return rows
