"""Figure of a comparison of methods."""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import Estimate, read_estimate
from mmprobe.viz.figures.caption_lengths import panels as caption_panels
from mmprobe.viz.figures.caption_lengths import read_lengths
from mmprobe.viz.panel import REFERENCE_LINE, Panel, apply_layout, error_bars, escape_text

_SUBSET = re.compile(r"\[")  # metrics of a group of samples, or of the answers that were read
_LARGE = 2  # larger values get their own axis: they would hide differences of shares


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return the differences; and of captions that are scored by length, recall against hallucination."""
    return [_difference_panel(ds), *_length_panels(ds)]


def _length_panels(ds: xr.Dataset) -> list[Panel]:
    by_method: list[xr.Dataset] = []
    captions = np.array([str(name).startswith("chair ") for name in ds["metric"].values], bool)
    if not captions.any():
        return []
    ds = ds.isel(metric=captions)
    for method in map(str, ds["contender"].values):
        own = ds.sel(contender=method)
        rows = zip(*(own[name].values.tolist() for name in ("metric", "value", "low", "high")), strict=True)
        metrics = {str(name).removeprefix("chair "): Estimate(*numbers) for name, *numbers in rows}
        if (lengths := read_lengths(metrics, method)) is not None:
            by_method.append(lengths.sel(source=[method]) if by_method else lengths)
    return caption_panels(xr.concat(by_method, "source")) if by_method else []


def _difference_panel(ds: xr.Dataset) -> Panel:
    """Draw the paired differences to the baseline, for metrics of all samples that any method has.

    Metrics with values in the hundreds, such as MME's scores, have their own axis.
    """
    baseline = ds.attrs["baseline"]
    methods = [str(name) for name in ds["contender"].values if name != baseline]
    known = ds["difference_low"].sel(contender=methods).notnull().any("contender").values
    of_all = np.array([not _SUBSET.search(str(name)) for name in ds["metric"].values], bool)
    large = (np.abs(ds["value"].transpose("metric", "contender").values) > _LARGE).any(1)
    plots = [rows for part in (~large, large) if (rows := np.flatnonzero(known & of_all & part)).size]
    heights = [len(rows) for rows in plots]
    figure = make_subplots(len(plots) or 1, 1, row_heights=heights or None, vertical_spacing=0.08)
    for number, rows in enumerate(plots, 1):
        shown = ds.isel(metric=rows)
        for index, method in enumerate(methods):
            points = _difference_points(shown.sel(contender=method), method, index)
            figure.add_trace(points.update(showlegend=number == 1), row=number, col=1)
    figure.update_xaxes(title=f"difference to {escape_text(baseline)}", row=len(plots) or 1, col=1)
    figure.add_vline(x=0, line=REFERENCE_LINE)
    figure.update_layout(scattermode="group")
    figure.update_yaxes(autorange="reversed", dtick=1)
    height = 160 * max(1, len(plots)) + 16 * sum(heights) * max(1.2, len(methods))
    return Panel(
        f"Methods against {baseline}",
        apply_layout(figure, height=min(round(height), 6000)),
        f"Each metric minus the metric of {baseline}, over the samples that both have, with 95 % paired "
        f"intervals over sets of images. Hover for values and n. {ds.attrs['model']}.",
    )


def _difference_points(ds: xr.Dataset, method: str, index: int) -> go.Scatter:
    """Return one method's differences (metric) with their intervals."""
    difference = read_estimate(ds, "difference")
    name = escape_text(method)
    return go.Scatter(
        x=difference.value,
        y=[escape_text(metric) for metric in ds["metric"].values],
        name=name,
        legendgroup=name,
        mode="markers",
        orientation="h",  # so that the methods of a metric are beside each other, and not on one line
        offsetgroup=name,
        marker={"symbol": index, "size": 9, "color": qualitative.Safe[index % len(qualitative.Safe)]},
        error_x=error_bars(difference, thickness=1.2),
        customdata=np.stack([difference.low, difference.high, ds["value"].values, ds["n_paired"].values], -1),
        hovertemplate=f"{name}, %{{y}}: %{{x:+.3f}} [%{{customdata[0]:+.3f}}, %{{customdata[1]:+.3f}}]"
        "<br>value %{customdata[2]:.3f}, n = %{customdata[3]}<extra></extra>",
    )
