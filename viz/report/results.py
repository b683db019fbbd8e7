"""The report's page of a benchmark: its result folder, and its metrics as tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
import yaml

from mmprobe import files
from mmprobe.errors import InputError
from mmprobe.files import JsonRecord
from mmprobe.stats.estimate import Estimate, format_number
from mmprobe.viz.figures.caption_lengths import read_lengths
from mmprobe.viz.report.elements import Page, read_asset, render

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


class AnswerRow(NamedTuple):
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
        is_read: whether the label says if the answer is right, and nothing else of it.
    """

    id: str
    question: str | None
    answer: str | None
    details: str
    faithful: bool | None
    truth: str | None = None
    images: tuple[str, ...] = ()
    kind: str = ""
    is_read: bool = False


class _Answered(JsonRecord):
    """A line of samples.jsonl."""

    id: str | int


class ResultFolder(NamedTuple):
    """A result folder: benchmark, metrics by name, the other entries of results.json, and answers."""

    folder: Path
    benchmark: str
    metrics: dict[str, dict[str, Any]]
    about: dict[str, Any]
    answers: list[AnswerRow]

    @property
    def headline(self) -> list[str]:
        """Names of the metrics that come first, as the call chose them; empty where it did not say."""
        names = self.about.get("headline")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def find_results(path: str | Path) -> tuple[Path | None, ResultFolder | None]:
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
    """Return the comparison of methods in a folder of `mmprobe compare`, or None.

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
    comparison = _load(file, "compare again")
    if comparison.attrs.get("analysis") != "method_comparison" or "model" not in comparison.attrs:
        raise InputError(f"{file}: contains no comparison of methods; compare again")
    return comparison


def result_datasets(results: ResultFolder | None) -> list[xr.Dataset]:
    """Return what a result folder has figures of: answers that were read by likelihood, and captions by length.

    Raises:
        InputError: a file is damaged.

    Example:
        >>> result_datasets(None)
        []
    """
    if results is None:
        return []
    found: list[xr.Dataset] = []
    file = results.folder / "calibration.nc"
    if file.is_file():
        found.append(_load(file, "read by likelihood again"))
        if found[0].attrs.get("analysis") != "calibration":
            raise InputError(f"{file}: contains no calibration; read by likelihood again")
    metrics = {
        name: Estimate(*(each.get(part) for part in ("value", "low", "high")))
        for name, each in results.metrics.items()
    }
    lengths = read_lengths(metrics)
    return found if lengths is None else [*found, lengths]


def _load(file: Path, remedy: str) -> xr.Dataset:
    try:
        return xr.load_dataset(file, engine="h5netcdf")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file}: cannot be read ({str(error).splitlines()[0]}); {remedy}") from None


def read_results(folder: str | Path) -> ResultFolder:
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
    content = files.read_results(folder)
    metrics = {name: metric.model_dump() for name, metric in content.metrics.items()}
    about = content.model_dump(exclude={"benchmark", "metrics"}, exclude_unset=True)
    records = files.result_records(folder, _Answered)
    answers = [answer for _, record in records for answer in list_answers(record)]
    return ResultFolder(folder, content.benchmark, metrics, about, answers)


def list_answers(record: Mapping[str, Any]) -> list[AnswerRow]:
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


def _build_answer(fields: Mapping[str, Any], name: str, question: Any, kind: str = "") -> AnswerRow:
    text = next(
        (fields[key] for key in ("response", "answer", "continuation") if fields.get(key) is not None), None
    )
    faithful = fields.get("faithful", fields.get("correct"))
    question = fields.get("question") or question
    truth, images = fields.get("truth"), fields.get("images")
    return AnswerRow(
        truncate(name, MAX_LENGTH["id"]),
        None if question is None else truncate(str(question), MAX_LENGTH["question"]),
        None if text is None else truncate(str(text), MAX_LENGTH["answer"]),
        truncate(_format_details(fields), MAX_LENGTH["details"]),
        faithful if isinstance(faithful, bool) else None,
        truncate(str(truth), MAX_LENGTH["truth"]) if isinstance(truth, str | int | float) else None,
        tuple(map(str, images)) if isinstance(images, list) else (),
        "" if kind.isdecimal() else kind,
        "correct" in fields and "faithful" not in fields,
    )


def truncate(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was shortened.

    Example:
        >>> truncate("abcdef", 4)
        'abc…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _format_details(fields: Mapping[str, Any]) -> str:
    """Return the fields without a column, in words."""
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
        return format_number(value)
    return "" if value is None else str(value)[:400]


Metrics = Mapping[str, Mapping[str, Any]]

_GROUP_NAME = re.compile(r"(?P<name>.+?)\[(?P<group>[^=\[\]]+)=(?P<member>[^\[\]]*)\]", re.DOTALL)
_READ = "[read]"
_BETTER = {"higher": "↑ higher", "lower": "↓ lower"}


def metric_groups(benchmark: str, metrics: Metrics, headline: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metrics for results.html: of all samples, of the answers that were read, and of each grouping.

    Args:
        benchmark: its name, by which `metrics.yaml` explains them.
        metrics: as in results.json, by name: value, low, high, n, coverage, direction and range.
            `NAME[read]` leaves unread answers out, and `NAME[group=member]` is of a part of the samples.
        headline: names of those that come first; by default those that `metrics.yaml` gives for the benchmark.

    Example:
        >>> metric_groups("pope", {"f1[size=small]": {"value": 0.5, "n": 3}})["groups"][0]["title"]
        'By size'
    """
    overall: dict[str, Mapping[str, Any]] = {}
    read: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for name, metric in metrics.items():
        match = _GROUP_NAME.fullmatch(name)
        if match:
            members = groups.setdefault(match["group"], {}).setdefault(match["name"], {})
            members[match["member"]] = metric
        elif name.endswith(_READ):
            read[name.removesuffix(_READ)] = metric
        else:
            overall[name] = metric
    first = headline or _explanations().get(benchmark, {}).get("headline", [])
    names = [name for name in first if name in overall]
    rest = [name for name in overall if name not in names]
    return {
        "headline": [_row(benchmark, name, overall[name]) for name in names or rest],
        "rest": [_row(benchmark, name, overall[name]) for name in rest if names],
        "read": [_row(benchmark, name, metric) for name, metric in read.items()],
        "groups": [_group(group, rows) for group, rows in groups.items()],
    }


