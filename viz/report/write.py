"""Write the report: one HTML file that works offline.

It has an overview, a page for each analysis, and an explorer of the answers. A benchmark's results have a
page as well. `write_figures` writes the figures of one data set alone."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import xarray as xr

from mmprobe.cache import Run
from mmprobe.cache.verify import find_changed_images
from mmprobe.errors import InputError, option
from mmprobe.files import redact, write_whole
from mmprobe.ledger import lock_file
from mmprobe.viz.panel import GROUP_COLOURS
from mmprobe.viz.report.analysis_pages import analysis_pages
from mmprobe.viz.report.answers import (
    answers_table,
    collect_answers,
    internal_columns,
    list_labelled,
    list_unchanged,
)
from mmprobe.viz.report.elements import RIGHT_NAMES, Page, read_asset, render
from mmprobe.viz.report.explorer import Explorer, explorer_page, find_words
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.overview import (
    Findings,
    count_answers,
    count_shown_errors,
    dependence_line,
    faithful_share,
    find_diagnoses,
    find_interchange,
    findings_table,
    overview_page,
    run_facts,
)
from mmprobe.viz.report.results import ResultFolder, result_facts, results_page

log = logging.getLogger("mmprobe")


def write_report(
    run: Run | None,
    datasets: list[xr.Dataset],
    out: Path,
    explorer_size: int = 24,
    findings: Findings | None = None,
    results: ResultFolder | None = None,
    left_out: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of a run, of a benchmark's results, or of both.

    The HTML file works offline. Text from models and data is escaped, and a content security policy allows
    only the report's own scripts.

    Args:
        run: the run, or None for results without traces.
        datasets: data sets of the run's analyses.
        out: the HTML file. An existing HTML file is replaced, any other file is an error. No partial file is
            left.
        explorer_size: largest number of samples in the explorer, unfaithful samples first.
        findings: claims and verdicts for a table in the overview (see `overview.findings_table`).
        results: results of the traced benchmark (see `results.find_results`).
        left_out: why, by name, of the analyses that could not be applied.

    Raises:
        InputError: `out` cannot be written, both run and results are None, a trace is damaged, no analysis
            returns such a data set, or a finding has no claim or no known verdict.

    Example:
        >>> run = mp.open_run("runs/demo")                                           # doctest: +SKIP
        >>> write_report(run, [mp.analyses.attention_decay(run)], Path("demo.html"))  # doctest: +SKIP
        PosixPath('demo.html')
    """
    out = Path(out)
    check_output(out)
    answers = collect_answers(run, results)
    analyses = analysis_pages(datasets)
    interchange = find_interchange(datasets)
    images, explorer, pages = Images(), Explorer("", [], {}), list(analyses)
    if run is not None:
        _warn_of_changed_images(run)
        explorer = explorer_page(run, answers, explorer_size, images, interchange, find_words(datasets))
        pages.append(Page("explorer", "Explorer", explorer.html, "", explorer.data))
    if results is not None:
        pages.insert(0, results_page(results))
    table, data = answers_table(
        answers, internal_columns(datasets), explorer.links, images, list_unchanged(interchange)
    )
    counts, untraced = count_answers(run, answers, results is not None)
    overview = overview_page(
        [page.preview for page in analyses],
        share=faithful_share(list_labelled(run, answers)),
        shown_errors=count_shown_errors(answers, explorer.links),
        count=len(answers.rows),
        wordless=sum(answers.wordless),
        repetitive=sum(answers.repetitive),
        read=answers.names is RIGHT_NAMES,
        bad=answers.names[False],
        results=run is None,
        dependence=dependence_line(run, interchange) if run is not None else "",
        diagnoses=find_diagnoses(run),
        answers=table,
        findings=findings_table(findings, answers.degenerate_share),
        left_out={name.replace("_", "-"): why for name, why in (left_out or {}).items()},
        counts=counts,
        untraced=untraced,
        facts=(run_facts(run) if run is not None else {})
        | (result_facts(results) if results is not None else {}),
        failures=run.failures if run is not None else [],
    )
    pages.insert(0, Page("overview", "Overview", overview, "", [*images.blocks(), *data]))
    scripts = _read_scripts(any(page.data for page in analyses), bool(explorer.data), bool(data))
    _write_file(_render_report(_name_report(run, results), pages, scripts), out)
    return out


