"""Exports of runs and results: tables, figures for a paper, and a folder of Hugging Face `datasets`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmprobe.errors import InputError, printable, unknown_name
from mmprobe.files import check_no_link, make_folders, new_folder, redact, write_whole
from mmprobe.ledger import lock_file

if TYPE_CHECKING:
    import pandas as pd

    from mmprobe.cache import Run
    from mmprobe.viz.paper import PaperFigure

ExportFormat = Literal["parquet", "hf", "csv", "latex"]
FORMATS: tuple[str, ...] = get_args(ExportFormat)
FigureStyle = Literal["acl", "neurips", "icml"]
FigureFormat = Literal["pdf", "svg", "png"]
WITH_ARRAYS = ("hf", "parquet")


def export(
    source: Run | str | Path | Sequence[str | Path],
    out: str | Path,
    to: ExportFormat = "parquet",
    arrays: Sequence[str] = (),
) -> list[Path]:
    """Export a run's answers with their labels, or the metrics of a result folder. `save_figures` makes the figures.

    - csv, latex, parquet: `answers.csv`, `.tex` or `.parquet`, as `Run.to_dataframe` has them. Of a result folder
      `metrics`, and `answers` as well where its answers were traced.
    - latex, of several result folders or of a folder of compare: `comparison.tex`, methods x benchmarks with
      intervals and a paired test (`viz.comparison_table.write_table`).
    - hf: a folder that `datasets.load_from_disk` opens, with the images.

    In csv and latex, a control character is `?`, since a terminal, a spreadsheet or TeX obeys some; in latex, a text
    is one line, and its special signs are escaped. In csv, a text that a spreadsheet would take for a formula begins with an apostrophe. Keys of the environment are redacted in all tables.

    Args:
        source: a run, its folder, or a result folder; for latex also several result folders.
        out: the folder for the files; of `hf` the folder of the data set, which must not exist.
        arrays: data sets of the traces that become columns, such as `attention/mass`, for hf and parquet.

    Returns:
        The files, or the folder of the data set.

    Raises:
        InputError: there is no such format, run or array, a library is missing, or `out` cannot be written.

    Example:
        >>> mp.export(run, "exported", to="parquet", arrays=["update/kl"])          # doctest: +SKIP
        [PosixPath('exported/answers.parquet')]
    """
    from mmprobe.cache import Run
    from mmprobe.viz.comparison_table import write_table
    from mmprobe.viz.report.results import find_comparison

    out = Path(out)
    if to in get_args(FigureFormat):
        raise InputError(
            f"export: figures are made by mmprobe figures RUN --format {to}, in Python by mp.save_figures"
        )
    if to not in FORMATS:
        raise unknown_name("export: format", to, FORMATS)
    if arrays and to not in WITH_ARRAYS:
        raise InputError(f"export: arrays go into {' and '.join(WITH_ARRAYS)}, not into {to}")
    several = [source] if isinstance(source, str | Path) else [] if isinstance(source, Run) else list(source)
    if len(several) > 1 and to != "latex":
        raise InputError(f"export: several folders go into latex, not into {to}")
    if to == "latex" and several and (len(several) > 1 or find_comparison(Path(several[0])) is not None):
        table = write_table([Path(each) for each in several])
        make_folders(check_no_link(out))
        with lock_file(out / "export", "exporting into it"):
            write_whole({out / "comparison.tex": table.encode()})
        return [out / "comparison.tex"]
    source = source if isinstance(source, Run) else several[0]
    run, metrics = _open(source)
    if run is None and to == "hf":
        raise InputError(f"{source}: has no traces, so there is nothing to export to {to}")
    if run is not None and to == "hf":
        return [_write_datasets(run, out, arrays)]
    make_folders(check_no_link(out))
    tables = {} if metrics is None else {"metrics": metrics}
    if run is not None:
        tables["answers"] = _table(run, arrays)
    endings = {"csv": "csv", "latex": "tex", "parquet": "parquet"}
    files = {out / f"{name}.{endings[to]}": _dump(table, to) for name, table in tables.items()}
    with lock_file(out / "export", "exporting into it"):
        write_whole(files)
    return list(files)


def save_figures(
    source: Run | str | Path, out: str | Path, style: FigureStyle = "acl", format: FigureFormat = "pdf"
) -> list[PaperFigure]:
    """Save the figures of a run, of results or of a comparison in a venue's style: its widths, and text in 8 points.

    They are those of the report: every analysis that the run has the data for, and what `mmprobe analyze` left in
    `RUN/analyses`, such as the image interchange. A file's name says what the figure shows; `figures.tex` includes all
    of them with their captions. A figure without intervals says why. It needs the extra `figures`.

    Args:
        source: a run, its folder, or a result folder of bench, score or compare.
        out: the folder for the files.
        style: `acl` (columns of 7.7 cm, text of 16 cm), `icml` (3.25 and 6.75 inches) or `neurips` (5.5 inches). Plots
            beside each other are as wide as the text.
        format: pdf, svg, or png (300 dots an inch).

    Returns:
        The figures: `file`, `title`, `caption`, `interval` (`shown`, or why there is none) and `wide`.

    Raises:
        InputError: kaleido or a Chromium is missing, there are no figures, no such style or format, or `out` cannot
            be written.

    Example:
        >>> mp.save_figures("runs/first", "figures", style="icml")[0].file          # doctest: +SKIP
        PosixPath('figures/attention-decay-attention-by-token-group-over-the-answer.pdf')
    """
    from mmprobe.viz.figures import one_browser
    from mmprobe.viz.paper import check_choice, write_paper_figures

    check_choice(style, format)
    out = Path(out)
    with one_browser():
        from mmprobe.reports import read_datasets

        datasets = read_datasets(source)
        make_folders(check_no_link(out))
        with lock_file(out / "figures", "saving figures into it"):
            made = write_paper_figures(datasets, out, style, format)
    if not made:
        raise InputError(
            f"{source}: has no figures; mmprobe figures takes a run, or results that were traced"
        )
    return made


def _open(source: Run | str | Path) -> tuple[Run | None, pd.DataFrame | None]:
    """Return the run of a path and the metrics of its results; None for what there is not."""
    import pandas as pd

    from mmprobe.cache import Run, open_run
    from mmprobe.viz.report.results import find_results

    if isinstance(source, Run):
        return source, None
    folder, results = find_results(source)
    run = None if folder is None else open_run(folder)
    if results is None:
        return run, None
    columns = ["value", "low", "high", "n", "coverage", "direction"]
    metrics = pd.DataFrame.from_dict(results.metrics, orient="index").reindex(columns=columns)
    return run, metrics.rename_axis("metric")


def _table(run: Run, arrays: Sequence[str]) -> pd.DataFrame:
    """Return the answers of a run, metadata that are lists or mappings as JSON, and arrays as nested lists."""
    table = run.to_dataframe()
    for name in table.columns:
        if table[name].map(lambda cell: isinstance(cell, list | dict)).any():
            table[name] = table[name].map(json.dumps)
    table = _map_texts(table, redact)
    table.columns = [" ".join(printable(name).split()) for name in table.columns]  # Arrow takes no others
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise InputError(f"export: several metadata have the name {twice!r}; rename all but one")
    for name in arrays:
        known = run.captured
        if name not in known:
            raise unknown_name("export: array", name, known)
        table[name] = [trace.array(name).values.tolist() for _, trace in run.stream(name)]
    return table


def _map_texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with all its texts changed: cells, names of rows and of columns."""

    def map_cell(cell: Any) -> Any:
        return change(cell) if isinstance(cell, str) else cell

    changed = table.apply(lambda column: column.map(map_cell) if column.dtype.kind in "OT" else column)
    return changed.set_axis(table.index.map(map_cell)).set_axis(table.columns.map(map_cell), axis="columns")