@cache
def _explanations() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(read_asset("metrics.yaml"))


def explain(benchmark: str, name: str) -> str:
    """Return what a metric measures in one line, or nothing for one that `metrics.yaml` does not know.

    Example:
        >>> explain("pope", "accuracy")
        'share of right answers'
    """
    for section in (benchmark, "any"):
        for pattern, line in _explanations().get(section, {}).get("metrics", {}).items():
            match = re.fullmatch(pattern, name)
            if match:
                return line.format(*((part or "").replace("_", " ") for part in match.groups()))
    return ""


def _row(benchmark: str, name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    low, high = metric.get("range") or (None, None)
    coverage = metric.get("coverage")
    return {
        "name": name,
        "about": explain(benchmark, name),
        "value": format_number(metric.get("value")),
        "interval": _format_interval(metric),
        "span": _span(metric),
        "n": _format_n(metric),
        "coverage": format_number(coverage, ".0%"),
        "better": _BETTER.get(str(metric.get("direction")), "–"),
        "range": f"{_format_limit(low)} to {_format_limit(high)}",
    }


def _group(group: str, by_metric: Mapping[str, Metrics]) -> dict[str, Any]:
    """Return a table with a row for each metric and a column for each member of the group."""
    members = list(dict.fromkeys(member for metrics in by_metric.values() for member in metrics))
    rows = []
    for name, metrics in by_metric.items():
        cells = []
        for member in members:
            metric = metrics.get(member)
            note = "" if metric is None else f"{_format_interval(metric)}, n {_format_n(metric)}"
            cells.append((member, format_number(None if metric is None else metric.get("value")), note))
        rows.append((name, cells))
    return {"title": f"By {group}", "members": members, "rows": rows}


def _format_n(metric: Mapping[str, Any]) -> str:
    """Return the number of samples, and of sets of images where several samples are over the same images."""
    n, sets = metric.get("n"), metric.get("n_groups")
    return format_number(n) + ("" if sets in (None, n) else f" ({format_number(sets)} sets)")


def _format_limit(value: float | None) -> str:
    return "∞" if value is None else format_number(value)


def _format_interval(metric: Mapping[str, Any]) -> str:
    ends = metric.get("low"), metric.get("high")
    return "–" if None in ends else f"{format_number(ends[0])} to {format_number(ends[1])}"


def _span(metric: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return low end, high end and value in percent of the metric's range; None if the range is open."""
    (first, last), value = metric.get("range") or (None, None), metric.get("value")
    if first is None or last is None or last <= first or value is None:
        return None
    ends = [value if metric.get(end) is None else metric[end] for end in ("low", "high")]
    low, high, point = (100 * min(max((each - first) / (last - first), 0), 1) for each in (*ends, value))
    return low, high, point


_MAX_FACT_LENGTH = 300  # characters


def results_page(results: ResultFolder) -> Page:
    """Return the page of the metrics.

    Example:
        >>> results_page(results).slug        # doctest: +SKIP
        'results'
    """
    html = render(
        "results.html",
        benchmark=results.benchmark,
        facts=result_facts(results),
        metrics=metric_groups(results.benchmark, results.metrics, results.headline),
    )
    return Page("results", "Results", html, "", [])


def result_facts(results: ResultFolder) -> dict[str, str]:
    """Return the settings in results.json."""
    entries = {"benchmark": results.benchmark, **results.about}
    facts = {
        name.replace("_", " ").capitalize(): _describe_setting(value)
        for name, value in entries.items()
        if value not in (None, {}, [], "") and name != "headline"
    }
    return {name: truncate(value, _MAX_FACT_LENGTH) for name, value in facts.items()}


def _describe_setting(value: Any) -> str:
    """Return a setting as text; settings within it by name, and hashes by their beginnings."""
    if isinstance(value, Mapping):
        shown = {
            name.replace("_", " "): inner for name, inner in value.items() if inner not in (None, [], {}, "")
        }
        return ", ".join(
            f"{name} {str(inner)[:8] if name == 'sha256' else _describe_setting(inner)}"
            for name, inner in shown.items()
        )
    return value if isinstance(value, str) else json.dumps(value)
