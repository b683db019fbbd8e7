"""Read a benchmark's result folder: its metrics, and one record for each answered question."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from mmprobe.errors import InputError
from mmprobe.json_files import JsonRecord, ResultsFile, parse_record, read_record
from mmprobe.samples import regular_file

MAX_LENGTH = {"id": 200, "question": 300, "answer": 600, "details": 240, "truth": 300}  # characters
_RUN_FOLDERS = ("run", "run-follow-up")
_SHOWN_FIELDS = {
    "id",
    "question",
    "answer",
    "response",
    "continuation",
    "answers",
    "correct",
    "faithful",
    "truth",
}
_HIDDEN_FIELDS = {"image", "images", "scores"}


class Answer(NamedTuple):
    """One answer, with texts shortened to `MAX_LENGTH`.

    Attributes:
        id: id of the question and of its trace.
        question: the question, or None if the file has none.
        answer: the answer, or None if the model gave none.
        details: the record's other fields in words, such as the label read from the answer.
        faithful: whether the answer is faithful or correct; None if unknown.
        truth: the true answer, or None if the file has none.
        images: the images of the question, relative to the result folder.
        kind: the type of question, where a line has several answers; otherwise "".
    """

    id: str
    question: str | None
    answer: str | None
    details: str
    faithful: bool | None
    truth: str | None = None
    images: tuple[str, ...] = ()
    kind: str = ""


class _Answered(JsonRecord):
    """A line of samples.jsonl."""

    id: str | int


class Results(NamedTuple):
    """A result folder: benchmark, metrics by name, the other entries of results.json, and answers."""

    folder: Path
    benchmark: str
    metrics: dict[str, dict[str, Any]]
    about: dict[str, Any]
    answers: list[Answer]


def find_results(path: str | Path) -> tuple[Path | None, Results | None]:
    """Find the run and the results that belong to a path.

    Args:
        path: a run, or a result folder with or without a run in it.

    Returns:
        The run's folder, or None for results without a run. The results, or None for a run outside a result
        folder.

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
    parent = path.absolute().parent
    if path.absolute().name in _RUN_FOLDERS and (parent / "results.json").is_file():
        return path, read_results(parent)
    return path, None


def find_comparison(folder: Path) -> xr.Dataset | None:
    """Return the comparison of methods that a folder of `mmprobe compare` holds, or None.

    Raises:
        InputError: the file is damaged, or the comparison is not finished.

    Example:
        >>> find_comparison(Path("results/compare"))                # doctest: +SKIP
    """
    file = folder / "method_comparison.nc"
    if not file.is_file():
        if not (folder / "results.json").is_file() and any(folder.glob("*/*/responses.jsonl")):
            raise InputError(f"{folder}: its comparison is not finished; call compare again with --resume")
        return None
    try:
        comparison = xr.load_dataset(file, engine="h5netcdf")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file}: cannot be read ({str(error).splitlines()[0]}); compare again") from None
    if comparison.attrs.get("analysis") != "method_comparison" or "model" not in comparison.attrs:
        raise InputError(f"{file}: holds no comparison of methods; compare again")
    return comparison


def read_results(folder: str | Path) -> Results:
    """Read the `results.json` and `samples.jsonl` of a benchmark.

    A line of samples.jsonl is one answer (`id`, `question`, `answer`, `faithful` or `correct`, and other
    fields), or it has several in `answers`, each with its own `id` and `response`.

    Raises:
        InputError: a file is missing or damaged; the message names it and the line.

    Example:
        >>> read_results("results/pope").metrics["f1"]["value"]     # doctest: +SKIP
        0.91
    """
    folder = Path(folder)
    file = folder / "results.json"
    try:
        content = read_record(file, ResultsFile)
    except FileNotFoundError:
        raise InputError(
            f"{file}: no such file; give a folder that mmprobe bench or mmprobe score wrote"
        ) from None
    metrics = {name: metric.model_dump() for name, metric in content.metrics.items()}
    about = content.model_dump(exclude={"benchmark", "metrics"}, exclude_unset=True)
    answers = [
        answer for record in _read_records(folder / "samples.jsonl") for answer in list_answers(record)
    ]
    return Results(folder, content.benchmark, metrics, about, answers)


def _read_records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = regular_file(file).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            record = parse_record(line, _Answered, f"{file}, line {number}")
            yield {"id": record.id, **(record.model_extra or {})}


def list_answers(record: Mapping[str, Any]) -> list[Answer]:
    """Return the answers of one line of samples.jsonl.

    Example:
        >>> list_answers({"id": "1", "question": "?", "answer": "Yes.", "said": "yes", "correct": False})[0][:5]
        ('1', '?', 'Yes.', 'said: yes', False)
    """
    answers = record.get("answers")
    if isinstance(answers, dict):
        items: Iterable[tuple[Any, Any]] = answers.items()
    elif isinstance(answers, list):
        items = enumerate(answers, 1)
    else:
        return [_build_answer(record, str(record["id"]), record.get("question"))]
    return [
        _build_answer(
            fields, str(fields.get("id", f"{record['id']}/{kind}")), record.get("question"), str(kind)
        )
        for kind, fields in items
        if isinstance(fields, dict)
    ]


def _build_answer(fields: Mapping[str, Any], name: str, question: Any, kind: str = "") -> Answer:
    text = next(
        (fields[key] for key in ("response", "answer", "continuation") if fields.get(key) is not None), None
    )
    faithful = fields.get("faithful", fields.get("correct"))
    question = fields.get("question") or question
    truth, images = fields.get("truth"), fields.get("images")
    return Answer(
        shorten(name, MAX_LENGTH["id"]),
        None if question is None else shorten(str(question), MAX_LENGTH["question"]),
        None if text is None else shorten(str(text), MAX_LENGTH["answer"]),
        shorten(_format_details(fields), MAX_LENGTH["details"]),
        faithful if isinstance(faithful, bool) else None,
        shorten(str(truth), MAX_LENGTH["truth"]) if isinstance(truth, str | int | float) else None,
        tuple(map(str, images)) if isinstance(images, list) else (),
        "" if kind.isdecimal() else kind,
    )


def shorten(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was shortened.

    Example:
        >>> shorten("abcdef", 4)
        'abc…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _format_details(fields: Mapping[str, Any]) -> str:
    """Return the fields that have no column of their own, in words."""
    details = {
        name: _format_value(value)
        for name, value in fields.items()
        if name not in _SHOWN_FIELDS | _HIDDEN_FIELDS and value is not None
    }
    return " · ".join(f"{name.replace('_', ' ')}: {words}" for name, words in details.items() if words)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(words for item in value[:20] if (words := _format_value(item))) or "none"
    if isinstance(value, dict):
        if "text" in value:
            return _format_value(value["text"])
        return json.dumps(value, ensure_ascii=False)[:200] if value else ""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)[:400]
