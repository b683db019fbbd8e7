"""Figure of `token_activation`: the maps of the tokens with the largest peaks."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import Panel, apply_layout, escape_text

MAX_TOKENS = 6


def panels(ds: xr.Dataset) -> list[Panel]:
    if not ds.sizes["image"] or not ds.sizes["step"]:
        return []
    peaks = np.nan_to_num(ds["tam"].values).reshape(ds.sizes["step"], -1).max(1)
    steps = sorted(np.argsort(-peaks, kind="stable")[:MAX_TOKENS].tolist())
    views = ds.sizes["image"]
    figure = make_subplots(
        2 * views,
        len(steps),
        column_titles=[f"{escape_text(ds['token'].values[step]).strip() or '␣'} ({step})" for step in steps],
        row_titles=[f"{name} {view + 1}" for view in range(views) for name in ("full", "plain")],
        horizontal_spacing=0.02,
        vertical_spacing=min(0.03, 0.1 / views),  # tiled models have dozens of views; all gaps must fit
    )
    for view in range(views):
        for offset, (name, axis) in enumerate((("tam", "coloraxis"), ("raw", "coloraxis2"))):
            for column, step in enumerate(steps, 1):
                heat = _draw_map(ds[name].values[step, view], axis)
                figure.add_trace(heat, 2 * view + offset + 1, column)
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(visible=False, autorange="reversed", constrain="domain")
    for heat in figure.data:  # square cells on every map, although the grids differ
        figure.layout[heat.yaxis.replace("y", "yaxis")].scaleanchor = heat.xaxis
    bar = {"thickness": 10, "len": 0.45}
    apply_layout(figure, height=120 + 240 * views).update_layout(
        margin={"t": 56, "r": 96},
        coloraxis={"colorscale": "Viridis", "colorbar": bar | {"y": 0.78, "title": "full"}},
        coloraxis2={"colorscale": "Cividis", "colorbar": bar | {"y": 0.22, "title": "plain, logit"}},
    )
    return [
        Panel(
            f"Token activation maps of sample {ds.attrs['sample']}",
            figure,
            f"The {len(steps)} of {ds.sizes['step']} generated tokens with the largest peaks, with their steps in "
            f"brackets, on the grids of {views} view{'' if views == 1 else 's'}. Plain: the token's logit at each patch "
            "(equation 18). Full: minus what earlier words account for, scaled with the token's scores in the text, "
            "and smoothed. One answer, so no interval.",
        )
    ]


def _draw_map(values: np.ndarray, coloraxis: str) -> go.Heatmap:
    """Draw the finite part of a map [y, x]."""
    finite = np.isfinite(values)
    rows, columns = int(finite.any(1).sum()), int(finite.any(0).sum())
    return go.Heatmap(
        z=values[:rows, :columns],
        coloraxis=coloraxis,
        hovertemplate="row %{y}, column %{x}: %{z:.4f}<extra></extra>",
    )
