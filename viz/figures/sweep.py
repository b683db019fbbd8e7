"""The figure of `sweep`: what is measured, over the values of a setting."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import Panel, apply_layout

MEASURES = ("accuracy", "attention", "loss", "seconds")


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return one panel with a plot for each measure."""
    titles = [str(ds[name].attrs["long_name"]) for name in MEASURES]
    figure = make_subplots(2, 2, subplot_titles=titles)
    for place, name in enumerate(MEASURES):
        bars = None
        if f"{name}_low" in ds:
            high, low = (np.nan_to_num(ds[f"{name}_{end}"] - ds[name]) for end in ("high", "low"))
            bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": -low}
        line = go.Scatter(
            x=ds["setting"].values,
            y=ds[name].values,
            error_y=bars,
            mode="lines+markers",
            showlegend=False,
            name=name,
        )
        figure.add_trace(line, row=place // 2 + 1, col=place % 2 + 1)
    figure.update_xaxes(title=ds.attrs["option"], type="category")
    note = f"{ds.attrs['benchmark']}, {ds.attrs['model']}; 95 % intervals over sets of images."
    return [Panel(f"A sweep of {ds.attrs['option']}", apply_layout(figure), note)]
