"""A benchmark's result folder as the report reads it: metrics, and a row for each question that was answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.errors import InputError

LONGEST = {"id": 200, "question": 300, "answer": 600, "read": 240}  # characters that the page holds of each
_RUNS = ("run", "run-follow-up")
_ELSEWHERE = {"id", "question", "answer", "response", "continuation", "answers", "correct", "faithful"}
_NO_READING = {"image", "images", "scores"}


class Answer(NamedTuple):
    """What was answered to one question, cut to `LONGEST`.

    Attributes:
        id: of the question, and of its trace.
        question: None where the file does not say.
        answer: None where there was none.
        read: what was read from the answer, in words.
        faithful: whether it was found to be; None where nobody can say.
    """

    id: str
    question: str | None
    answer: str | None
    read: str
    faithful: bool | None


class Results(NamedTuple):
    """A result folder: its benchmark, metrics by name as they are in the file, how it was made, and answers."""

    folder: Path
    benchmark: str
    metrics: dict[str, dict[str, Any]]
    about: dict[str, Any]
    answers: list[Answer]


def find_results(path: str | Path) -> tuple[Path | None, Results | None]:
    """What a report of a path is made of: the run to open, and the results that stand beside its answers.

    Args:
        path: a result folder, with or without a run in it, or a run.

    Returns:
        The run, None for results without one; the results, None for a run that is in no result folder.

    Raises:
        InputError: the results are damaged.

    Example:
        >>> find_results("results/spd")                             # doctest: +SKIP
        (PosixPath('results/spd/run'), Results(...))
    """
    path = Path(path)
    if (path / "results.json").is_file():
        run = path / "run"
        return (run if (run / "run.json").is_file() else None), read_results(path)
    beside = path.absolute().parent
    if path.absolute().name in _RUNS and (beside / "results.json").is_file():
        return path, read_results(beside)
    return path, None


def read_results(folder: str | Path) -> Results:
    """Read `results.json` and `samples.jsonl`, as every benchmark writes them.

    A line of samples.jsonl is an answer (`id`, `question`, `answer`, `faithful` or `correct`, and what was read from it),
    or holds several in `answers`, each with its own `id` and `response`.

    Raises:
        InputError: a file is missing or damaged; the message names it and the line.

    Example:
        >>> read_results("results/pope").metrics["f1"]["value"]     # doctest: +SKIP
        0.91
    """
    folder = Path(folder)
    file = folder / "results.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        raise InputError(f"{file}: not a JSON file that can be read; score the answers again") from None
    if not isinstance(content, dict) or not isinstance(content.get("metrics"), dict):
        raise InputError(
            f"{file}: has no 'metrics'; a result folder is made by mmprobe bench or mmprobe score"
        )
    metrics = {str(name): _metric(file, name, metric) for name, metric in content["metrics"].items()}
    about = {str(name): value for name, value in content.items() if name not in ("benchmark", "metrics")}
    answers = [answer for record in _records(folder / "samples.jsonl") for answer in answers_of(record)]
    return Results(folder, str(content.get("benchmark", "")), metrics, about, answers)


def _metric(file: Path, name: str, metric: Any) -> dict[str, Any]:
    numbers = ("value", "low", "high", "coverage", "n")
    if not isinstance(metric, dict) or not all(_is_number(metric.get(each)) for each in numbers):
        raise InputError(f"{file}: metric {name!r} is not as a benchmark writes it; score the answers again")
    limits = metric.get("range")
    known = isinstance(limits, list) and len(limits) == 2 and all(map(_is_number, limits))
    return {**metric, "range": limits if known else [None, None]}


def _is_number(value: Any) -> bool:
    """A finite number, or None for one that is undefined."""
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    )


def _records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    record = json.loads(line)
                    if not isinstance(record, dict) or "id" not in record:
                        raise InputError(f"{file}, line {number}: not an object with an id")
                    yield record
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: holds a line that is no JSON; score the answers again") from None


def answers_of(record: Mapping[str, Any]) -> list[Answer]:
    """The answers that a line of samples.jsonl holds.

    Example:
        >>> answers_of({"id": "1", "question": "?", "answer": "Yes.", "said": "yes", "correct": False})
        [Answer(id='1', question='?', answer='Yes.', read='said: yes', faithful=False)]
    """
    several = record.get("answers")
    if isinstance(several, dict):
        parts: Iterable[tuple[Any, Any]] = several.items()
    elif isinstance(several, list):
        parts = enumerate(several, 1)
    else:
        return [_answer(record, str(record["id"]), record.get("question"))]
    return [
        _answer(told, str(told.get("id", f"{record['id']}/{kind}")), record.get("question"))
        for kind, told in parts
        if isinstance(told, dict)
    ]


def _answer(told: Mapping[str, Any], name: str, question: Any) -> Answer:
    text = next(
        (told[key] for key in ("response", "answer", "continuation") if told.get(key) is not None), None
    )
    right = told.get("faithful", told.get("correct"))
    asked = told.get("question") or question
    return Answer(
        cut(name, LONGEST["id"]),
        None if asked is None else cut(str(asked), LONGEST["question"]),
        None if text is None else cut(str(text), LONGEST["answer"]),
        cut(_reading(told), LONGEST["read"]),
        right if isinstance(right, bool) else None,
    )


def cut(text: str, longest: int) -> str:
    """A text, with an ellipsis where it was cut.

    Example:
        >>> cut("abcdef", 4)
        'abc…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _reading(told: Mapping[str, Any]) -> str:
    """What was read from an answer: every further field, in words."""
    said = {
        name: _words(value)
        for name, value in told.items()
        if name not in _ELSEWHERE | _NO_READING and value is not None
    }
    return " · ".join(f"{name.replace('_', ' ')}: {words}" for name, words in said.items() if words)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(words for each in value[:20] if (words := _words(each))) or "none"
    if isinstance(value, dict):
        said = json.dumps(value, ensure_ascii=False)[:200] if value else ""
        return _words(value["text"]) if "text" in value else said
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)[:400]
