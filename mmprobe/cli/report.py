"""The command `report`: one HTML file of a run or of a result folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFile,
    Verbose,
    name_model,
    print_result,
    warn_left_out,
)
from mmprobe.errors import InputError
from mmprobe.settings import ModelSettings


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A run or a result folder of bench, score or compare; or two of them, side by side.",
        ),
    ],
    model: ModelSettings = ModelSettings(),  # noqa: B008
    out: OutFile = Path("report.html"),
    explore: Annotated[
        int,
        typer.Option(help="Most samples in the explorer; each adds about 20 to 100 kB to the file.", min=0),
    ] = 24,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file with figures and answers.

    The file needs no network. It shows a benchmark's metrics and answers beside the model's internals if the answers
    were traced. It includes the results in RUN/analyses of `mmprobe analyze --only` with findings,
    image-interchange, circuit and the other probes. Two runs or result folders are shown side by side: the settings
    that differ, the answers that changed, the paired differences, and what these data could show.

    \b
    Examples:
      mmprobe report runs/first --out report.html
      mmprobe report runs/first --model tiny-spd --out report.html
      mmprobe report results/spd --out report.html --explore 100
      mmprobe report runs/plain runs/sage --out side-by-side.html
      mmprobe report results/vqa-3b results/vqa-7b --out side-by-side.html
    """
    if len(runs) > 2:
        raise InputError(f"report: takes one or two runs, not {len(runs)}")
    for path in runs:
        if not path.exists():
            raise InputError(f"{path}: no such run or result folder")
    from mmprobe.reports import make_report

    file, left_out = make_report(list(runs), out, name_model(model), explore)
    warn_left_out(left_out, verbose)
    print_result({"report": str(file)}, str(file), as_json)
