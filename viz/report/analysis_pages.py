"""The report's pages of analyses: all figures of each, and its first figure for the overview."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import xarray as xr

from mmprobe.analyses import ANALYSES
from mmprobe.registry import describe_docstring
from mmprobe.viz.panel import Panel, format_counts, format_notes, name_labels
from mmprobe.viz.report.elements import Page, figure_block, render


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
    suffix = f"-{repeat}" if repeat > 1 else ""
    slug = re.sub(r"[^\w-]+", "-", name.replace("_", "-")) + suffix
    title = name.replace("_", " ").capitalize() + (f" ({repeat})" if repeat > 1 else "")
    shown = [figure_values(panel, number) for number, panel in enumerate(panels, first)]
    title = name_labels(title, dataset)
    lead, notes = (name_labels(text, dataset) for text in _introduction(dataset, name))
    export = name.replace("_", "-") if name in ANALYSES else ""
    html = render(
        "analysis.html", slug=slug, title=title, lead=lead, notes=notes, panels=shown, export=export
    )
    preview = ""
    if shown:
        linked = shown[0] | {"id": f"{slug}-preview", "link": slug, "page": title}
        preview = render("preview.html", panel=linked)
    data = [figure_block(number, panel.figure) for number, panel in enumerate(panels, first)]
    return Page(slug, title, html, preview, data)


def _introduction(dataset: xr.Dataset, name: str) -> tuple[str, str]:
    """Return what the analysis measures; and the sample size, and notes on excluded samples."""
    docstring = inspect.getdoc(ANALYSES[name]) if name in ANALYSES else ""
    about = str(dataset.attrs.get("about") or docstring or "")
    return describe_docstring(about.strip()), " ".join(
        part for part in (_sample_size(dataset), format_notes(dataset)) if part
    )


def _sample_size(dataset: xr.Dataset) -> str:
    for name, dim, unit in (("n_label", "label", "sample"), ("n", "faithful", "pair")):
        if name in dataset and dataset[name].dims == (dim,):
            return f"{format_counts(dataset[name], unit)}."
    count = dataset.attrs.get("samples")
    return "" if count is None else f"n = {count} sample{'' if count == 1 else 's'}."


def figure_values(panel: Panel, number: int) -> dict[str, Any]:
    """Return the values of a figure's element in templates."""
    return {
        "id": f"figure-{number}",
        "number": number,
        "title": panel.title,
        "caption": panel.caption,
        "height": panel.figure.layout.height or 450,
        "link": "",
    }
