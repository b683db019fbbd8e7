"""The command `figures`: figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import AsJson, OutFolder, print_result, warn
from mmprobe.errors import InputError
from mmprobe.exports import FigureFormat, FigureStyle, save_figures


def figures(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or a result folder of bench, score or compare.")
    ],
    out: OutFolder,
    style: Annotated[FigureStyle, typer.Option(help="The venue whose widths the figures have.")] = "acl",
    format: Annotated[FigureFormat, typer.Option(help="The format.")] = "pdf",
    as_json: AsJson = False,
) -> None:
    """Save the figures of a run for a paper (extra figures).

    They have the widths of a venue's columns and text in 8 points, and their names say what they show. They are those
    of the report, with the image interchange and other probes that mmprobe analyze left in RUN/analyses. A figure
    without intervals says why. figures.tex includes them all, with captions.

    \b
    Examples:
      mmprobe figures runs/first --style acl --format pdf --out figures
      mmprobe figures results/compare --style icml --out figures
    """
    if not source.exists():
        raise InputError(f"{source}: no such run or result folder")
    made = save_figures(source, out, style, format)
    if (source / "run.json").is_file() and not any("image-interchange" in one.file.name for one in made):
        warn(
            f"without the image interchange: mmprobe analyze {source} --only image-interchange --model MODEL"
        )
    shown = [
        {
            "file": str(one.file),
            "title": one.title,
            "interval": one.interval,
            "width": "text" if one.wide else "column",
        }
        for one in made
    ]
    lines = [str(one.file) for one in made]
    print_result(
        {"figures": shown, "latex": str(out / "figures.tex")},
        "\n".join([*lines, str(out / "figures.tex")]),
        as_json,
    )
