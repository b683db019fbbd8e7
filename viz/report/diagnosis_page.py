"""The report of a diagnosis: one sentence, one figure, then the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import xarray as xr

from mmprobe.viz.report.analysis_pages import figure_element
from mmprobe.viz.report.elements import Page, data_block, escape_json
from mmprobe.viz.report.write import write_page

MOST_ANSWERS = 300  # in the table


def write_diagnosis(
    dataset: xr.Dataset, answers: Sequence[Mapping[str, Any]], tests: Sequence[str], out: Path
) -> Path:
    """Write the report of a diagnosis as an HTML file that works offline.

    Args:
        dataset: `Diagnosis.to_dataset()`.
        answers: the records of `answers.jsonl`.
        tests: every test with its number, or what it would need.
        out: the HTML file.

    Raises:
        InputError: `out` cannot be written.

    Example:
        >>> write_diagnosis(found.to_dataset(), found.answers, found.tests, Path("report.html"))  # doctest: +SKIP
    """
    from mmprobe.viz.figures.diagnosis import panels

    (panel,) = panels(dataset)
    sentence = f"{dataset.attrs['model']}: {dataset.attrs['verdict']}. {_sentence(dataset.attrs['why'])}"
    html = (
        "<section class='page' id='diagnosis' aria-labelledby='diagnosis-title'>"
        f"<h2 id='diagnosis-title' tabindex='-1'>Diagnosis</h2><p class='lead'>{escape(sentence)}</p>"
        f"{figure_element(panel, 0, 'figure-0')}<h3>Evidence</h3>{_causes_table(dataset)}"
        f"<h3>Tests</h3><ul>{''.join(f'<li>{escape(test)}</li>' for test in tests)}</ul>"
        f"<h3>Answers</h3>{_answers_table(answers)}</section>"
    )
    data = [data_block("figure-data-0", escape_json(panel.figure.to_json()))]
    page = Page("diagnosis", "Diagnosis", html, "", data)
    return write_page(page, out, (str(dataset.attrs["model"]), "diagnosis"))


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
