"""Figures of the contents of a data set of pairs."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.panel import Panel, apply_layout

_COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#a9adb3")


def panels(ds: xr.Dataset) -> list[Panel]:
    n_pairs, n_changes = int(ds["pairs"].sum()), int(ds["changes"].sum())
    return [
        Panel(
            "Pairs by number of differences",
            _stack(ds["pairs"], "differences", "difficulty", "pairs"),
            f"Number of pairs by their number of differences and difficulty. {n_pairs} pairs.",
        ),
        Panel(
            "Differences by difficulty",
            _stack(ds["changes"].sum("differences"), "difficulty", "type", "differences"),
            f"Number of differences of each type, by the difficulty of their pair. {n_changes} differences.",
        ),
        Panel(
            "Differences by their number in a pair",
            _stack(ds["changes"].sum("difficulty"), "differences", "type", "differences"),
            f"Number of differences of each type, by how many their pair has. {n_changes} differences.",
        ),
    ]


def _stack(numbers: xr.DataArray, across: str, by: str, unit: str) -> go.Figure:
    """Draw numbers [across, by] as stacked bars."""
    names = [str(name) for name in numbers[across].values]
    bars = [
        go.Bar(x=names, y=numbers.sel({by: member}).values, name=str(member), marker_color=colour)
        for member, colour in zip(numbers[by].values, _COLOURS, strict=False)
    ]
    figure = go.Figure(bars).update_layout(barmode="stack")
    figure.update_xaxes(
        title=across if across == "difficulty" else "differences in the pair", type="category"
    )
    figure.update_yaxes(title=unit, rangemode="tozero")
    return apply_layout(figure)
