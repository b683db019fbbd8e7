"""The command `export`: a run or results for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import AsJson, print_result, split_names
from mmprobe.errors import InputError
from mmprobe.exports import ExportFormat
from mmprobe.exports import export as write_files


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or a result folder of bench or score.")
    ],
    out: Annotated[
        Path, typer.Option(help="The folder for the files; of hf the data set's, which must not exist.")
    ],
    to: Annotated[ExportFormat, typer.Option(help="The format.")] = "parquet",
    arrays: Annotated[
        str | None,
        typer.Option(
            help="Data sets of the traces that become columns of hf or parquet, with commas between."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export answers, labels, metrics and figures.

    parquet, csv and latex hold a row for each answer, and for each metric of a result folder. hf is a folder for
    datasets.load_from_disk, with the images. svg, png and pdf are the figures of every analysis (extra figures).

    \b
    Examples:
      mmprobe export runs/first --to parquet --arrays update/kl --out exported
      mmprobe export runs/first --to hf --out exported/datasets
      mmprobe export results/vqa --to latex --out exported/tables
      mmprobe export runs/first --to pdf --out exported/figures
    """
    if not source.exists():
        raise InputError(f"{source}: no such run or result folder")
    files = [str(file) for file in write_files(source, out, to, split_names(arrays) if arrays else ())]
    print_result({"files": files}, "\n".join(files), as_json)
