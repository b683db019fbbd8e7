"""Figure of `calibration`: how often answers of each probability are right, and accuracy over coverage."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import LABEL_COLOURS, REFERENCE_LINE, Panel, apply_layout, error_bars, interval_line

_COLOUR = LABEL_COLOURS["faithful"]


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = make_subplots(
        1, 2, subplot_titles=["reliability", "accuracy over coverage"], horizontal_spacing=0.12
    )
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=REFERENCE_LINE, row=1, col=1)
    bins = ds.isel(bin=np.flatnonzero(ds["n"].values))
    accuracy = read_estimate(bins, "accuracy")
    points = go.Scatter(
        x=bins["confidence"].values,
        y=accuracy.value,
        error_y=error_bars(accuracy),
        mode="lines+markers",
        marker={"color": _COLOUR, "size": 4 + 16 * np.sqrt(bins["n"].values / max(1, ds.attrs["n"]))},
        line={"color": _COLOUR},
        customdata=np.stack([accuracy.low, accuracy.high, bins["n"].values], -1),
        hovertemplate="probability %{x:.2f}: accuracy %{y:.2f} [%{customdata[0]:.2f}, %{customdata[1]:.2f}], "
        "n = %{customdata[2]}<extra></extra>",
        showlegend=False,
    )
    figure.add_trace(points, row=1, col=1)
    kept, coverage = read_estimate(ds, "kept_accuracy"), ds["coverage"].values
    line = interval_line(coverage, kept, _COLOUR, mode="lines", showlegend=False)
    figure.add_traces(line, rows=1, cols=2)
    figure.update_xaxes(title="probability of the chosen answer", range=[0, 1], row=1, col=1)
    figure.update_xaxes(title="share of questions, surest first", range=[0, 1.02], row=1, col=2)
    figure.update_yaxes(title="share right", range=[0, 1.05])
    return [
        Panel(
            "Calibration",
            apply_layout(figure),
            f"{ds.attrs['n']} closed questions over {ds.attrs['sets']} sets of images. Left: the share of right answers "
            "among those of like probability; the dotted line is perfect calibration, a point's size its number of "
            "questions. Right: accuracy of the surest part. 95 % intervals over sets of images.",
        )
    ]
