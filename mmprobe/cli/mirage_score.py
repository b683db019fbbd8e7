"""The command `mirage-score`: mean mirage scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    check_out,
    metric_values,
    print_result,
)


def mirage_score(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of mirage-effect, one a model and data set."),
    ],
    out: OutFolder,
    as_json: AsJson = False,
) -> None:
    """Average mirage scores: of each model over data sets, of each data set over models.

    \b
    Example:
      mmprobe data mirage-score results/one-vqarad results/one-microvqa results/two-vqarad --out results/means
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.mirage_effect.metrics import mean_mirage_scores

    check_out(out, results)
    means = mean_mirage_scores(results)
    about = {"method": "mean mirage score", "folders": [str(folder) for folder in results]}
    write_results(out, "mirage-effect", means.metrics, means.records, about)
    lines = [f"{name:40} {metric}, n = {metric.n}" for name, metric in means.metrics.items()]
    lines.append(f"All metrics: {out / 'results.json'}")
    print_result({"metrics": metric_values(means.metrics)}, "\n".join(lines), as_json)
