"""The report's page of a benchmark: its metrics, and each answer with its label and internals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.viz.report.elements import LABEL_NAMES, Page, compress, data_block, label_counts, render
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.results.files import Answer, Results, shorten
from mmprobe.viz.report.results.metric_tables import metric_groups

MAX_ANSWERS = 20_000  # on the page
_MAX_FACT_LENGTH = 300  # characters
# analysis, variable, name and explanation of the column
_INTERNALS = (
    (
        "attention_decay",
        "share_of_sample",
        "Visual share",
        "attention on visual tokens, mean over layers and steps",
    ),
    (
        "attention_decay",
        "slope_authors_of_sample",
        "Decay",
        "slope per step of the images' part in the attention to the prompt; below 0 if attention to them decreases",
    ),
    (
        "attention_vs_activation",
        "region_mass_attention_of_sample",
        "Attention on regions",
        "share of the attention on visual tokens that falls on the sample's regions, mean over steps",
    ),
    (
        "attention_vs_activation",
        "region_mass_activation_of_sample",
        "Activation on regions",
        "share of the token activation maps that falls on the sample's regions, mean over steps",
    ),
    (
        "attention_vs_activation",
        "iou_of_sample",
        "Overlap",
        "intersection over union of the top cells of attention and token activation, mean over steps",
    ),
    (
        "failure_modes",
        "mode",
        "Failure mode",
        "failure modes of the changed things that an unfaithful answer names",
    ),
)


class InternalColumn(NamedTuple):
    """A column with one number or word of an analysis for each sample.

    Attributes:
        name: heading of the column.
        about: explanation below the table.
        values: by sample id; None if undefined.
    """

    name: str
    about: str
    values: dict[str, float | str | None]


def internal_columns(datasets: Iterable[xr.Dataset]) -> list[InternalColumn]:
    """Return the columns of the analyses that are present.

    Example:
        >>> [column.name for column in internal_columns([mp.analyses.attention_decay(run)])]    # doctest: +SKIP
        ['Visual share', 'Decay']
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    return [
        InternalColumn(name, _about(by_name[analysis], about), _values_by_sample(by_name[analysis][variable]))
        for analysis, variable, name, about in _INTERNALS
        if analysis in by_name and variable in by_name[analysis]
    ]


def _about(dataset: xr.Dataset, about: str) -> str:
    """Return the explanation of a column, with the false alarms of its analysis."""
    return f"{about}. {dataset.attrs['false_alarms']}" if "false_alarms" in dataset.attrs else about


def _values_by_sample(values: xr.DataArray) -> dict[str, float | str | None]:
    """Return one value for each sample: its words, or the mean over all other dimensions without NaN."""
    names = [str(name) for name in values["sample"].values]
    if values.dtype.kind not in "fiub":
        words: dict[str, list[str]] = {}
        for name, value in zip(names, values.values, strict=True):
            words.setdefault(name, []).append(str(value).replace("_", " "))
        return {name: ", ".join(dict.fromkeys(of_sample)) for name, of_sample in words.items()}
    flat = values.transpose("sample", ...).values.reshape(len(names), -1).astype(float)
    finite = np.isfinite(flat)
    counts, totals = finite.sum(1), np.where(finite, flat, 0).sum(1)
    return {
        name: float(f"{total / count:.4g}") if count else None
        for name, count, total in zip(names, counts, totals, strict=True)
    }


def merge_labels(results: Results, run_labels: Mapping[str, bool | None]) -> list[bool | None]:
    """Return whether each answer is faithful. The run's labels come before the labels in the results."""
    known = {name: label for name, label in run_labels.items() if label is not None}
    return [known.get(answer.id, answer.faithful) for answer in results.answers]


def results_page(
    results: Results,
    labels: Sequence[bool | None],
    columns: Sequence[InternalColumn],
    links: Mapping[str, str],
    images: Images,
) -> Page:
    """Return the page, with the data from which `results.js` fills the table of answers.

    Args:
        results: metrics and answers.
        labels: whether each answer is faithful.
        columns: internals of the answers.
        links: fragment of each sample in the explorer, by sample id.
        images: gets thumbnails of the answers' images.

    Example:
        >>> results_page(results, merge_labels(results, {}), [], {}, Images()).slug        # doctest: +SKIP
        'results'
    """
    shown = results.answers[:MAX_ANSWERS]
    used = [column for column in columns if any(answer.id in column.values for answer in shown)]
    html = render(
        "results.html",
        benchmark=results.benchmark,
        facts=result_facts(results),
        metrics=metric_groups(results.benchmark, results.metrics),
        note=_size_note(len(shown), len(results.answers)),
        filters=label_counts(Counter(labels[: len(shown)])),
        orders=_sort_options(used),
        columns=used,
    )
    table = json.dumps(
        _answer_table(results, shown, labels, used, links, images), allow_nan=False, separators=(",", ":")
    )
    data = data_block("results-data", json.dumps(compress(table.encode())))
    return Page("results", "Results", html, "", [data])


def result_facts(results: Results) -> dict[str, str]:
    """Return the settings in results.json."""
    entries = {"benchmark": results.benchmark, **results.about}
    facts = {
        name.replace("_", " ").capitalize(): value if isinstance(value, str) else json.dumps(value)
        for name, value in entries.items()
        if value not in (None, {}, [], "")
    }
    return {name: shorten(value, _MAX_FACT_LENGTH) for name, value in facts.items()}


def _size_note(shown: int, count: int) -> str:
    return f"Shows the first {shown:,} of {count:,} answers." if shown < count else ""


def _sort_options(columns: Sequence[InternalColumn]) -> list[tuple[str, str]]:
    """Return value and name of each order: as in the data, or by the numbers of a column."""
    options = [("", "as in the data")]
    for index, column in enumerate(columns):
        if not any(isinstance(value, str) for value in column.values.values()):
            options.append((f"{index} 1", f"lowest {column.name.lower()}"))
            options.append((f"{index} -1", f"highest {column.name.lower()}"))
    return options


def _answer_table(
    results: Results,
    answers: Sequence[Answer],
    labels: Sequence[bool | None],
    columns: Sequence[InternalColumn],
    links: Mapping[str, str],
    images: Images,
) -> dict[str, Any]:
    """Return the table for the script: each question and set of images once, and one row for each answer."""
    questions: dict[str | None, int] = {}
    sets: dict[tuple[str, ...], int] = {}
    rows = [
        [
            answer.id,
            questions.setdefault(answer.question, len(questions)),
            answer.answer,
            answer.truth,
            answer.details,
            LABEL_NAMES[label],
            links.get(answer.id),
            sets.setdefault(answer.images, len(sets)),
            [column.values.get(answer.id) for column in columns],
        ]
        for answer, label in zip(answers, labels, strict=False)
    ]
    thumbnails = [[images.thumbnail((results.folder / name).resolve()) for name in names] for names in sets]
    return {
        "columns": [column.name for column in columns],
        "questions": list(questions),
        "images": [[name for name in names if name] for names in thumbnails],
        "rows": rows,
    }
