"""The report of a diagnosis: one sentence, one figure, then the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from mmprobe.stats.estimate import format_interval, format_number
from mmprobe.viz.report.analysis_pages import figure_values
from mmprobe.viz.report.elements import Page, figure_block, render
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.write import write_pages

MOST_ANSWERS = 300  # in the table


class Diagnosed(NamedTuple):
    """What the report shows of a diagnosis.

    Attributes:
        dataset: `Diagnosis.to_dataset()`.
        answers: the records of `answers.jsonl`.
        tests: every test with its number, or what it would need.
        effects, examples: the rows of `diagnosis.json`.
    """

    dataset: xr.Dataset
    answers: Sequence[Mapping[str, Any]]
    tests: Sequence[str]
    effects: Sequence[Mapping[str, Any]] = ()
    examples: Sequence[Mapping[str, Any]] = ()


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

    shown, data, images = [], [], Images()
    for number, model in enumerate(models):
        (panel,) = panels(model.dataset)
        attributes = model.dataset.attrs
        bases = list(dict.fromkeys(base for row in model.effects for base in row["controls"]))
        ordered = sorted(model.answers, key=lambda answer: not answer["causes"])
        shown.append(
            {
                "name": str(attributes["model"]),
                "sentence": f"{attributes['model']}: {attributes['verdict']}. {_sentence(attributes['why'])}",
                "panel": figure_values(panel, number),
                "controls": [f"Controls: {base}" for base in bases],
                "effects": [_effect_row(row, bases) for row in _first_effects(model.effects)],
                "kinds": [_effect_row(row, bases) for row in model.effects if row["kind"]],
                "examples": [_example_row(example, images) for example in model.examples],
                "causes": _cause_rows(model.dataset),
                "tests": model.tests,
                "answers": [_answer_row(answer) for answer in ordered[:MOST_ANSWERS]],
                "left": max(len(ordered) - MOST_ANSWERS, 0),
            }
        )
        data.append(figure_block(number, panel.figure))
    title = ", ".join(str(model.dataset.attrs["model"]) for model in models)
    page = Page(
        "diagnosis", "Diagnosis", render("diagnosis.html", models=shown), "", [*data, *images.blocks()]
    )
    return write_pages([page], out, (title, "diagnosis"))


def _example_row(example: Mapping[str, Any], images: Images) -> dict[str, Any]:
    """Return an example with the ids of its images' data blocks."""
    blocks = [images.thumbnail(Path(path)) for path in example["images"]]
    return {
        **example,
        "blocks": [block for block in blocks if block],
        "turns": example["changed"].split("\n"),
    }


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


def _first_effects(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that the page opens with: those outside the controls' range, of all questions or of a kind, and then all tests.

    Example:
        >>> all_of = {"test": "blind", "kind": None, "outside": False}
        >>> of_count = {"test": "blind", "kind": "count", "outside": True}
        >>> _first_effects([all_of, of_count]) == [of_count, all_of]
        True
    """
    outside = [row for row in rows if row["outside"]]
    return outside + [row for row in rows if not row["kind"] and not row["outside"]]


def _effect_row(row: Mapping[str, Any], bases: Sequence[str]) -> list[list[str]]:
    """Return the lines of each cell: test or kind, effect with interval and n, the range in controls of each base, outside."""
    scale, unit = (100, " %") if row["unit"] == "share" else (1, f" {row['unit']}".rstrip())
    name = [f"{row['test']}: {row['kind']}"] if row["kind"] else [row["test"], row["effect"]]
    if row["value"] is None or not row["n"]:
        return [
            name,
            [f"not run; it needs {row['needs']}" if row.get("needs") else "–"],
            *[[""] for _ in bases],
            [""],
        ]
    spec = ".0f" if row["unit"] == "share" else ".2f"
    ends = [math.nan if row[end] is None else scale * row[end] for end in ("low", "high")]
    value = f"{format_number(scale * row['value'], spec)}{unit}{format_interval(ends[0], ends[1], spec)}, n = {row['n']}"
    cell = [value]
    if row.get("unread"):
        low, high = (format_number(scale * end, spec) for end in row["bounds"])
        cell.append(f"{row['unread']} unread: {low} to {high}{unit} of all")
    ranges = []
    for base in bases:
        own = row["controls"].get(base)
        if own:
            least, most = (format_number(scale * own[end], spec) for end in ("low", "high"))
            models = "1 model" if own["n"] == 1 else f"{own['n']} models"
            ranges.append([f"{' to '.join(dict.fromkeys([least, most]))}{unit}, {models}"])
        else:
            ranges.append(["–"])
    outside = {True: "outside", False: "", None: "open"}[row["outside"]]
    return [name, cell, *ranges, [outside]]


def _answer_row(answer: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of each cell: id, answer, causes, evidence."""
    causes = ", ".join(answer["causes"])
    return [[answer["id"]], answer["answer"].split("\n"), [causes], list(answer["evidence"])]
