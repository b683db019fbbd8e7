"""The commands that read a run: analyze, report, verify and pack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import mmprobe
from mmprobe.cli.options import AsJson, say
from mmprobe.errors import InputError

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or the file that pack made of one.")
]

OfModel = Annotated[
    str | None,
    typer.Option("--model", help="The model that was traced: also what needs it, such as the logit lens."),
]


def _warn(lines: list[str]) -> None:
    for line in lines:
        typer.echo(f"mmprobe: {line}", err=True)


def _functions(model: str | None, slow: bool = False) -> dict[str, Callable[..., Any]]:
    """Analyses and probes of a run by name; those that need the model only with it."""
    from mmprobe.analyses import ANALYSES
    from mmprobe.probes import of_run

    return ANALYSES | of_run(None if model is None else mmprobe.load_model(model), slow)


def analyze(
    run: RunFolder,
    only: Annotated[
        str | None, typer.Option(help="Names with commas between, such as attention-decay; default: all.")
    ] = None,
    model: OfModel = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: RUN/analyses.")] = None,
    as_json: AsJson = False,
) -> None:
    """Analyse a run.

    Each analysis is written as NetCDF, CSV and JSON. The attention knockout, which reads every answer once a layer, is made only if --only names it.

    \b
    Examples:
      mmprobe analyze runs/first
      mmprobe analyze runs/first --only attention-decay --out results
      mmprobe analyze runs/first --only logit-lens,attention-knockout --model tiny-spd
    """
    from mmprobe.analyses import ANALYSES, applicable, export
    from mmprobe.cache import open_run
    from mmprobe.probes import OF_A_RUN

    names = [name.strip().replace("-", "_") for name in only.split(",")] if only else []
    for name in names:
        if name not in (*ANALYSES, *OF_A_RUN):
            known = ", ".join(known.replace("_", "-") for known in (*ANALYSES, *OF_A_RUN))
            raise InputError(f"--only {name.replace('_', '-')}: no such analysis; known: {known}")
    opened = open_run(run)
    functions = _functions(model, slow=bool(names))
    for name in names:
        if name not in functions:
            raise InputError(f"--only {name.replace('_', '-')}: needs the model; give it with --model")
    if out is None:
        out = run.with_suffix("") / "analyses" if opened.packed else run / "analyses"
    if only:
        datasets = [functions[name](opened) for name in names]
    else:
        datasets, left_out = applicable(opened, functions)
        _warn(left_out)
    files = [str(file) for dataset in datasets for file in export(dataset, out)]
    say({"files": files}, "\n".join(files), as_json)


def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run, or a result folder of mmprobe bench or mmprobe score."),
    ],
    model: OfModel = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write one HTML file of figures and answers.

    It needs no network. Where a benchmark's answers were traced, its metrics and answers stand beside their internals.

    \b
    Examples:
      mmprobe report runs/first --out report.html
      mmprobe report runs/first --model tiny-spd --out report.html
      mmprobe report results/spd --out report.html
    """
    from mmprobe.analyses import applicable
    from mmprobe.analyses import findings as found_in
    from mmprobe.cache import open_run
    from mmprobe.viz import write_report
    from mmprobe.viz.report.result_files import find_results

    folder, results = find_results(run)
    opened, findings = None, None
    datasets: list[Any] = []
    if folder is not None:
        opened = open_run(folder)
        datasets, left_out = applicable(opened, _functions(model))
        _warn(left_out)
        findings = found_in(opened, datasets)
    written = write_report(opened, datasets, out, findings=findings, results=results)
    say({"report": str(written)}, str(written), as_json)


def verify(run: RunFolder, as_json: AsJson = False) -> None:
    """Read every byte of a run and name what is damaged.

    Exit 1 if anything is damaged or missing.

    \b
    Example:
      mmprobe verify runs/first
    """
    from mmprobe.cache import open_run
    from mmprobe.cache import verify as verify_run

    problems = verify_run(run)
    count = len(open_run(run))
    say({"traces": count, "problems": problems}, "\n".join(problems) or f"{count} traces, all whole", as_json)
    if problems:
        raise typer.Exit(1)


def pack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    out: Annotated[Path, typer.Option(help="The HDF5 file.")],
    as_json: AsJson = False,
) -> None:
    """Join a run into one HDF5 file.

    Every command reads it like the folder.

    \b
    Example:
      mmprobe pack runs/first --out first.h5
    """
    from mmprobe.cache import pack as pack_run

    written = pack_run(run, out)
    say({"file": str(written)}, str(written), as_json)
