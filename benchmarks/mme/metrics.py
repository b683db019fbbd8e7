"""MME: two questions a picture, one of whose answers is yes and one no, in fourteen subtasks.

Fu et al. (2023), "MME: A Comprehensive Evaluation Benchmark for Multimodal Large Language Models",
arXiv 2306.13394.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.benchmarks.answers.yes_no import parse_yes_no
from mmprobe.benchmarks.core.results import Metric, count_metric, of_samples
from mmprobe.benchmarks.mme.data import COGNITION, PERCEPTION, SUBTASKS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

# Counts of a picture in each subtask: right answers, questions, both right, pictures, unknown answers.
_RIGHT, _QUESTIONS, _BOTH, _PICTURES, _UNKNOWN = range(5)


_COUNTS = 5


def _accuracy(counts: np.ndarray) -> np.ndarray:
    return counts[..., _RIGHT] / counts[..., _QUESTIONS]


def _accuracy_plus(counts: np.ndarray) -> np.ndarray:
    return counts[..., _BOTH] / counts[..., _PICTURES]


def _score(counts: np.ndarray) -> np.ndarray:
    return 100 * (_accuracy(counts) + _accuracy_plus(counts))


def _sum(subtasks: int) -> Callable[[np.ndarray], np.ndarray]:
    """The sum of the subtasks' scores, from their counts side by side."""
    return lambda counts: _score(counts.reshape(*counts.shape[:-1], subtasks, _COUNTS)).sum(-1)


def score_mme(
    samples: Sequence[Sample], responses: Mapping[str, str]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Each subtask's score, 100 (accuracy + accuracy+), and their sums perception and cognition.

    accuracy+ is the share of pictures both of whose questions are answered right. An answer that says neither yes
    nor no is wrong and counted by `unknown`. Intervals are over pictures, and `n` counts pictures; one with an
    unanswered question is left out and lowers the coverage. A sum is over the subtasks that the data has, which
    its range tells: 0 to 200 for each, so 2000 and 800 for the whole benchmark.

    Args:
        samples: the questions, two a picture, with `subtask` and `image` in the metadata.
        responses: what was answered, by the sample's id.

    Returns:
        Metrics by name: `existence`, `existence_accuracy`, `existence_accuracy_plus` and so on, `perception`,
        `cognition`, `unknown`; and a row a question.

    Raises:
        InputError: a response to no question of these, or a picture without two questions.

    Example:
        >>> facts = {"subtask": "count", "image": "a.png"}
        >>> both = [Sample(id=x, question="?", answer=x, metadata=facts) for x in ("yes", "no")]
        >>> metrics, _ = score_mme(both, {"yes": "Yes", "no": "Yes"})
        >>> metrics["count"].value, metrics["count_accuracy_plus"].value
        (50.0, 0.0)
    """
    rows = _rows(samples, responses)
    pictures: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        pictures.setdefault((row["subtask"], row["image"]), []).append(row)
    counts: dict[str, list[list[int] | None]] = {}
    ids: dict[str, list[str]] = {}
    for (subtask, image), asked in pictures.items():
        if len(asked) != 2:
            raise InputError(f"MME: {subtask}, picture {image!r}: {len(asked)} questions; two are needed")
        counts.setdefault(subtask, []).append(_counts(asked))
        ids.setdefault(subtask, []).append(f"{subtask}/{image}")
    metrics: dict[str, Metric] = {}
    for subtask in (subtask for subtask in SUBTASKS if subtask in counts):
        of_subtask = {
            subtask: count_metric(counts[subtask], _score, "higher", (0.0, 200.0)),
            f"{subtask}_accuracy": count_metric(counts[subtask], _accuracy, "higher"),
            f"{subtask}_accuracy_plus": count_metric(counts[subtask], _accuracy_plus, "higher"),
        }
        metrics |= of_samples(of_subtask, ids[subtask])
    for name, group in (("perception", PERCEPTION), ("cognition", COGNITION)):
        found = [subtask for subtask in group if subtask in counts]
        if found:
            side = _side_by_side([counts[subtask] for subtask in found])
            total = count_metric(side, _sum(len(found)), "higher", (0.0, 200.0 * len(found)))
            metrics |= of_samples({name: total}, [one for subtask in found for one in ids[subtask]])
    every = [count for found in counts.values() for count in found]
    unknown = count_metric(every, lambda sums: sums[..., _UNKNOWN] / sums[..., _QUESTIONS], "lower")
    metrics |= of_samples({"unknown": unknown}, [one for found in ids.values() for one in found])
    return metrics, rows


def _rows(samples: Sequence[Sample], responses: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {sample.id for sample in samples}
    for name in responses:
        if name not in known:
            raise InputError(f"MME: response {name!r} answers no question of the data")
    rows = []
    for sample in samples:
        subtask, answer = sample.metadata.get("subtask"), responses.get(sample.id)
        if subtask not in SUBTASKS or sample.answer not in ("yes", "no"):
            raise InputError(f"sample {sample.id}: is no question of MME, with a subtask, answered yes or no")
        said = None if answer is None else parse_yes_no(answer)
        rows.append(
            {
                "id": sample.id,
                "subtask": subtask,
                "image": sample.metadata.get("image"),
                "question": sample.question,
                "answer": answer,
                "label": sample.answer,
                "said": said,
                "correct": None if said is None else said == sample.answer,
            }
        )
    return rows


def _counts(asked: Sequence[Mapping[str, Any]]) -> list[int] | None:
    if any(row["said"] is None for row in asked):
        return None
    right = sum(row["correct"] for row in asked)
    return [right, 2, int(right == 2), 1, sum(row["said"] == "unknown" for row in asked)]


def _side_by_side(parts: Sequence[Sequence[list[int] | None]]) -> list[list[int] | None]:
    """Each picture's counts in the place of its subtask, zeros in the others'."""
    wide: list[list[int] | None] = []
    for place, part in enumerate(parts):
        for count in part:
            before, after = [0] * _COUNTS * place, [0] * _COUNTS * (len(parts) - place - 1)
            wide.append(None if count is None else before + count + after)
    return wide
