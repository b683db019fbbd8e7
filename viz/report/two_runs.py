"""The report of two runs or result folders side by side: the same scales, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import QUANTITY
from mmprobe.viz.panel import Panel
from mmprobe.viz.report.analysis_pages import figure_values
from mmprobe.viz.report.elements import Page, figure_block, render
from mmprobe.viz.report.overview import faithful_share, list_labelled
from mmprobe.viz.report.results import ResultFolder, internal_columns, merge_labels, metric_groups
from mmprobe.viz.report.write import write_pages

_SHARE = "Share of faithful answers"


class Side(NamedTuple):
    """One of the two: its name, its run, the data sets of the run's analyses, and its results or None."""

    name: str
    run: Run
    datasets: Sequence[xr.Dataset]
    results: ResultFolder | None


def write_side_by_side(sides: tuple[Side, Side], out: Path) -> Path:
    """Write the report of two runs as an HTML file that works offline.

    The differences are the second run minus the first, over the samples of both, with 95 % intervals over sets of
    images.

    Raises:
        InputError: `out` cannot be written, or the runs have no sample in common.

    Example:
        >>> plain, sage = (Side(name, mp.open_run(f"runs/{name}"), [], None) for name in ("plain", "sage"))  # doctest: +SKIP
        >>> write_side_by_side((plain, sage), Path("report.html"))                                          # doctest: +SKIP
    """
    first, second = sides
    common = [name for name in first.run.ids if name in second.run]
    if not common:
        raise InputError(f"{first.run.path} and {second.run.path}: have no sample in common")
    groups = image_sets(first.run.sample(name) for name in common)
    rows = [_compare(name, values, common, groups) for name, values in _quantities(sides).items()]
    overview = render(
        "side_by_side.html",
        names=[side.name for side in sides],
        shares=[_share(side) for side in sides],
        rows=[row for row in rows if row is not None],
        count=len(common),
        counts=[len(side.run) for side in sides],
        metrics=_metric_rows(sides),
    )
    pages = [Page("overview", "Overview", overview, "", []), *_figure_pages(sides)]
    return write_pages(pages, out, (f"{first.name} and {second.name}", first.run.config["model"]["name"]))


def _share(side: Side) -> dict[str, Any] | None:
    labels = {name: side.run.faithful(name) for name in side.run.ids}
    merged = merge_labels(side.results, labels) if side.results is not None else []
    return faithful_share(list_labelled(side.run, labels, side.results, merged))


def _quantities(sides: tuple[Side, Side]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the numbers of each sample in both runs, by name: whether it is faithful, and its internals."""
    labels = [
        {name: None if (label := side.run.faithful(name)) is None else float(label) for name in side.run.ids}
        for side in sides
    ]
    quantities: dict[str, list[Mapping[str, Any]]] = {_SHARE: [*labels]}
    first, second = (
        {column.name: column.values for column in internal_columns(side.datasets)} for side in sides
    )
    for name in [name for name in first if name in second]:
        if not any(isinstance(value, str) for value in first[name].values()):
            quantities[name] = [first[name], second[name]]
    return quantities


def _compare(
    name: str, values: Sequence[Mapping[str, Any]], common: Sequence[str], groups: np.ndarray
) -> dict[str, Any] | None:
    """Return the means of a quantity over the samples of both runs, and their paired difference."""
    numbers = np.array([[_number(side.get(sample)) for sample in common] for side in values], float)
    known = np.isfinite(numbers).all(0)
    if not known.any():
        return None
    difference = numbers[1, known] - numbers[0, known]
    mean = estimate_mean(difference, groups[known], (-1.0, 1.0) if name == _SHARE else QUANTITY)
    low, high = mean.low, mean.high
    return {
        "name": name,
        "means": [f"{mean:.3g}" for mean in numbers[:, known].mean(1)],
        "difference": f"{mean.value:+.3g}",
        "interval": f"{low:+.3g} to {high:+.3g}" if math.isfinite(low) else "–",
        "sign": "decided" if mean.sign else "",
        "n": int(known.sum()),
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _metric_rows(sides: tuple[Side, Side]) -> list[dict[str, Any]]:
    """Return the headline metrics of both, if both have results of the same benchmark."""
    results = [side.results for side in sides]
    if results[0] is None or results[1] is None or results[0].benchmark != results[1].benchmark:
        return []
    first, second = (
        metric_groups(each.benchmark, each.metrics, each.headline)["headline"]
        for each in results
        if each is not None
    )
    others = {row["name"]: row for row in second}
    return [
        {"name": row["name"], "about": row["about"], "both": [row, others[row["name"]]]}
        for row in first
        if row["name"] in others
    ]


def _figure_pages(sides: tuple[Side, Side]) -> list[Page]:
    """Return a page for each analysis that both runs have, with the figures of both in the same scales."""
    from mmprobe.viz.figures import figures

    first, second = ({str(ds.attrs.get("analysis")): ds for ds in side.datasets} for side in sides)
    pages, number = [], 0
    for name in [name for name in first if name in second]:
        others = {panel.title: panel for panel in figures(second[name])}
        pairs = [(panel, others[panel.title]) for panel in figures(first[name]) if panel.title in others]
        shown, data = [], []
        for pair in pairs:
            share_scales([panel.figure for panel in pair])
            for side, panel in zip(sides, pair, strict=True):
                titled = Panel(f"{side.name}: {panel.title}", panel.figure, panel.caption)
                shown.append(figure_values(titled, number))
                data.append(figure_block(number, panel.figure))
                number += 1
        slug, title = name.replace("_", "-"), name.replace("_", " ").capitalize()
        html = render("pairs.html", slug=slug, title=title, panels=shown)
        pages.append(Page(slug, title, html, "", data))
    return pages


def share_scales(figures: Sequence[go.Figure]) -> None:
    """Give the y axes and colour scales of several figures of one kind the same ranges.

    Axes of words, and axes that are logarithmic or have a range already, stay as they are.

    Example:
        >>> first, second = go.Figure(go.Scatter(y=[0, 1])), go.Figure(go.Scatter(y=[0, 3]))
        >>> share_scales([first, second])
        >>> first.layout.yaxis.range == second.layout.yaxis.range
        True
    """
    values: dict[tuple[str, str], list[float]] = {}
    for figure in figures:
        for trace in figure.data:
            axis = (trace.yaxis or "y").replace("y", "yaxis", 1)
            kind, raw = ("z", trace.z) if trace.type == "heatmap" else ("y", trace.y)
            array = np.asarray(raw if raw is not None else [], dtype=object).ravel()
            numbers = [float(each) for each in array if isinstance(each, int | float | np.number)]
            finite = [each for each in numbers if math.isfinite(each)]
            values.setdefault((kind, axis), []).extend(finite)
    for figure in figures:
        for (kind, axis), numbers in values.items():
            if not numbers:
                continue
            low, high = min(numbers), max(numbers)
            if kind == "z":
                for trace in figure.data:
                    if trace.type == "heatmap" and (trace.yaxis or "y").replace("y", "yaxis", 1) == axis:
                        trace.update(zmin=low, zmax=high)
            elif figure.layout[axis].type != "log" and figure.layout[axis].range is None:
                margin = 0.05 * (high - low) or 0.5
                low = min(low, 0.0) if figure.layout[axis].rangemode == "tozero" else low
                figure.layout[axis].range = [
                    low - margin if low < 0 or figure.layout[axis].rangemode != "tozero" else 0,
                    high + margin,
                ]
