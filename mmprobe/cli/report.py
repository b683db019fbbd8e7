"""The command `report`: one HTML file of a run or of a result folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmprobe.cli.analyze import load_functions
from mmprobe.cli.options import AsJson, TracedModel, print_result, warn
from mmprobe.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.cache import Run
    from mmprobe.viz.report.results import ResultFolder


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A run or a result folder of bench, score or compare; or two of them, side by side.",
        ),
    ],
    model: TracedModel = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    explore: Annotated[
        int,
        typer.Option(help="Most samples in the explorer; each adds about 20 to 100 kB to the file.", min=0),
    ] = 24,
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
    from mmprobe.viz import write_figures, write_report
    from mmprobe.viz.report.results import find_comparison
    from mmprobe.viz.report.two_runs import Side, write_side_by_side
    from mmprobe.viz.report.write import check_output

    check_output(out)
    if len(runs) > 2:
        raise InputError(f"report: takes one or two runs, not {len(runs)}")
    comparison = find_comparison(runs[0]) if len(runs) == 1 else None
    if comparison is not None:
        file = write_figures(comparison, out, (comparison.attrs["model"], "comparison of methods"))
    elif len(runs) == 1:
        run, datasets, findings, results = _read(runs[0], model)
        file = write_report(run, datasets, out, explore, findings, results)
    else:
        sides = []
        for path, name in zip(runs, _name_sides(runs), strict=True):
            run, datasets, _, results = _read(path, model)
            sides.append(Side(name, run, datasets, results))
        file = write_side_by_side((sides[0], sides[1]), out)
    print_result({"report": str(file)}, str(file), as_json)


def _name_sides(runs: list[Path]) -> list[str]:
    """Return the last different parts of two paths as names."""
    first, second = (list(path.resolve().parts) for path in runs)
    while len(first) > 1 and len(second) > 1 and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return [first[-1], second[-1]]


def _read(
    path: Path, model: str | None
) -> tuple[Run | None, list[xr.Dataset], xr.Dataset | None, ResultFolder | None]:
    """Return the run of a path with its analyses and findings, and the results; None for what there is not."""
    from mmprobe.analyses import analyze_all, attention_vs_activation
    from mmprobe.analyses import findings as find_findings
    from mmprobe.analyses.files import read_export
    from mmprobe.cache import open_run
    from mmprobe.probes import PROBES
    from mmprobe.viz.report.results import find_results

    folder, results = find_results(path)
    if folder is None:
        return None, [], None, results
    run = open_run(folder)
    functions = load_functions(run, model)
    # No figure shows single steps of single samples, and of 20,000 samples they take 250 MB.
    functions["attention_vs_activation"] = partial(attention_vs_activation, by_step=False)
    datasets, notes = analyze_all(run, functions)
    for note in notes:
        warn(note)
    interventions = read_export(run, "claim_interventions")
    findings = find_findings(run, datasets + ([] if interventions is None else [interventions]))
    computed = {dataset.attrs.get("analysis") for dataset in datasets}
    stored = [read_export(run, name) for name in PROBES if name not in computed]
    return run, datasets + [dataset for dataset in stored if dataset is not None], findings, results
