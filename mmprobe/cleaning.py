"""The command that takes out of a question set what models answer without its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.output import AsJson, check_out, say


def clean(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of bench or score mirage-effect, one a model."),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    text_only: Annotated[
        Path | None,
        typer.Option(help="Results of a model of text alone; what it answers rightly goes as well."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """B-Clean: remove what is answered blindly, and rank anew.

    Each question goes that any of the models answers rightly without its pictures.

    The result folder gets results.json, with the share that chance alone would remove and the rank changes, and
    samples.jsonl, which says of each question whether it is kept and who answers it.

    \b
    Example:
      mmprobe clean results/one results/two --out results/cleaned
    """
    from mmprobe.benchmarks.mirage_effect.cleaning import b_clean_folders
    from mmprobe.benchmarks.results import write_results

    check_out(out, [*results, *([text_only] if text_only is not None else [])])
    found = b_clean_folders(results, text_only)
    about = {"method": "B-Clean", "models": found.models, "folders": [str(folder) for folder in results]}
    about |= {"text_only": str(text_only)} if text_only else {}
    write_results(out, "mirage-effect", found.metrics, found.records, about)
    lines = [f"{len(found.kept)} of {len(found.records)} questions kept"]
    for name, metric in found.metrics.items():
        ends = "" if metric.low is None else f" [{metric.low:.3f}, {metric.high:.3f}]"
        value = "undefined" if metric.value is None else f"{metric.value:.3f}{ends}"
        lines.append(f"{name:40} {value}")
    lines.append(f"Which ones: {out / 'samples.jsonl'}")
    values = {name: metric.value for name, metric in found.metrics.items()}
    say({"kept": found.kept, "metrics": values}, "\n".join(lines), as_json)
