"""The command `mirage-correlations`: correlations over models, topics or questions of MIRAGE."""

from __future__ import annotations

import itertools
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    check_out,
    print_result,
)
from mmprobe.errors import InputError


class Cases(StrEnum):
    """The cases of a correlation."""

    models = "models"
    topics = "topics"
    cells = "cells"
    questions = "questions"


def mirage_correlations(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="Result folders of mirage, one a model.")
    ],
    out: OutFolder,
    over: Annotated[
        Cases, typer.Option(help="The cases. cells: each model and topic; questions: of one model.")
    ] = Cases.topics,
    as_json: AsJson = False,
) -> None:
    """Correlate MIRAGE's metrics over models, or its kinds of hallucination over topics.

    Over models: accuracy, f_step, f_claim and lhs (the paper's table 5). Over topics: how often each kind of
    hallucination occurs (figure 7 for one folder, figure 5 for several), in results of a model as judge.

    \b
    Examples:
      mmprobe data mirage-correlations results/a --out results/kinds
      mmprobe data mirage-correlations results/a results/b results/c --over models --out results/metrics
    """
    from mmprobe.analyses.files import export
    from mmprobe.benchmarks.mirage.correlations import (
        correlate_kinds_over_questions,
        correlate_kinds_over_topics,
        correlate_models,
    )

    check_out(out, results)
    if over is Cases.models:
        dataset = correlate_models(results)
    elif over is Cases.questions:
        if len(results) > 1:
            raise InputError("--over questions: takes the folder of one model")
        dataset = correlate_kinds_over_questions(results[0])
    else:
        dataset = correlate_kinds_over_topics(results, "cells" if over is Cases.cells else "topics")
    dataset.attrs |= {"analysis": "mirage_correlations", "over": str(over)}
    export(dataset, out)
    pairs = []
    for column, other in itertools.combinations(dataset["column"].values.tolist(), 2):
        pair = dataset.sel(column=column, other=other)
        numbers = {name: pair[name].item() for name in ("r", "low", "high", "p", "n")}
        known = {name: None if number != number else number for name, number in numbers.items()}
        pairs.append({"column": column, "other": other} | known)
    lines = [
        f"{pair['column']}, {pair['other']}".ljust(28)
        + "  ".join(f"{name} {'-' if pair[name] is None else format(pair[name], '.3g')}" for name in numbers)
        for pair in pairs
    ]
    if unread := int(dataset["unread"].max()):
        lines.append(
            f"{unread} answers that nobody could read or judge are left out of a metric or count as wrong."
        )
    lines.append(f"All numbers: {out / 'mirage_correlations.csv'}")
    print_result({"over": str(over), "pairs": pairs}, "\n".join(lines), as_json)
