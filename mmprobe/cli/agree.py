"""The command that compares two judges of the same answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmprobe.cli.options import AsJson, check_out, say

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric


def agree(
    first: Annotated[Path, typer.Argument(metavar="A", help="A result folder of bench or score.")],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="Another, of the same answers by another judge.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the table and the disagreements.")],
    as_json: AsJson = False,
) -> None:
    """Say how well two judges agree, by Cohen's kappa.

    By question type and over all, with intervals.

    For spd-faith, "answer" is whether all that an answer claims is true (faithful), or not (unfaithful), or it
    claims nothing. "claim" is what is wrong with each claim, in the answers where both judges found the same claims.
    "pair" is whether the claims of the two binary answers agree, where both judges compared as many. What only one
    of the judges labelled lowers the coverage.

    \b
    Example:
      mmprobe agree results/lexical results/gpt-4o --out results/agreement
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.judges.agreement import compare_result_folders, compute_agreement

    check_out(out, (first, second))
    found = compare_result_folders(first, second)
    metrics: dict[str, Metric] = {}
    lines = ["| labels | kappa [95 %] | agreement [95 %] | n | coverage |", "|---|---|---|---|---|"]
    for what, records in found.labels.items():
        one, other = zip(*records.values(), strict=True)
        measured = compute_agreement(one, other)
        metrics |= {f"{name}[{what}]": metric for name, metric in measured.items()}
        kappa, alike = measured["kappa"], measured["agreement"]
        lines.append(f"| {what} | {_cell(kappa)} | {_cell(alike)} | {kappa.n} | {kappa.coverage or 0:.0%} |")
    table = "\n".join(lines)
    about = {"judges": list(found.judges), "folders": [str(first), str(second)]}
    write_results(out, found.benchmark, metrics, found.disagreements, about)
    part = out / "agreement.md.part"
    part.write_text(f"{found.benchmark}: {found.judges[0]}, {found.judges[1]}\n\n{table}\n", encoding="utf-8")
    os.replace(part, out / "agreement.md")
    result = {
        "results": str(out / "results.json"),
        "judges": list(found.judges),
        "metrics": {name: metric.value for name, metric in metrics.items()},
    }
    say(result, f"{table}\n\nWhere they disagree: {out / 'samples.jsonl'}", as_json)


def _cell(metric: Metric) -> str:
    ends = "" if metric.low is None else f" [{metric.low:.3f}, {metric.high:.3f}]"
    return "undefined" if metric.value is None else f"{metric.value:.3f}{ends}"
