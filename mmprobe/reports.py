"""Reports: one HTML file of a run, of a benchmark's results, or of two of them side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.cache import Run, open_run
from mmprobe.settings import ModelSettings

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
    of_run = ModelSettings(name=model) if isinstance(model, str) else model
    return make_report([run] if other is None else [run, other], Path(out), of_run, explorer_size)[0]


def make_report(
    runs: list[Any], out: Path, model: Model | ModelSettings | None, explorer_size: int
) -> tuple[Path, dict[str, str]]:
    """Write the report of one or two runs or result folders.

    Returns:
        The file, and for each analysis that was left out why, by name.
    """
    from mmprobe.viz import write_report
    from mmprobe.viz.report.results import find_comparison
    from mmprobe.viz.report.two_runs import Side, write_comparison, write_side_by_side
    from mmprobe.viz.report.write import check_output

    check_output(out)
    paths = [each.path if isinstance(each, Run) else Path(each) for each in runs]
    comparison = find_comparison(paths[0]) if len(paths) == 1 else None
    if comparison is not None:
        return write_comparison(comparison, paths[0], out), {}
    if len(paths) == 1:
        run, datasets, findings, results, left_out = _read(runs[0], model)
        return write_report(run, datasets, out, explorer_size, findings, results, left_out), left_out
    sides, left_out = [], {}
    for each, name in zip(runs, _name_sides(paths), strict=True):
        run, datasets, _, results, reasons = _read(each, model)
        sides.append(Side(name, run, datasets, results))
        left_out |= reasons
    return write_side_by_side((sides[0], sides[1]), out), left_out


def read_datasets(source: Run | str | Path) -> list[xr.Dataset]:
    """Return the data sets that the report shows figures of; of a comparison, with the metrics that come first."""
    from mmprobe.viz.report.results import find_comparison

    comparison = None if isinstance(source, Run) else find_comparison(Path(source))
    return _read(source, None)[1] if comparison is None else [_keep_headline(comparison, Path(str(source)))]


def _keep_headline(comparison: xr.Dataset, folder: Path) -> xr.Dataset:
    """Return a comparison with the metrics that come first: a page has no room for all of them."""
    from mmprobe.viz.report.results import metric_groups, read_results

    found = [read_results(file.parent) for file in sorted(folder.glob("*/*/results.json"))]
    rows = {each.benchmark: metric_groups(each.benchmark, each.metrics, each.headline) for each in found}
    first = {f"{benchmark} {row['name']}" for benchmark, groups in rows.items() for row in groups["headline"]}
    kept = [name for name in comparison["metric"].values if str(name) in first]
    return comparison.sel(metric=kept) if kept else comparison


def _name_sides(paths: list[Path]) -> list[str]:
    """Return the last different parts of two paths as names."""
    first, second = (list(path.resolve().parts) for path in paths)
    while len(first) > 1 and len(second) > 1 and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return [first[-1], second[-1]]


def _read(
    source: Run | str | Path, model: Model | ModelSettings | None
) -> tuple[Run | None, list[xr.Dataset], xr.Dataset | None, ResultFolder | None, dict[str, str]]:
    """Return the run with its analyses and findings, and the results; None for what there is not. And what was left out."""
    from mmprobe.analyses import ANALYSES, analyze_all, attention_vs_activation
    from mmprobe.analyses import findings as find_findings
    from mmprobe.analyses.files import read_export
    from mmprobe.probes import PROBES, run_probes
    from mmprobe.viz.report.results import find_results, result_datasets

    if isinstance(source, Run):
        run, (_, results) = source, find_results(source.path)
    else:
        folder, results = find_results(source)
        if folder is None:
            return None, result_datasets(results), None, results, {}
        run = open_run(folder)
    functions = dict(ANALYSES.working()) | run_probes(_load(model, run))
    # No figure shows single steps of single samples, and of 20,000 samples they take 250 MB.
    functions["attention_vs_activation"] = partial(attention_vs_activation, by_step=False)
    computed, left_out = analyze_all(run, functions)
    interventions = read_export(run, "claim_interventions")
    tested = [*computed.values(), *([] if interventions is None else [interventions])]
    stored = [read_export(run, name) for name in PROBES if name not in computed]
    found = [*result_datasets(results), *computed.values(), *stored]
    datasets = [dataset for dataset in found if dataset is not None]
    return run, datasets, find_findings(run, tested), results, left_out


def _load(model: Model | ModelSettings | None, run: Run) -> Model | None:
    """Return the model of a run, loaded.

    Raises:
        InputError: another model made the run.
    """
    if model is None:
        return None
    from mmprobe.models import load_model
    from mmprobe.probes.answers import check_run

    loaded = load_model(**model.chosen) if isinstance(model, ModelSettings) else model
    check_run(loaded, run)
    return loaded
