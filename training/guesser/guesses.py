"""What a text-only model answers to the questions of a set, scored as `mmprobe bench mirage-effect` scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.results import Metric, mean_metric, write_results
from mmprobe.benchmarks.mirage_effect.benchmark import MirageEffect
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, MirageEffectTruth
from mmprobe.benchmarks.mirage_effect.samples import ABSENT
from mmprobe.errors import InputError
from mmprobe.files import result_records
from mmprobe.models.text_model import TextModel
from mmprobe.training.guesser.text_model import answer_questions

WAYS = ("present", "absent", "few_shot")


def write_guesses(
    model: TextModel,
    questions: Sequence[ChoiceQuestion],
    out: Path,
    against: Sequence[Path] = (),
    max_new_tokens: int = 32,
    rest: Collection[str] | None = None,
) -> dict[str, Metric]:
    """Ask a text-only model, and write the result folder that `mmprobe data clean --text-only` reads.

    Args:
        model: the super-guesser.
        questions: of the test set.
        out: gets `results.json` and `samples.jsonl`.
        against: result folders of multimodal models on the same questions (figure 3b).
        max_new_tokens: of an answer; our choice.
        rest: ids of the questions that the metrics count; None for all.

    Returns:
        - accuracy_guesser: share of right answers; unread ones are not right
        - chance: the mean of 1/k over the questions with k options
        - above_chance: the difference, over questions with options
        - minus_present[model=M], minus_absent[model=M], minus_few_shot[model=M]: accuracy of the super-guesser less
          that of M with images, without them, and without them after examples, paired by question

    Raises:
        InputError: a folder of `against` answers none of the questions.
    """
    responses = answer_questions(model, questions, max_new_tokens)
    answers = {question.id + ABSENT: text for question, text in zip(questions, responses, strict=True)}
    metrics, records = MirageEffect().score(MirageEffectTruth([], list(questions)), answers)
    records = [record for record in records if record["kind"] == "choice"]
    right = {record["id"]: bool(record["answers"]["absent"]["correct"]) for record in records}
    metrics = {name: metric for name, metric in metrics.items() if name == "accuracy_without"}
    counted = [question for question in questions if rest is None or question.id in rest]
    metrics |= guess_metrics(counted, right)
    for folder in against:
        metrics |= _compare(folder, right)
    write_results(out, "mirage-effect", metrics, records, {"model": model.name, "method": "text only"})
    return metrics


def guess_metrics(questions: Sequence[ChoiceQuestion], right: Mapping[str, bool]) -> dict[str, Metric]:
    """Return the accuracy of guesses beside chance, with intervals over questions.

    Example:
        >>> question = ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B")
        >>> guess_metrics([question], {"1": True})["above_chance"].value
        0.5
    """
    closed = [question for question in questions if question.choices]
    above = [float(right[question.id]) - 1 / len(question.choices) for question in closed]
    return {
        "accuracy_guesser": mean_metric([float(right[question.id]) for question in questions], "higher"),
        "chance": mean_metric([1 / len(question.choices) for question in closed], "neither"),
        "above_chance": mean_metric(above, "higher", (-1.0, 1.0)),
    }


def _compare(folder: Path, right: Mapping[str, bool]) -> dict[str, Metric]:
    """Return the paired differences to the results of a multimodal model."""
    records: dict[str, Mapping[str, Any]] = {
        record["id"]: record["answers"]
        for _, record in result_records(folder)
        if record.get("kind") == "choice" and record.get("id") in right
    }
    if not records:
        raise InputError(
            f"{folder}: answers none of the test questions; give results of bench mirage-effect on them"
        )
    metrics: dict[str, Metric] = {}
    for way in WAYS:
        verdicts = {
            name: answers[way]["correct"]
            for name, answers in records.items()
            if isinstance(answers.get(way), dict) and answers[way].get("correct") is not None
        }
        if verdicts:
            differences = [float(right[name]) - float(verdict) for name, verdict in verdicts.items()]
            metrics[f"minus_{way}[model={folder}]"] = mean_metric(differences, "higher", (-1.0, 1.0))
    return metrics


def read_compromised(folders: Sequence[Path]) -> set[str]:
    """Return the ids of the questions that any model answers rightly without its images: C of step 2.

    Raises:
        InputError: a folder contains no such results.
    """
    found: set[str] = set()
    for folder in folders:
        for _, record in result_records(folder):
            answer = record.get("answers", {}).get("absent")
            if isinstance(answer, dict) and answer.get("correct") is True:
                found.add(record["id"])
    return found