def _warn_of_changed_images(run: Run) -> None:
    changed = list(find_changed_images(run))
    if changed:
        log.warning(
            "%s: the images of %d of %d samples changed since they were traced, such as those of %s; trace it again with %s",
            run.path,
            len(changed),
            len(run),
            changed[0],
            option("resume"),
        )


def write_figures(dataset: xr.Dataset, out: Path, title: tuple[str, str]) -> Path:
    """Write all figures of a data set as an HTML file that works offline, with the report's security policy.

    Args:
        dataset: data set of an analysis or a comparison.
        out: the HTML file. An existing HTML file is replaced, any other file is an error.
        title: heading, and an addition to it.

    Raises:
        InputError: `out` cannot be written, or no analysis returns such a data set.

    Example:
        >>> write_figures(comparison, Path("compare.html"), ("qwen2.5-vl-7b", "results"))     # doctest: +SKIP
        PosixPath('compare.html')
    """
    out = Path(out)
    check_output(out)
    _write_file(_render_report(title, analysis_pages([dataset]), _read_scripts(True, False, False)), out)
    return out


def write_pages(pages: list[Page], out: Path, title: tuple[str, str]) -> Path:
    """Write pages with figures as an HTML file that works offline, with the report's security policy.

    The arguments `out` and `title` are those of `write_figures`.

    Raises:
        InputError: `out` cannot be written.
    """
    check_output(out)
    _write_file(_render_report(title, pages, _read_scripts(True, False, False)), out)
    return out


def check_output(out: Path) -> None:
    """Check that a report can be written, before the work for it begins.

    Raises:
        InputError: its folder does not exist, or something else than an HTML file has its name.

    Example:
        >>> check_output(Path("no/such/folder/report.html"))
        Traceback (most recent call last):
        mmprobe.errors.InputError: no/such/folder: no such folder; make it first
    """
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    if out.is_dir():
        raise InputError(f"{out}: is a folder; name an HTML file in it")
    if out.is_file() and out.stat().st_size and not _is_html(out):
        raise InputError(f"{out}: exists and is not an HTML file; choose another name for the report")


def _is_html(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(64).lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _name_report(run: Run | None, results: ResultFolder | None) -> tuple[str, str]:
    """Return the model, and the name of the benchmark, or of the run without one."""
    if results is not None:
        model = run.config["model"]["name"] if run is not None else results.about.get("model")
        return str(model or results.folder.absolute().name), results.benchmark
    if run is not None:
        return run.config["model"]["name"], run.path.name
    raise InputError("run and results are both None: a report needs at least one")


def _read_scripts(figures: bool, explorer: bool, answers: bool) -> list[str]:
    """Return the scripts of the parts that the report has."""
    names = ["numbers.js"] if explorer or answers else []
    names += ["plotly-cartesian.min.js", "csv.js", "narrow.js", "figures.js"] if figures else []
    names += (
        ["heat.js", "causes.js", "words.js", "data.js", "heads.js", "export.js", "list.js", "explorer.js"]
        if explorer
        else []
    )
    names += ["answers.js"] if answers else []
    return [read_asset(name) for name in names]


def _render_report(title: tuple[str, str], pages: list[Page], scripts: list[str]) -> str:
    page_script = read_asset("pages.js")
    colours = "".join(f"--group-{group}: {colour}; " for group, colour in GROUP_COLOURS.items())
    return render(
        "report.html",
        policy=_security_policy([page_script, *scripts]),
        title=title,
        style=f"{read_asset('report.css')}\n:root {{ {colours}}}",
        pages=pages,
        page_script=page_script,
        scripts=scripts,
    )


def _security_policy(scripts: Iterable[str]) -> str:
    """Return the Content-Security-Policy: only these scripts, and no network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _write_file(html: str, out: Path) -> None:
    # Names of files that are not UTF-8 appear in messages as lone surrogates, which cannot be encoded.
    with lock_file(out, "writing it"):
        write_whole({out: redact(html).encode("utf-8", errors="replace")})
