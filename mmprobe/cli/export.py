"""The command `export`: a run or results for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    print_result,
    split_names,
)
from mmprobe.errors import InputError
from mmprobe.exports import FORMATS, ExportFormat
from mmprobe.exports import export as write_files


def export(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A run, or a result folder of bench, score or compare; with latex several result folders.",
        ),
    ],
    out: OutFolder,
    to: Annotated[
        str,
        typer.Option(
            help=f"The format: {', '.join(FORMATS)}.",
            autocompletion=lambda incomplete: [name for name in FORMATS if name.startswith(incomplete)],
        ),
    ] = "parquet",
    arrays: Annotated[
        str | None,
        typer.Option(
            help="Data sets of the traces that become columns of hf or parquet, with commas between."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export answers, labels and metrics.

    parquet, csv and latex hold a row for each answer, and for each metric of a result folder. latex of several result
    folders, or of one of compare, is a table of methods and benchmarks: intervals, paired differences, and p by Holm. hf is a new folder for
    datasets.load_from_disk, with the images. mmprobe figures makes the figures.

    \b
    Examples:
      mmprobe export runs/first --to parquet --arrays update/kl --out exported
      mmprobe export runs/first --to hf --out exported/datasets
      mmprobe export results/vqa --to latex --out exported/tables
      mmprobe export results/compare --to latex --out exported/tables
      mmprobe export results/plain results/sage --to latex --out exported/tables
    """
    for source in sources:
        if not source.exists():
            raise InputError(f"{source}: no such run or result folder")
    given = sources[0] if len(sources) == 1 else sources
    written = write_files(given, out, cast(ExportFormat, to), split_names(arrays) if arrays else ())
    files = [str(file) for file in written]
    print_result({"files": files}, "\n".join(files), as_json)
