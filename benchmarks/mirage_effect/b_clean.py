"""B-Clean (arXiv:2603.21687, section 7.9): remove what several models answer blindly, and rank them again (step 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.stats import rankdata

from mmprobe.benchmarks.core.results import Direction, Metric, change_metric, mean_metric, with_ids
from mmprobe.errors import InputError
from mmprobe.files import read_results, result_records
from mmprobe.stats.intervals import percentile_interval


class CleanedFolders(NamedTuple):
    """The result of B-Clean: the models in the order of their folders, and the ids of the kept questions.

    `metrics` are those of `clean_folders`. `records` hold one row per question: whether it is kept, and which
    models answer it rightly, with and without images.
    """

    models: list[str]
    kept: list[str]
    metrics: dict[str, Metric]
    records: list[dict[str, Any]]


class _ModelResults(NamedTuple):
    """One folder: the name of the model, if known, and the record of each question with a known answer."""

    folder: Path
    model: str | None
    records: dict[str, Mapping[str, Any]]


def clean_questions(
    correct_without: Mapping[str, Mapping[str, bool | None]], by_text_model: Collection[str] = ()
) -> list[str]:
    """Return the questions that no model answers rightly without its image (section 7.9, steps 1 to 3).

    Verdicts are by model and question; None counts as not right. Step 3 is optional: the questions that a
    model trained only on text answers rightly.

    Example:
        >>> clean_questions({"m": {"a": True, "b": False, "c": False}, "n": {"a": False, "b": False, "c": None}})
        ['b', 'c']
    """
    removed = set(by_text_model)
    removed |= {name for verdicts in correct_without.values() for name, right in verdicts.items() if right}
    return [name for name in next(iter(correct_without.values()), {}) if name not in removed]


def chance_of_removal(options: Sequence[int | None], n_models: int) -> list[float]:
    """Return the chance that at least one of n models guesses each question: 1 - (1 - 1/k)^n.

    An open question has no number of options (None); nobody guesses it.

    Example:
        >>> [round(chance, 4) for chance in chance_of_removal([4, None], 3)]
        [0.5781, 0.0]
    """
    return [1 - (1 - 1 / count) ** n_models if count else 0.0 for count in options]


def clean_folders(folders: Sequence[str | Path], text_only: str | Path | None = None) -> CleanedFolders:
    """Clean the question set that several models answered, and rank the models on the kept questions.

    Folders are of `bench` or `score`, one per model, over the same questions; `text_only` is that of a model
    trained only on text (step 3). Metrics are named after the models, or after the folders if two names are
    equal or unknown.

    - removed, removed_by_chance: share of removed questions, and that of as many models with random answers,
      1 - (1 - 1/k)^n; removed_above_chance: the difference
    - compromised[model=M]: share that M answers rightly without the images
    - accuracy_before[model=M], accuracy_after[model=M]: with the images, on all and on the kept questions
    - rank_before[model=M], rank_after[model=M], rank_change[model=M]: 1 is the best rank, so a change above 0
      is for the worse. For the intervals, all models share the resampled questions.
    - ranks_changed: share of models whose rank changes

    Raises InputError where a folder is missing or given twice, contains other results, or answers other
    questions.
    """
    if not folders:
        raise InputError("B-Clean needs the results of at least one model; give their folders")
    paths = [Path(folder) for folder in [*folders, *([text_only] if text_only is not None else [])]]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("B-Clean: a folder is given twice; each model's results count once")
    results = [_read_folder(path) for path in paths]
    _check_same_questions(results)
    models, text_models = results[: len(folders)], results[len(folders) :]
    names = _name_models(models)
    ids = list(models[0].records)
    options = [models[0].records[name]["options"] for name in ids]
    correct_without = _correct_by_model(models, names, ids, "absent")
    correct_with = _correct_by_model(models, names, ids, "present")
    by_text_model = [
        name for each in text_models for name in ids if _is_correct(each.records[name], "absent")
    ]
    verdicts = {name: dict(zip(ids, right, strict=True)) for name, right in correct_without.items()}
    kept = clean_questions(verdicts, by_text_model)
    metrics = _removal_metrics(ids, kept, options, len(results))
    for name in names:
        metrics[f"compromised[model={name}]"] = mean_metric(correct_without[name], "neither")
    metrics = with_ids(metrics, ids) | _rank_metrics(rank_changes(ids, correct_with, set(kept)))
    return CleanedFolders(
        names, kept, metrics, _make_records(models[0], names, kept, correct_without, correct_with)
    )


def _read_folder(folder: Path) -> _ModelResults:
    results = read_results(folder, "mirage-effect")
    records: dict[str, Mapping[str, Any]] = {}
    for where, record in result_records(folder):
        if record.get("kind") == "choice":
            _check_record(record, where)
            records[record["id"]] = record
    if not records:
        raise InputError(f"{folder}: contains no question with a known answer, so there is nothing to clean")
    return _ModelResults(folder, results.model_name(), records)


def _check_record(record: Mapping[str, Any], where: str) -> None:
    has_fields = (
        isinstance(record.get("id"), str) and isinstance(record.get("answers"), dict) and "options" in record
    )
    if not has_fields:
        raise InputError(f"{where}: is not a record of mirage-effect")
    options = record["options"]
    if not (options is None or (type(options) is int and options > 1)):
        raise InputError(f"{where}: field 'options': must be null, or 2 or more")


def _check_same_questions(results: Sequence[_ModelResults]) -> None:
    first = results[0]
    for other in results[1:]:
        unshared = sorted(first.records.keys() ^ other.records.keys())
        if unshared:
            raise InputError(
                f"{other.folder}: answers other questions than {first.folder} "
                f"({unshared[0]!r} is in one of them only); ask all models the same data"
            )
        for name, record in first.records.items():
            if any(record.get(field) != other.records[name].get(field) for field in ("question", "options")):
                raise InputError(f"{other.folder}: {name!r} is another question than in {first.folder}")


def _name_models(results: Sequence[_ModelResults]) -> list[str]:
    models = [result.model for result in results]
    if None in models or len(set(models)) < len(models):
        return [str(result.folder) for result in results]
    return [str(model) for model in models]


def _correct_by_model(
    results: Sequence[_ModelResults],
    names: Sequence[str],
    ids: Sequence[str],
    kind: Literal["absent", "present"],
) -> dict[str, list[bool | None]]:
    return {
        name: [_is_correct(result.records[question_id], kind) for question_id in ids]
        for name, result in zip(names, results, strict=True)
    }


def _is_correct(record: Mapping[str, Any], kind: Literal["absent", "present"]) -> bool | None:
    answer = record["answers"].get(kind)
    correct = answer.get("correct") if isinstance(answer, dict) else None
    return correct if isinstance(correct, bool) else None


def _removal_metrics(
    ids: Sequence[str], kept: Sequence[str], options: Sequence[int | None], n_models: int
) -> dict[str, Metric]:
    kept_ids = set(kept)
    removed = [float(name not in kept_ids) for name in ids]
    by_chance = chance_of_removal(options, n_models)
    return {
        "removed": mean_metric(removed, "neither"),
        "removed_by_chance": mean_metric(by_chance, "neither"),
        "removed_above_chance": change_metric(removed, by_chance, "neither"),
    }


def _rank_metrics(changes: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    metrics = {f"{name}[model={model}]": each for model, row in changes.items() for name, each in row.items()}
    by_rank = [row["rank_change"].value for row in changes.values()]
    changed = [None if change is None else change != 0 for change in by_rank]
    return metrics | {"ranks_changed": mean_metric(changed, "neither")}


def _make_records(
    first: _ModelResults,
    names: Sequence[str],
    kept: Sequence[str],
    correct_without: Mapping[str, Sequence[bool | None]],
    correct_with: Mapping[str, Sequence[bool | None]],
) -> list[dict[str, Any]]:
    kept_ids = set(kept)
    return [
        {
            "id": question_id,
            "question": record.get("question"),
            "options": record["options"],
            "kept": question_id in kept_ids,
            "correct_without": {name: correct_without[name][index] for name in names},
            "correct_with": {name: correct_with[name][index] for name in names},
        }
        for index, (question_id, record) in enumerate(first.records.items())
    ]


def rank_changes(
    ids: Sequence[str], correct_with: Mapping[str, Sequence[bool | None]], kept: Collection[str]
) -> dict[str, dict[str, Metric]]:
    """Return accuracy and rank of each model on the whole set and on the cleaned one, and the rank's change.

    Rank 1 is the best, and models with equal accuracy share their mean rank. A rank is undefined if no question
    was kept, or a model has no scored question. All models share the resampled questions of the 95 % intervals,
    and both ranks of a change do. `correct_with` is by model whether it answered each question rightly with its
    image; None if not scored.

    Example:
        >>> correct = {"m": [True, True, False], "n": [False, False, True]}
        >>> change = rank_changes(["a", "b", "c"], correct, {"c"})["m"]
        >>> [change[name].value for name in ("rank_before", "rank_after", "rank_change")]
        [1.0, 2.0, 1.0]
    """
    is_kept = np.array([name in kept for name in ids], bool)
    rows = [[np.nan if v is None else float(v) for v in correct] for correct in correct_with.values()]
    table = np.array(rows, float).reshape(len(correct_with), len(ids))
    inside = table[:, is_kept]

    def change(weights: np.ndarray) -> np.ndarray:
        return _weighted_ranks(inside, weights[:, is_kept]) - _weighted_ranks(table, weights)

    before = _with_intervals(lambda weights: _weighted_ranks(table, weights), len(ids))
    after = _with_intervals(lambda weights: _weighted_ranks(inside, weights), inside.shape[1])
    changes = _with_intervals(change, len(ids))
    size = float(len(table))
    metrics = {}
    for index, model in enumerate(correct_with):
        whole, cleaned = _accuracy(table[index]), _accuracy(inside[index])
        metrics[model] = {
            "accuracy_before": whole,
            "accuracy_after": cleaned,
            "rank_before": _rank_metric(before[index], whole, "lower", (1.0, size)),
            "rank_after": _rank_metric(after[index], cleaned, "lower", (1.0, size)),
            "rank_change": _rank_metric(changes[index], cleaned, "neither", (1.0 - size, size - 1.0)),
        }
    return metrics


def _accuracy(correct: np.ndarray) -> Metric:
    return mean_metric([None if np.isnan(value) else float(value) for value in correct], "higher")


def _rank_metric(
    row: Sequence[float | None], accuracy: Metric, direction: Direction, limits: tuple[float, float]
) -> Metric:
    value, low, high = row
    n = accuracy.n if value is not None else 0
    return Metric(value, low, high, n, coverage=accuracy.coverage, direction=direction, range=limits)


def _with_intervals(compute: Callable[[np.ndarray], np.ndarray], n: int) -> list[list[float | None]]:
    """Return [model][value, low, high] of numbers [model, resample] that weights [resample, question] give."""
    values = compute(np.ones((1, n)))[:, 0]
    nothing = np.full_like(values, np.nan)
    ends = (
        percentile_interval(compute, None, n) if n > 1 and np.isfinite(values).any() else (nothing, nothing)
    )
    rows = np.stack([values, *ends], 1).tolist()
    return [[number if np.isfinite(number) else None for number in row] for row in rows]


def _weighted_ranks(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the ranks [model, resample]; NaN where a model has no scored question.

    Args:
        table: [model, question], NaN if not scored.
        weights: [resample, question].
    """
    scored = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        means = (np.where(scored, table, 0) @ weights.T) / (scored @ weights.T)
    ranks = rankdata(-np.round(means, 12), axis=0)
    return np.where(np.isfinite(means).all(0), ranks, np.nan)