def _show(text: str) -> str:
    """Return a text without characters that programs obey; a line ends as in Unix."""
    return printable(text.replace("\r\n", "\n"))


def _dump(table: pd.DataFrame, to: str) -> bytes:
    from mmprobe.analyses.files import quote_formula

    if to == "parquet":
        try:
            content = io.BytesIO()
            table.to_parquet(content)
            return content.getvalue()
        except ImportError:
            raise InputError("export to parquet needs pyarrow; pip install 'mmprobe[parquet]'") from None
    if to == "latex":
        from mmprobe.viz.latex import escape

        return _map_texts(table, escape).to_latex(escape=False, float_format="%.3f", na_rep="--").encode()
    table = _map_texts(table, _show)
    return _map_texts(table, quote_formula).to_csv(lineterminator="\r\n").encode()


def _write_datasets(run: Run, out: Path, arrays: Sequence[str]) -> Path:
    """Write a data set of `datasets`, with the images in it. It appears whole or not at all."""
    try:
        import datasets
    except ImportError:
        raise InputError("export to hf needs datasets; pip install datasets") from None
    if out.exists():
        raise InputError(f"{out}: exists; choose another folder for the data set")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    datasets.disable_progress_bars()
    table = _table(run, arrays).reset_index()
    table = table.astype(object).where(table.notna(), None)  # pandas has NaN for a text that is missing
    rows: dict[str, Any] = {str(name): table[name].tolist() for name in table.columns}
    rows["images"] = [[str(path) for path in run.sample(name).images] for name in run.ids]
    content = datasets.Dataset.from_dict(rows).cast_column("images", datasets.Sequence(datasets.Image()))
    with new_folder(out) as part:
        content.save_to_disk(part)
    return out
