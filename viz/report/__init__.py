"""A run as one HTML file that needs nothing else: overview, a page for each analysis, an explorer of its answers; and a
page of results, where a benchmark's answers were traced or there are results alone."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import xarray as xr
from plotly.offline import get_plotlyjs

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.panel import GROUP_COLOURS
from mmprobe.viz.report.explorer import chosen_ids, sample_blocks
from mmprobe.viz.report.result_files import Results
from mmprobe.viz.report.results import internals, labels_of, results_page, results_summary
from mmprobe.viz.report.sections import (
    LABEL_NAMES,
    AnalysisPage,
    Findings,
    analysis_pages,
    data_block,
    findings_table,
    summary,
)

_NO_EXPLORER = Template(
    "<section class='page' id='explorer' aria-labelledby='explorer-title'>"
    "<h2 id='explorer-title' tabindex='-1'>Explorer</h2><p class='muted'>$reason</p></section>"
)


def write_report(
    run: Run | None,
    datasets: list[xr.Dataset],
    out: Path,
    explored: int = 24,
    findings: Findings | None = None,
    results: Results | None = None,
) -> Path:
    """Write a run's overview, a page for each of its analyses and an explorer of its answers as one HTML file.

    The file works offline. Texts that come from models or data are escaped, and the page's own policy
    lets no script run but its own.

    Args:
        run: the run; None for results without traces.
        datasets: what analyses returned for it; each brings its figures.
        out: the HTML file; replaced if it exists, but not a file of something else, and whole or not there at all.
        explored: how many samples the explorer holds at most, unfaithful ones first.
        findings: claims and whether they hold, for a table in the overview (see `sections.findings_table`).
        results: of the benchmark that was traced (see `result_files.find_results`), for a page of their own.

    Raises:
        InputError: `out` cannot be written, there is neither run nor results, a trace is damaged, a data set is not
            an analysis', or a finding has no claim or no known verdict.

    Example:
        >>> run = mp.open_run("runs/demo")                                           # doctest: +SKIP
        >>> write_report(run, [mp.analyses.attention_decay(run)], Path("demo.html"))  # doctest: +SKIP
        PosixPath('demo.html')
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    if out.is_dir():
        raise InputError(f"{out}: is a folder; name an HTML file in it")
    if out.is_file() and out.stat().st_size and not _is_page(out):
        raise InputError(f"{out}: is there and no HTML file; choose another name for the report")
    labels = {name: run.faithful(name) for name in run.ids} if run is not None else {}
    analyses = analysis_pages(datasets)
    parts = _run_parts(run, labels, explored) if run is not None else _NOTHING
    overview, pages = parts.overview, list(analyses)
    if results is not None:
        label_of_answers = labels_of(results, labels)
        overview = overview or results_summary(results, label_of_answers)
        pages.insert(0, results_page(results, label_of_answers, internals(datasets), parts.explored))
    _write_whole(
        _html(
            title=_title(run, results),
            overview=overview + findings_table(findings) + "".join(page.digest for page in analyses),
            pages=pages,
            explorer=parts.explorer,
            data=[*(block for page in pages for block in page.data), *parts.data],
            scripts=_scripts(any(page.data for page in analyses), bool(parts.data), results is not None),
        ),
        out,
    )
    return out


class _RunParts(NamedTuple):
    """What a report says of a run itself: overview, explorer with its data, and where samples are in it, by id."""

    overview: str
    explorer: str
    data: list[str]
    explored: dict[str, str]


_NOTHING = _RunParts("", "", [], {})


def _title(run: Run | None, results: Results | None) -> tuple[str, str]:
    """Of a report: the model, and where the answers are."""
    if run is not None:
        return run.config["model"]["name"], run.path.name
    if results is not None:
        return str(results.about.get("model") or results.benchmark), results.folder.absolute().name
    raise InputError("a report needs a run or results; there are neither")


def _scripts(figures: bool, explorer: bool, results: bool) -> list[str]:
    names = ["csv.js", "narrow.js", "figures.js"] if figures else []
    names += (["heat.js", "explorer.js"] if explorer else []) + (["results.js"] if results else [])
    return ([get_plotlyjs()] if figures else []) + [_asset(name) for name in names]


