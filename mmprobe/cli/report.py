"""The command `report`: one HTML file of a run or of a result folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmprobe.cli.analyze import TracedModel, load_functions
from mmprobe.cli.options import AsJson, say, warn


def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run, or a result folder of mmprobe bench, score or compare."),
    ],
    model: TracedModel = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write one HTML file with figures and answers.

    The file needs no network. Metrics and answers of a benchmark stand beside the model's internals where the
    answers were traced. What `mmprobe analyze` found with --only image-interchange and --only findings in
    RUN/analyses is part of the report.

    \b
    Examples:
      mmprobe report runs/first --out report.html
      mmprobe report runs/first --model tiny-spd --out report.html
      mmprobe report results/spd --out report.html
    """
    from mmprobe.analyses import analyze_all
    from mmprobe.analyses import findings as find_findings
    from mmprobe.analyses.export import read_export
    from mmprobe.cache import open_run
    from mmprobe.viz import write_figures, write_report
    from mmprobe.viz.report.result_files import find_comparison, find_results
    from mmprobe.viz.report.write import check_output

    check_output(out)
    comparison = find_comparison(run)
    if comparison is not None:
        file = write_figures(comparison, out, (comparison.attrs["model"], "comparison of methods"))
        say({"report": str(file)}, str(file), as_json)
        return
    folder, results = find_results(run)
    opened, findings = None, None
    datasets: list[Any] = []
    if folder is not None:
        opened = open_run(folder)
        datasets, notes = analyze_all(opened, load_functions(model))
        for note in notes:
            warn(note)
        interventions = read_export(opened, "claim_interventions")
        findings = find_findings(opened, datasets + ([] if interventions is None else [interventions]))
        interchange = read_export(opened, "image_interchange")
        datasets += [] if interchange is None else [interchange]
    file = write_report(opened, datasets, out, findings=findings, results=results)
    say({"report": str(file)}, str(file), as_json)
