"""B-Clean from the result folders of several models: what is kept, and what becomes of their ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.core.results import Direction, Metric, mean_metric, of_samples
from mmprobe.benchmarks.mirage_effect.b_clean import RankChange, b_clean, rank_changes
from mmprobe.errors import InputError

_SHAPE = "not the results of mmprobe bench or score mirage-effect"


class CleanedSet(NamedTuple):
    """What B-Clean makes of a question set.

    Attributes:
        models: their names, in the order of the folders.
        kept: ids of the questions that no model answers rightly without the pictures.
        metrics: as `b_clean_folders` says.
        records: a line a question: whether it is kept, and which models answer it rightly, with and without.
    """

    models: list[str]
    kept: list[str]
    metrics: dict[str, Metric]
    records: list[dict[str, Any]]


class _Results(NamedTuple):
    """One folder: the model, if it is named, and the record of each question with a known answer."""

    folder: Path
    model: str | None
    questions: dict[str, Mapping[str, Any]]


def b_clean_folders(folders: Sequence[str | Path], text_only: str | Path | None = None) -> CleanedSet:
    """Clean the question set that several models were asked, and rank them on what is left (section 7.9).

    Args:
        folders: result folders of `mmprobe bench mirage-effect` or `score`, one a model, over the same questions.
        text_only: results of a model that was trained on text alone; what it answers rightly goes as well (step 3).

    Returns:
        Metrics are named after the folders' models, or after the folders if two models are the same or unnamed:

        - removed: share of the questions that go; removed_by_chance: the share that as many models would remove
          who answer at random, 1 - (1 - 1/k)^n over the questions; removed_above_chance: the difference
        - compromised[model=M]: share that M answers rightly without the pictures
        - accuracy_before[model=M], accuracy_after[model=M]: with the pictures, on all questions and on the kept ones
        - rank_before[model=M], rank_after[model=M], rank_change[model=M]: 1 is the best, so that a change above 0 is
          for the worse; their intervals draw the same questions anew for all models
        - ranks_changed: share of the models whose rank is another one

    Raises:
        InputError: a folder is given twice, is missing, holds other results or answers to other questions.

    Example:
        >>> found = b_clean_folders(["results/one", "results/two"])             # doctest: +SKIP
        >>> found.metrics["removed"].value, len(found.kept)                       # doctest: +SKIP
        (0.753, 428)
    """
    if not folders:
        raise InputError("B-Clean needs the results of one model at least; give their folders")
    every = [Path(folder) for folder in [*folders, *([text_only] if text_only is not None else [])]]
    if len({folder.resolve() for folder in every}) < len(every):
        raise InputError("B-Clean: a folder is given twice; each model's results count once")
    results = [_read(folder) for folder in every]
    _check_same_questions(results)
    models, text = results[: len(folders)], results[len(folders) :]
    names = _names(models)
    ids = list(models[0].questions)
    options = [models[0].questions[name]["options"] for name in ids]
    without, with_pictures = (
        {name: [_right(one.questions[q], kind) for q in ids] for name, one in zip(names, models, strict=True)}
        for kind in ("absent", "present")
    )
    by_text = {q for one in text for q in ids if _right(one.questions[q], "absent")} if text else None
    cleaned = b_clean(ids, without, options, by_text)
    kept = set(cleaned.kept)
    gone = [float(name not in kept) for name in ids]
    chance = [1 - (1 - 1 / count) ** len(results) if count else 0.0 for count in options]
    metrics = {
        "removed": mean_metric(gone, "neither"),
        "removed_by_chance": mean_metric(chance, "neither"),
        "removed_above_chance": mean_metric(
            [a - b for a, b in zip(gone, chance, strict=True)], "neither", (-1.0, 1.0)
        ),
    }
    for name in names:
        metrics[f"compromised[model={name}]"] = mean_metric(
            [None if right is None else float(right) for right in without[name]], "neither"
        )
    metrics = of_samples(metrics, ids)
    changes = rank_changes(ids, with_pictures, kept)
    metrics |= _of_ranks(changes)
    return CleanedSet(names, cleaned.kept, metrics, _records(models, names, kept))


def _read(folder: Path) -> _Results:
    try:
        about = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder}: holds no results.json; give the --out of mirage-effect") from None
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{folder / 'results.json'}: cannot be read; {_SHAPE}") from None
    if not isinstance(about, dict) or about.get("benchmark") != "mirage-effect":
        raise InputError(f"{folder}: {_SHAPE}")
    questions: dict[str, Mapping[str, Any]] = {}
    for number, line in json_lines(folder / "samples.jsonl"):
        if not isinstance(line, dict) or line.get("kind") != "choice":
            continue
        where = f"{folder / 'samples.jsonl'}, line {number}"
        if not (
            isinstance(line.get("id"), str) and isinstance(line.get("answers"), dict) and "options" in line
        ):
            raise InputError(f"{where}: {_SHAPE}")
        if not (line["options"] is None or (type(line["options"]) is int and line["options"] > 1)):
            raise InputError(f"{where}: field 'options': must be null, or 2 or more")
        questions[line["id"]] = line
    if not questions:
        raise InputError(f"{folder}: holds no question with a known answer, so there is nothing to clean")
    model, method = about.get("model"), about.get("method")
    named = f"{model}, {method}" if method not in (None, "plain") else model
    return _Results(folder, named if isinstance(named, str) else None, questions)


def _check_same_questions(results: Sequence[_Results]) -> None:
    first = results[0]
    for other in results[1:]:
        odd = sorted(first.questions.keys() ^ other.questions.keys())
        if odd:
            raise InputError(
                f"{other.folder}: answers other questions than {first.folder} ({odd[0]!r} is in one of them only); "
                "ask all models the same data"
            )
        for name, line in first.questions.items():
            if any(line.get(field) != other.questions[name].get(field) for field in ("question", "options")):
                raise InputError(f"{other.folder}: {name!r} is another question than in {first.folder}")


def _names(results: Sequence[_Results]) -> list[str]:
    models = [one.model for one in results]
    if None in models or len(set(models)) < len(models):
        return [str(one.folder) for one in results]
    return [str(model) for model in models]


def _right(record: Mapping[str, Any], kind: str) -> bool | None:
    told = record["answers"].get(kind)
    right = told.get("correct") if isinstance(told, dict) else None
    return right if isinstance(right, bool) else None


def _of_ranks(changes: Mapping[str, RankChange]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    count = float(len(changes))
    for name, change in changes.items():
        metrics[f"accuracy_before[model={name}]"] = change.before
        metrics[f"accuracy_after[model={name}]"] = change.after
        for when, accuracy, rank, interval, span in (
            ("before", change.before, change.rank_before, change.rank_before_interval, (1.0, count)),
            ("after", change.after, change.rank_after, change.rank_after_interval, (1.0, count)),
            ("change", change.after, change.change, change.change_interval, (1.0 - count, count - 1.0)),
        ):
            low, high = interval or (None, None)
            direction: Direction = "neither" if when == "change" else "lower"
            metrics[f"rank_{when}[model={name}]"] = Metric(
                rank, accuracy.n if rank is not None else 0, accuracy.coverage, low, high, direction, span
            )
    changed = [None if one.changed is None else float(one.changed) for one in changes.values()]
    metrics["ranks_changed"] = mean_metric(changed, "neither")
    return metrics


def _records(models: Sequence[_Results], names: Sequence[str], kept: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "id": question,
            "question": line.get("question"),
            "options": line["options"],
            "kept": question in kept,
            "correct_without": {
                name: _right(one.questions[question], "absent")
                for name, one in zip(names, models, strict=True)
            },
            "correct_with": {
                name: _right(one.questions[question], "present")
                for name, one in zip(names, models, strict=True)
            },
        }
        for question, line in models[0].questions.items()
    ]
