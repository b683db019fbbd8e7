"""The report's pages of analyses: all figures of each, and its first figure for the overview."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from html import escape

import xarray as xr

from mmprobe.analyses import ANALYSES
from mmprobe.viz.label_comparison import format_counts, format_notes
from mmprobe.viz.panel import Panel
from mmprobe.viz.report.elements import Page, data_block, escape_json


def analysis_pages(datasets: Sequence[xr.Dataset]) -> list[Page]:
    """Return a page for each data set, with all its figures.

    Raises:
        InputError: no analysis or probe returns such a data set.

    Example:
        >>> [page.title for page in analysis_pages([attention_decay(run)])]    # doctest: +SKIP
        ['Attention decay']
    """
    from mmprobe.viz.figures import figures

    pages: list[Page] = []
    repeats: Counter[str] = Counter()
    first = 0
    for dataset in datasets:
        panels = figures(dataset)
        name = str(dataset.attrs.get("analysis", "analysis"))
        repeats[name] += 1
        pages.append(_analysis_page(dataset, name, repeats[name], panels, first))
        first += len(panels)
    return pages


def _analysis_page(dataset: xr.Dataset, name: str, repeat: int, panels: list[Panel], first: int) -> Page:
    """Return the page of one analysis.

    Args:
        repeat: 1 for the first data set of the analysis, 2 for a second one with other settings.
        first: number of the page's first figure in the report.
    """
    slug = escape(name.replace("_", "-")) + (f"-{repeat}" if repeat > 1 else "")
    title = escape(name.replace("_", " ").capitalize()) + (f" ({repeat})" if repeat > 1 else "")
    figures = [
        figure_element(panel, number, f"figure-{number}") for number, panel in enumerate(panels, first)
    ]
    html = (
        f"<section class='page' id='{slug}' aria-labelledby='{slug}-title'>"
        f"<h2 id='{slug}-title' tabindex='-1'>{title}</h2>{_introduction(dataset, name)}{''.join(figures)}"
        f"{_export_hint(name)}</section>"
    )
    link = f"<a href='#{slug}'>{title}</a>"
    preview = figure_element(panels[0], first, f"{slug}-preview", link) if panels else ""
    data = [
        data_block(f"figure-data-{number}", escape_json(panel.figure.to_json()))
        for number, panel in enumerate(panels, first)
    ]
    return Page(slug, title, html, preview, data)


def _introduction(dataset: xr.Dataset, name: str) -> str:
    """Return what the analysis measures, the sample size, and notes on excluded samples."""
    docstring = inspect.getdoc(ANALYSES[name]) if name in ANALYSES else ""
    about = str(dataset.attrs.get("about") or docstring or "")
    first_line = about.strip().partition("\n")[0].replace("`", "").removeprefix("Return ")
    lead = f"<p class='lead'>{escape(first_line[0].upper() + first_line[1:])}</p>" if first_line else ""
    notes = " ".join(part for part in (_sample_size(dataset), format_notes(dataset)) if part)
    return lead + (f"<p class='muted'>{escape(notes)}</p>" if notes else "")


def _sample_size(dataset: xr.Dataset) -> str:
    for name, dim, unit in (("n_label", "label", "sample"), ("n", "faithful", "pair")):
        if name in dataset and dataset[name].dims == (dim,):
            return f"{format_counts(dataset[name], unit)}."
    count = dataset.attrs.get("samples")
    return "" if count is None else f"n = {count} sample{'' if count == 1 else 's'}."


def figure_element(panel: Panel, number: int, name: str, link: str = "") -> str:
    """Return a figure's element. A figure on the overview has a link to its page."""
    title = escape(panel.title)
    return (
        f"<figure class='panel{' preview' if link else ''}' id='{name}'>"
        f"{f'<p class=kicker>{link}</p>' if link else ''}<div class='head'><h3>{title}</h3></div>"
        f"<div class='plot' data-figure='figure-data-{number}' role='img' aria-label='{title}'"
        f" style='--height: {panel.figure.layout.height or 450}px'></div>"
        f"<figcaption>{escape(panel.caption)}</figcaption></figure>"
    )


def _export_hint(name: str) -> str:
    if name not in ANALYSES:
        return ""
    return (
        "<p class='muted export'>All values of this analysis as NetCDF, CSV and JSON: "
        f"<code>mmprobe analyze RUN --only {escape(name.replace('_', '-'))}</code></p>"
    )
