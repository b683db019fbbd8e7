"""The report of a diagnosis: one sentence, one figure, then the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from mmprobe.viz.report.analysis_pages import figure_element
from mmprobe.viz.report.elements import Page, data_block, escape_json
from mmprobe.viz.report.write import write_page

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

    figures, details, data = [], [], []
    for number, model in enumerate(models):
        (panel,) = panels(model.dataset)
        attributes = model.dataset.attrs
        sentence = f"{attributes['model']}: {attributes['verdict']}. {_sentence(attributes['why'])}"
        figures.append(
            f"<p class='lead'>{escape(sentence)}</p>{figure_element(panel, number, f'figure-{number}')}"
        )
        details.append(_details(model))
        data.append(data_block(f"figure-data-{number}", escape_json(panel.figure.to_json())))
    if len(models) > 1:
        names = [escape(str(model.dataset.attrs["model"])) for model in models]
        details = [
            f"<details class='fold'><summary>{name}: evidence, tests, answers</summary>{detail}</details>"
            for name, detail in zip(names, details, strict=True)
        ]
    html = (
        "<section class='page' id='diagnosis' aria-labelledby='diagnosis-title'>"
        f"<h2 id='diagnosis-title' tabindex='-1'>Diagnosis</h2>{''.join(figures + details)}</section>"
    )
    title = ", ".join(str(model.dataset.attrs["model"]) for model in models)
    return write_page(Page("diagnosis", "Diagnosis", html, "", data), out, (title, "diagnosis"))


def _details(model: Diagnosed) -> str:
    tests = "".join(f"<li>{escape(test)}</li>" for test in model.tests)
    return (
        f"<h3>Evidence</h3>{_causes_table(model.dataset)}<h3>Tests</h3><ul>{tests}</ul>"
        f"<h3>Answers</h3>{_answers_table(model.answers)}"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _causes_table(dataset: xr.Dataset) -> str:
    rows = []
    for cause in dataset["cause"].values.tolist():
        row = dataset.sel(cause=cause)
        lines = "<br>".join(escape(line) for line in str(row["evidence"].item()).split("\n"))
        rows.append((escape(cause), "named" if row["named"].item() else "", lines))
    return _table(("Cause", "", "Evidence"), rows)


def _answers_table(answers: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(answers, key=lambda answer: not answer["causes"])
    rows = [
        (
            escape(answer["id"]),
            escape(answer["answer"]).replace("\n", "<br>"),
            escape(", ".join(answer["causes"])),
            "<br>".join(escape(line) for line in answer["evidence"]),
        )
        for answer in ordered[:MOST_ANSWERS]
    ]
    left = len(answers) - len(rows)
    note = f"<p class='muted'>{left} more answers are in answers.jsonl.</p>" if left else ""
    return _table(("Sample", "Answer", "Causes", "Evidence"), rows) + note


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='wide'><table class='findings'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
