"""Figure of a comparison of methods."""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from mmprobe.viz.panel import Panel, styled

_PART = re.compile(
    r"\[|_unparsed_0$"
)  # metrics of a part of the samples, and those that count what was not read
_LARGE = 2  # values beyond it would hide differences of shares


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_differences(ds)]


def _differences(ds: xr.Dataset) -> Panel:
    """Paired differences to the first method, of the metrics of all samples where any method has one.

    Metrics of hundreds, such as MME's scores, have an axis of their own.
    """
    baseline = ds.attrs["baseline"]
    others = [str(name) for name in ds["contender"].values if name != baseline]
    known = ds["difference_low"].sel(contender=others).notnull().any("contender").values
    of_all = np.array([not _PART.search(str(name)) for name in ds["metric"].values], bool)
    large = (np.abs(ds["value"].transpose("metric", "contender").values) > _LARGE).any(1)
    rows = [rows for part in (~large, large) if (rows := np.flatnonzero(known & of_all & part)).size]
    figure = make_subplots(
        len(rows) or 1,
        1,
        row_heights=[len(row) for row in rows] or None,
        vertical_spacing=0.08,
    )
    for row, places in enumerate(rows, 1):
        shown = ds.isel(metric=places)
        for number, method in enumerate(others):
            trace = _points(shown.sel(contender=method), method, number).update(showlegend=row == 1)
            figure.add_trace(trace, row=row, col=1)
        figure.update_xaxes(title=f"difference to {baseline}", row=row, col=1)
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_layout(scattermode="group")
    figure.update_yaxes(autorange="reversed", dtick=1)
    height = 160 * max(1, len(rows)) + 16 * sum(map(len, rows)) * max(1.2, len(others))
    return Panel(
        f"Methods against {baseline}",
        styled(figure, height=min(round(height), 6000)).update_layout(margin={"l": 240}),
        f"Each metric minus that of {baseline}, both of the samples that both have, with its 95 % paired bootstrap "
        f"interval; hover for values and n. {ds.attrs['model']}.",
    )


def _points(of: xr.Dataset, method: str, number: int) -> go.Scatter:
    """One method's differences (metric) with their intervals."""
    middle, low, high = (of[f"difference{end}"].values for end in ("", "_low", "_high"))
    return go.Scatter(
        x=middle,
        y=of["metric"].values,
        name=method,
        legendgroup=method,
        mode="markers",
        marker={"symbol": number, "size": 9, "color": qualitative.Safe[number % len(qualitative.Safe)]},
        error_x={"array": high - middle, "arrayminus": middle - low, "thickness": 1.2},
        customdata=np.stack([low, high, of["value"].values, of["n_paired"].values], -1),
        hovertemplate=f"{method}, %{{y}}: %{{x:+.3f}} [%{{customdata[0]:+.3f}}, %{{customdata[1]:+.3f}}]"
        "<br>value %{customdata[2]:.3f}, n = %{customdata[3]}<extra></extra>",
    )
