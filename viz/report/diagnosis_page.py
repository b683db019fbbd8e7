"""The report of a diagnosis: one sentence, one figure, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from mmprobe.viz.report.analysis_pages import figure_values
from mmprobe.viz.report.elements import Page, figure_block, render
from mmprobe.viz.report.write import write_pages

MOST_ANSWERS = 300  # in the table


class Diagnosed(NamedTuple):
    """What the report shows of a diagnosis.

    Attributes:
        dataset: `Diagnosis.to_dataset()`.
        answers: the records of `answers.jsonl`.
        tests: every test with its number, or what it would need.
    """

    dataset: xr.Dataset
    answers: Sequence[Mapping[str, Any]]
    tests: Sequence[str]


def write_diagnosis(models: Sequence[Diagnosed], out: Path) -> Path:
    """Write the report of one or several models' diagnoses as an HTML file that works offline.

    Args:
        models: the diagnosis of each model, in the order of the report.
        out: the HTML file.

    Raises:
        InputError: `out` cannot be written.

    Example:
        >>> write_diagnosis([Diagnosed(found.to_dataset(), found.answers, found.tests)], out)  # doctest: +SKIP
    """
    from mmprobe.viz.figures.diagnosis import panels

    shown, data = [], []
    for number, model in enumerate(models):
        (panel,) = panels(model.dataset)
        attributes = model.dataset.attrs
        ordered = sorted(model.answers, key=lambda answer: not answer["causes"])
        shown.append(
            {
                "name": str(attributes["model"]),
                "sentence": f"{attributes['model']}: {attributes['verdict']}. {_sentence(attributes['why'])}",
                "panel": figure_values(panel, number),
                "causes": _cause_rows(model.dataset),
                "tests": model.tests,
                "answers": [_answer_row(answer) for answer in ordered[:MOST_ANSWERS]],
                "left": max(len(ordered) - MOST_ANSWERS, 0),
            }
        )
        data.append(figure_block(number, panel.figure))
    title = ", ".join(str(model.dataset.attrs["model"]) for model in models)
    page = Page("diagnosis", "Diagnosis", render("diagnosis.html", models=shown), "", data)
    return write_pages([page], out, (title, "diagnosis"))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cause_rows(dataset: xr.Dataset) -> list[list[list[str]]]:
    """Return the lines of each cell: cause, whether it is named, evidence."""
    rows = []
    for cause in dataset["cause"].values.tolist():
        row = dataset.sel(cause=cause)
        states = {"named": "named", "in_doubt": "in doubt"}
        named = next((words for name, words in states.items() if row[name].item()), "")
        named = named if row["tested"].item() else "not run"
        rows.append([[cause], [named], str(row["evidence"].item()).split("\n")])
    return rows


def _answer_row(answer: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of each cell: id, answer, causes, evidence."""
    causes = ", ".join(answer["causes"])
    return [[answer["id"]], answer["answer"].split("\n"), [causes], list(answer["evidence"])]
