"""Reports: one HTML file of a run, of a benchmark's results, or of two of them side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.cache import Run, open_run

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.models import Model
    from mmprobe.viz.report.results import ResultFolder


def report(
    run: Run | str | Path,
    other: Run | str | Path | None = None,
    *,
    out: str | Path = "report.html",
    model: Model | str | None = None,
    explorer_size: int = 24,
) -> Path:
    """Write the report of a run or of a result folder, or of two side by side, as one HTML file that works offline.

    It has every analysis that the run has the data for, and what `mmprobe analyze` and `mp.analyses.export` left in
    `RUN/analyses`, such as the image interchange.

    Args:
        run: a run, its folder, or a result folder of `bench`, `score` or `compare`.
        other: a second one, to compare with the first.
        out: the HTML file. An existing HTML file is replaced, any other file is an error.
        model: the model of the run: adds what needs it, such as the logit lens.
        explorer_size: largest number of samples in the explorer.

    Returns:
        The file.

    Raises:
        InputError: there is no run and no results, they are damaged, another model made the run, or `out` cannot be
            written.

    Example:
        >>> mp.report(run, out="mine.html")                         # doctest: +SKIP
        PosixPath('mine.html')
    """
    return make_report([run] if other is None else [run, other], Path(out), model, explorer_size)[0]


def make_report(
    runs: list[Any], out: Path, model: Model | str | None, explorer_size: int
) -> tuple[Path, dict[str, str]]:
    """Write the report of one or two runs or result folders.

    Returns:
        The file, and for each analysis that was left out why, by name.
    """
    from mmprobe.viz import write_figures, write_report
    from mmprobe.viz.report.results import find_comparison
    from mmprobe.viz.report.two_runs import Side, write_side_by_side
    from mmprobe.viz.report.write import check_output

    check_output(out)
    paths = [each.path if isinstance(each, Run) else Path(each) for each in runs]
    comparison = find_comparison(paths[0]) if len(paths) == 1 else None
    if comparison is not None:
        return write_figures(comparison, out, (comparison.attrs["model"], "comparison of methods")), {}
    if len(paths) == 1:
        run, datasets, findings, results, left_out = _read(runs[0], model)
        return write_report(run, datasets, out, explorer_size, findings, results, left_out), left_out
    sides, left_out = [], {}
    for each, name in zip(runs, _name_sides(paths), strict=True):
        run, datasets, _, results, reasons = _read(each, model)
        sides.append(Side(name, run, datasets, results))
        left_out |= reasons
    return write_side_by_side((sides[0], sides[1]), out), left_out


def _name_sides(paths: list[Path]) -> list[str]:
    """Return the last different parts of two paths as names."""
    first, second = (list(path.resolve().parts) for path in paths)
    while len(first) > 1 and len(second) > 1 and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return [first[-1], second[-1]]


def _read(
    source: Run | str | Path, model: Model | str | None
) -> tuple[Run | None, list[xr.Dataset], xr.Dataset | None, ResultFolder | None, dict[str, str]]:
    """Return the run with its analyses and findings, and the results; None for what there is not. And what was left out."""
    from mmprobe.analyses import ANALYSES, analyze_all, attention_vs_activation
    from mmprobe.analyses import findings as find_findings
    from mmprobe.analyses.files import read_export
    from mmprobe.probes import PROBES, run_probes
    from mmprobe.viz.report.results import find_results

    if isinstance(source, Run):
        run, (_, results) = source, find_results(source.path)
    else:
        folder, results = find_results(source)
        if folder is None:
            return None, [], None, results, {}
        run = open_run(folder)
    functions = dict(ANALYSES.working()) | run_probes(_load(model, run))
    # No figure shows single steps of single samples, and of 20,000 samples they take 250 MB.
    functions["attention_vs_activation"] = partial(attention_vs_activation, by_step=False)
    computed, left_out = analyze_all(run, functions)
    interventions = read_export(run, "claim_interventions")
    tested = [*computed.values(), *([] if interventions is None else [interventions])]
    stored = [read_export(run, name) for name in PROBES if name not in computed]
    datasets = [*computed.values(), *(dataset for dataset in stored if dataset is not None)]
    return run, datasets, find_findings(run, tested), results, left_out


def _load(model: Model | str | None, run: Run) -> Model | None:
    """Return the model of a run, loaded.

    Raises:
        InputError: another model made the run.
    """
    if model is None:
        return None
    from mmprobe.models import load_model
    from mmprobe.probes.answers import check_run

    loaded = load_model(model) if isinstance(model, str) else model
    check_run(loaded, run)
    return loaded