def _html(
    title: tuple[str, str],
    overview: str,
    pages: list[AnalysisPage],
    explorer: str,
    data: list[str],
    scripts: list[str],
) -> str:
    turning = _asset("pages.js")
    colours = "".join(f"--group-{group}: {colour}; " for group, colour in GROUP_COLOURS.items())
    return Template(_asset("report.html")).substitute(
        policy=_policy([turning, *scripts]),
        title=escape(" · ".join(title)),
        style=f"{_asset('report.css')}\n:root {{ {colours}}}",
        model=escape(title[0]),
        run=escape(title[1]),
        navigation=_navigation(pages, bool(explorer)),
        overview=overview,
        pages="\n".join(page.html for page in pages),
        explorer=explorer,
        turning=turning,
        data="\n".join(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _asset(name: str) -> str:
    return resources.files("mmprobe.viz").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """The Content-Security-Policy: these scripts and nothing else, no network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _is_page(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(64).lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _write_whole(page: str, out: Path) -> None:
    part = out.with_name(out.name + ".part")
    try:
        # Names of files that are not UTF-8 reach messages as lone surrogates, which cannot be encoded.
        part.write_bytes(page.encode("utf-8", errors="replace"))
        os.replace(part, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _navigation(pages: list[AnalysisPage], explorer: bool) -> str:
    """Links to the pages; a page is shown alone where scripts run, and stands below the others where not."""
    names = [("overview", "Overview"), *((page.slug, page.title) for page in pages)]
    names += [("explorer", "Explorer")] if explorer else []
    return "".join(f"<a href='#{slug}'>{title}</a>" for slug, title in names)


def _run_parts(run: Run, labels: dict[str, bool | None], explored: int) -> _RunParts:
    """A run's summary, and the explorer's section with a data block for each sample in it."""
    wanted = chosen_ids(labels, explored)
    blocks = sample_blocks(run, wanted)
    shown = wanted[: len(blocks)]
    left_out = _left_out(len(run), len(shown), cut_short=len(shown) < len(wanted))
    overview = summary(run, labels)
    if not shown:
        reason = left_out or "This run has no samples."
        return _RunParts(overview, _NO_EXPLORER.substitute(reason=reason), [], {})
    items = "".join(
        _list_item(number, name, LABEL_NAMES[labels[name]], run.sample(name).question)
        for number, name in enumerate(shown)
    )
    section = Template(_asset("explorer.html")).substitute(
        left_out=f"<p class='muted'>{left_out}</p>" if left_out else "",
        filters=_filters(Counter(LABEL_NAMES[labels[name]] for name in shown)),
        items=items,
    )
    data = [data_block(f"sample-{number}", block) for number, block in enumerate(blocks)]
    return _RunParts(overview, section, data, {name: f"explore-{n}" for n, name in enumerate(shown)})


def _list_item(number: int, name: str, label: str, question: str) -> str:
    return (
        f"<li id='explore-{number}'><button type='button' data-sample='sample-{number}' data-label='{label}'>"
        f"<span class='id'>{escape(name)}</span><span class='mark {label}'>{label}</span>"
        f"<span class='question'>{escape(question)}</span></button></li>"
    )


def _left_out(finished: int, shown: int, cut_short: bool) -> str:
    """Says that samples are missing from the explorer, and why."""
    if shown == finished:
        return ""
    size = " The file would become too large with more." if cut_short else ""
    return f"Holds {shown} of {finished} samples: unfaithful ones first, then in the order of the run.{size}"


def _filters(counts: Counter[str]) -> str:
    """Buttons that narrow the list, where there is something to tell apart."""
    if len(counts) < 2:
        return ""
    choices = [
        ("all", counts.total()),
        *((name, counts[name]) for name in LABEL_NAMES.values() if counts[name]),
    ]
    buttons = "".join(
        f"<button type='button' data-filter='{name}' aria-pressed='{'true' if name == 'all' else 'false'}'>"
        f"{name} {count}</button>"
        for name, count in choices
    )
    return f"<div class='filters' role='group' aria-label='Filter samples'>{buttons}</div>"
