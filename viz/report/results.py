"""A benchmark's page in the report: its metrics, and of each answer what was said, whether it was faithful, and what the
analyses found inside."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.viz.report.explorer import escaped_json
from mmprobe.viz.report.metric_tables import metric_tables
from mmprobe.viz.report.result_files import Answer, Results, cut
from mmprobe.viz.report.sections import LABEL_NAMES, AnalysisPage, data_block

MAX_ANSWERS = 20_000  # that the page holds
_LONGEST_FACT = 300  # characters
# analysis, variable, the column's name, and what it says
_INTERNALS = (
    (
        "attention_decay",
        "share_of_sample",
        "Visual share",
        "attention on visual tokens, mean over layers and steps",
    ),
    (
        "attention_decay",
        "slope_of_sample",
        "Decay",
        "slope of that share per step, below 0 where the pictures are looked at less and less",
    ),
    (
        "attention_vs_activation",
        "region_mass_attention",
        "Attention on regions",
        "share of the attention on visual tokens that lies on the sample's regions, mean over steps",
    ),
    (
        "attention_vs_activation",
        "region_mass_activation",
        "Activation on regions",
        "that share of the token activation maps",
    ),
    (
        "attention_vs_activation",
        "iou",
        "Overlap",
        "intersection over union of the top cells of attention and token activation, mean over steps",
    ),
    ("failure_modes", "mode", "Failure mode", "of unfaithful answers about regions"),
)


class Internal(NamedTuple):
    """What an analysis found of each sample: one number or word.

    Attributes:
        name: of the column.
        about: what it is.
        values: by the sample's id; None where it is undefined.
    """

    name: str
    about: str
    values: dict[str, float | str | None]


def internals(datasets: Iterable[xr.Dataset]) -> list[Internal]:
    """The columns of the analyses that were made.

    Example:
        >>> [column.name for column in internals([mp.analyses.attention_decay(run)])]    # doctest: +SKIP
        ['Visual share', 'Decay']
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    return [
        Internal(name, about, _by_sample(by_name[analysis][variable]))
        for analysis, variable, name, about in _INTERNALS
        if analysis in by_name and variable in by_name[analysis]
    ]


def _by_sample(values: xr.DataArray) -> dict[str, float | str | None]:
    """A value a sample: words as they are, numbers as their mean over all other dimensions, NaN left out."""
    names = [str(name) for name in values["sample"].values]
    if values.dtype.kind not in "fiub":
        return {name: str(value).replace("_", " ") for name, value in zip(names, values.values, strict=True)}
    flat = values.transpose("sample", ...).values.reshape(len(names), -1).astype(float)
    known = np.isfinite(flat)
    count, total = known.sum(1), np.where(known, flat, 0).sum(1)
    return {
        name: float(f"{total[at] / count[at]:.4g}") if count[at] else None for at, name in enumerate(names)
    }


def labels_of(results: Results, of_run: Mapping[str, bool | None]) -> list[bool | None]:
    """Whether each answer is faithful: as the run's labels say, else as the results say."""
    known = {name: label for name, label in of_run.items() if label is not None}
    return [known.get(answer.id, answer.faithful) for answer in results.answers]


def results_summary(results: Results, labels: Sequence[bool | None]) -> str:
    """How many answers there are, and how they were made: the overview of a report without a run."""
    count = Counter(labels)
    tiles = [
        (len(labels), "answers", ""),
        *((count[label], name, name) for label, name in LABEL_NAMES.items()),
    ]
    counted = "".join(f"<li class='{kind}'><strong>{n}</strong> {name}</li>" for n, name, kind in tiles)
    return (
        f"<ul class='tiles'>{counted}</ul>{_facts(results)}"
        "<p class='muted'>There are no traces of these answers; <code>mmprobe bench NAME --trace</code> makes some.</p>"
    )


