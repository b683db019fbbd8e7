"""The command `agree`: how well two judges of the same answers agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    check_out,
    metric_values,
    print_result,
)

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric


def agree(
    first: Annotated[Path, typer.Argument(metavar="A", help="A result folder of bench or score.")],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="Another, of the same answers by another judge.")
    ],
    out: OutFolder,
    as_json: AsJson = False,
) -> None:
    """Measure how well two judges agree, by Cohen's kappa.

    The table has a row for each question type and one for all, with intervals. Labels of only one judge lower
    the coverage.

    For mirage, "kind" is each kind of hallucination, "match" the label of each step and claim that both judges
    extracted, and "score" each of the five scores, with a weighted kappa.

    For spd-faith, "answer" is faithful (all claims are true), unfaithful, or no claim. "claim" is the error
    of each claim, in answers where both judges list the same claims. "pair" is whether the claims of the two
    binary answers agree, where both judges compared as many.

    \b
    Example:
      mmprobe data agree results/lexical results/gpt-4o --out results/agreement
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.judges.agreement import compare_result_folders, compute_agreement
    from mmprobe.files import write_atomic
    from mmprobe.notebook import markdown_table

    check_out(out, (first, second))
    comparison = compare_result_folders(first, second)
    metrics: dict[str, Metric] = {}
    rows = []
    for labels, records in comparison.labels.items():
        scores = compute_agreement(*zip(*records.values(), strict=True))
        metrics |= {f"{name}[{labels}]": metric for name, metric in scores.items()}
        kappa, agreement = scores["kappa"], scores["agreement"]
        weighted = scores.get("kappa_weighted", "")
        rows.append([labels, kappa, weighted, agreement, kappa.n, f"{kappa.coverage or 0:.0%}"])
    columns = ("labels", "kappa [95 %]", "weighted kappa [95 %]", "agreement [95 %]", "n", "coverage")
    table = markdown_table(columns, rows)
    judges = list(comparison.judges)
    about = {"judges": judges, "folders": [str(first), str(second)]}
    write_results(out, comparison.benchmark, metrics, comparison.disagreements, about)
    title = f"{comparison.benchmark}: {judges[0]}, {judges[1]}"
    write_atomic(out / "agreement.md", f"{title}\n\n{table}\n")
    result = {
        "results": str(out / "results.json"),
        "judges": judges,
        "metrics": metric_values(metrics),
    }
    print_result(result, f"{table}\n\nWhere they disagree: {out / 'samples.jsonl'}", as_json)
