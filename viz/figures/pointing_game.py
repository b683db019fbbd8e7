"""Figures of `pointing_game`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import (
    GROUP_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    error_bars,
    format_notes,
    interval_line,
)

_MAPS = {"raw": "raw map, equation 18", "tam": "full map (TAM)"}


def panels(ds: xr.Dataset) -> list[Panel]:
    drawn = []
    if "hit_rate" in ds:
        drawn.append(_map_panel(ds))
    if "hit_rate_layer" in ds:
        drawn.append(_layer_panel(ds))
    if "hit_rate_head" in ds:
        drawn.append(_head_panel(ds))
    return drawn


def _map_panel(ds: xr.Dataset) -> Panel:
    figure, rates = go.Figure(), read_estimate(ds, "hit_rate")
    figure.add_scatter(
        x=[_MAPS[name] for name in ds["map"].values.tolist()],
        y=rates.value,
        mode="markers",
        error_y=error_bars(rates, symmetric=False, thickness=2, width=8),
        customdata=np.stack([rates.low, rates.high], -1),
        hovertemplate="%{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        marker={"color": GROUP_COLOURS["visual"], "size": 10},
    )
    _finish(figure, ds)
    figure.update_xaxes(type="category")
    return Panel("Pointing game: token activation maps", apply_layout(figure), _explain(ds))


def _layer_panel(ds: xr.Dataset) -> Panel:
    figure, rates = go.Figure(), read_estimate(ds, "hit_rate_layer")
    line = interval_line(
        ds["layer"].values,
        rates,
        GROUP_COLOURS["visual"],
        "layer %{x}: %{y:.3f}",
        name="attention, mean over heads",
    )
    figure.add_traces(line)
    _finish(figure, ds)
    figure.update_xaxes(title="layer")
    return Panel("Pointing game: attention by layer", apply_layout(figure), _explain(ds))


def _head_panel(ds: xr.Dataset) -> Panel:
    rates = read_estimate(ds, "hit_rate_head")
    figure = go.Figure(
        go.Heatmap(
            z=rates.value,
            x=ds["head"].values,
            y=ds["layer"].values,
            zmin=0,
            zmax=1,
            colorscale="Viridis",
            colorbar={"title": "hit rate"},
            customdata=np.stack([rates.low, rates.high], -1),
            hovertemplate="layer %{y}, head %{x}: %{z:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
    )
    figure.update_xaxes(title="head", dtick=1 if ds.sizes["head"] <= 32 else None)
    figure.update_yaxes(title="layer", autorange="reversed")
    flat = np.argsort(-rates.value.ravel(), kind="stable")[:5]
    places = [np.unravel_index(place, rates.value.shape) for place in flat]
    best = ", ".join(
        f"{ds['layer'].values[layer]}.{ds['head'].values[head]} ({rates[layer, head]:.2f})"
        for layer, head in places
    )
    text = f"Hit rate of each head's attention. The largest, as layer.head: {best}; the best of {rates.value.size} looks better than it is. "
    return Panel("Pointing game: attention by head", apply_layout(figure, height=420), text + _explain(ds))


def _finish(figure: go.Figure, ds: xr.Dataset) -> None:
    figure.add_hline(y=float(ds["chance"]), line=REFERENCE_LINE)
    figure.update_yaxes(title="hit rate", range=[-0.03, 1.05])


def _explain(ds: xr.Dataset) -> str:
    return (
        "A map hits if it peaks in a box of the thing that the word names (Zhang et al., 2016). Chance is the boxes' share of the "
        f"cells, {read_estimate(ds, 'chance'):.2f}. Shares of {int(ds['n_names'])} names in {ds.attrs['samples']} answers, "
        f"with 95 % intervals over {ds.attrs['sets']} sets of images, {ds.attrs['model']}. {format_notes(ds)}".strip()
    )
