"""Figure of `direct_logit_attribution`: the largest components of each token's logit."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.panel import Panel, apply_layout, escape_text

_SHOWN = 24  # components with the largest shares


def panels(ds: xr.Dataset) -> list[Panel]:
    size = np.abs(ds["share"].values).max(1)
    order = np.sort(np.argsort(-size, kind="stable")[:_SHOWN])
    shown = ds.isel(component=order)
    largest = float(np.abs(shown["share"].values).max(initial=0)) or 1.0
    heatmap = go.Heatmap(
        x=[f"{step} {escape_text(text)}" for step, text in enumerate(ds["token"].values.tolist())],
        y=shown["component"].values,
        z=shown["share"].values,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu_r",
        colorbar={"title": "logit", "thickness": 10},
        hovertemplate="step %{x}, %{y}: %{z:+.3f}<extra></extra>",
    )
    figure = apply_layout(go.Figure(heatmap), height=180 + 20 * len(order))
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    figure.update_yaxes(autorange="reversed")
    contrast = f" minus that of {ds.attrs['contrast']!r}" if ds.attrs["contrast"] else ""
    return [
        Panel(
            f"What components add to the answer's logits, sample {ds.attrs['sample']}",
            figure,
            f"Direct logit attribution: each component's part of the logit of each token{contrast}, with the scale of the "
            f"final norm kept as it is. All {ds.attrs['n']} components sum to the logit; the {len(order)} largest are "
            f"shown. What a component does for later components is not part of it. One answer, {ds.attrs['model']}.",
        )
    ]
