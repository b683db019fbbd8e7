"""Figure of a comparison of methods."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import qualitative

from mmprobe.viz.panel import Panel, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_differences(ds)]


def _differences(ds: xr.Dataset) -> Panel:
    """Paired differences to the first method, of metrics where any method has one."""
    baseline = ds.attrs["baseline"]
    others = [str(name) for name in ds["contender"].values if name != baseline]
    known = ds["difference_low"].sel(contender=others).notnull().any("contender").values
    shown = ds.isel(metric=np.flatnonzero(known))
    figure = go.Figure()
    for number, method in enumerate(others):
        of = shown.sel(contender=method)
        middle, low, high = (of[f"difference{end}"].values for end in ("", "_low", "_high"))
        figure.add_scatter(
            x=middle,
            y=of["metric"].values,
            name=method,
            mode="markers",
            marker={"symbol": number, "size": 9, "color": qualitative.Safe[number % len(qualitative.Safe)]},
            error_x={"array": high - middle, "arrayminus": middle - low, "thickness": 1.2},
            customdata=np.stack([low, high, of["value"].values, of["n_paired"].values], -1),
            hovertemplate=f"{method}, %{{y}}: %{{x:+.3f}} [%{{customdata[0]:+.3f}}, %{{customdata[1]:+.3f}}]"
            "<br>value %{customdata[2]:.3f}, n = %{customdata[3]}<extra></extra>",
        )
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_layout(scattermode="group")
    figure.update_xaxes(title=f"difference to {baseline}")
    figure.update_yaxes(autorange="reversed")
    height = 160 + 16 * max(1, shown.sizes["metric"]) * max(1, len(others))
    return Panel(
        f"Methods against {baseline}",
        styled(figure, height=min(height, 2400)).update_layout(margin={"l": 240}),
        f"Mean difference of each sample's score to that of {baseline}, with its 95 % paired bootstrap interval; hover for "
        f"values and n. {ds.attrs['model']}.",
    )
