"""Figures of `residual_drift`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.panel import Panel, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_means(ds), _every_pair(ds)]
    if "note" not in ds.attrs:
        forms = [("step means (the authors')", ""), ("same step", "_aligned")]
        parts = [(title, ds["layer"], _of_form(ds, suffix)) for title, suffix in forms]
        found.append(comparison(ds, "cosine of paired answers", parts, "pairs"))
    return found


def _of_form(ds: xr.Dataset, suffix: str) -> dict[str, xr.DataArray]:
    """The comparison of one form, by the names of the plain one."""
    ends = {"difference": "difference{}", "low": "difference{}_low", "high": "difference{}_high"}
    return {
        name: ds[pattern.format(suffix)]
        for name, pattern in (ends | {"effect": "effect{}", "p_holm": "p_holm{}"}).items()
    }


def _means(ds: xr.Dataset) -> Panel:
    titles = ("of the mean over steps (the authors' form)", "mean over the same steps")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    for column, name in enumerate(("cosine_mean", "cosine_aligned_mean"), 1):
        figure.add_traces(lines_by_label(ds, name, "faithful", ds["n"], column == 1), rows=1, cols=column)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="cosine of the two answers", col=1)
    steps = ds["n_steps"].values
    return Panel(
        "How far the answers to opposite questions part",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"}),
        f"Cosine of the residual streams ({ds.attrs['stream']} of each layer) of the answers to 'same?' and 'different?' "
        f"over the same pictures; 1 is the same direction. Mean over pairs with its 95 % bootstrap interval: "
        f"{counts(ds['n'], 'pair')}, {ds.attrs['model']}. A pair is unfaithful if either answer is. Right: over the "
        f"{_range(steps)} steps that both answers have. {remarks(ds)}".strip(),
    )


def _range(values: np.ndarray) -> str:
    return str(values.min()) if values.min() == values.max() else f"{values.min()} to {values.max()}"


def _every_pair(ds: xr.Dataset) -> Panel:
    figure = go.Figure(
        go.Heatmap(
            x=ds["layer"].values,
            y=[str(name) for name in ds["pair"].values],
            z=ds["cosine"].values,
            colorscale="Viridis",
            zmax=1,
            colorbar={"title": "cosine"},
            hovertemplate="pair %{y}, layer %{x}: %{z:.4f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="pair", type="category", autorange="reversed", nticks=24)
    return Panel(
        "Every pair",
        styled(figure),
        f"Cosine of the means over steps, for each of {ds.sizes['pair']} pairs, n = 1 a row. Where a row darkens, its "
        "two answers part.",
    )