def results_page(
    results: Results,
    labels: Sequence[bool | None],
    columns: Sequence[Internal],
    explored: Mapping[str, str],
) -> AnalysisPage:
    """The page, with the data that `results.js` fills its table of answers from.

    Args:
        results: metrics and answers.
        labels: whether each answer is faithful.
        columns: what the analyses found of the answers.
        explored: where in the page each sample is that the explorer holds, by id.

    Example:
        >>> results_page(results, labels_of(results, {}), [], {}).slug           # doctest: +SKIP
        'results'
    """
    shown = results.answers[:MAX_ANSWERS]
    used = [column for column in columns if any(answer.id in column.values for answer in shown)]
    html = Template(_asset("results.html")).substitute(
        benchmark=escape(results.benchmark),
        facts=_facts(results),
        metrics=metric_tables(results.metrics),
        left_out=_left_out(len(shown), len(results.answers)),
        filters=_filters(Counter(labels[: len(shown)])),
        orders=_orders(used),
        heads="".join(f"<th scope='col'>{escape(column.name)}</th>" for column in used),
        legend=_legend(used),
    )
    packed = _packed(_rows(shown, labels, used, explored))
    data = data_block("results-data", escaped_json(json.dumps(packed)))
    return AnalysisPage("results", "Results", html, "", [data])


def _asset(name: str) -> str:
    return resources.files("mmprobe.viz").joinpath("assets", name).read_text(encoding="utf-8")


def _facts(results: Results) -> str:
    """How the results were made, as results.json says."""
    told = {"benchmark": results.benchmark, **results.about}
    lines = "".join(
        f"<div><dt>{escape(name.replace('_', ' ').capitalize())}</dt>"
        f"<dd>{escape(cut(value if isinstance(value, str) else json.dumps(value), _LONGEST_FACT))}</dd></div>"
        for name, value in told.items()
        if value not in (None, {}, [], "")
    )
    return f"<dl class='facts'>{lines}</dl>"


def _left_out(shown: int, count: int) -> str:
    return f"Holds the first {shown:,} of {count:,} answers." if shown < count else ""


def _filters(counts: Counter[bool | None]) -> str:
    """Buttons that narrow the table, where there is something to tell apart."""
    if len(counts) < 2:
        return ""
    names = {
        "all": counts.total(),
        **{LABEL_NAMES[label]: counts[label] for label in LABEL_NAMES if counts[label]},
    }
    return "".join(
        f"<button type='button' data-label='{name}' aria-pressed='{'true' if name == 'all' else 'false'}'>"
        f"{name} {count}</button>"
        for name, count in names.items()
    )


def _orders(columns: Sequence[Internal]) -> str:
    """Choices of the order: that of the questions, or by a number."""
    choices = ["<option value=''>as asked</option>"]
    for at, column in enumerate(columns):
        if not any(isinstance(value, str) for value in column.values.values()):
            name = escape(column.name.lower())
            choices.append(f"<option value='{at} 1'>lowest {name}</option>")
            choices.append(f"<option value='{at} -1'>highest {name}</option>")
    return "".join(choices)


def _legend(columns: Sequence[Internal]) -> str:
    told = "".join(f"<div><dt>{escape(one.name)}</dt><dd>{escape(one.about)}</dd></div>" for one in columns)
    return f"<dl class='facts'>{told}</dl>" if told else ""


def _rows(
    answers: Sequence[Answer],
    labels: Sequence[bool | None],
    columns: Sequence[Internal],
    explored: Mapping[str, str],
) -> dict[str, Any]:
    """What the script reads: each question's text once, and a row an answer."""
    questions: dict[str | None, int] = {}
    rows = [
        [
            answer.id,
            questions.setdefault(answer.question, len(questions)),
            answer.answer,
            answer.read,
            LABEL_NAMES[label],
            explored.get(answer.id),
            [column.values.get(answer.id) for column in columns],
        ]
        for answer, label in zip(answers, labels, strict=False)
    ]
    return {"columns": [column.name for column in columns], "questions": list(questions), "rows": rows}


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")
