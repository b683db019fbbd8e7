"""Figure of `patch_residual`, and the figure of one answer that it shares with `attention_knockout`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.panel import Panel, apply_layout, escape_text


def panels(ds: xr.Dataset) -> list[Panel]:
    sample, source = ds.attrs["sample"], ds.attrs["source"]
    return [
        change_panel(
            ds,
            f"Change of the answer with the residual stream of another prompt, sample {sample}",
            f"The residual stream ({ds.attrs['stream']} of one layer) at the {ds.attrs['groups']} tokens comes from sample "
            f"{source}. The log-probability of the answer is {float(ds['logprob'].sum()):.2f} nat after its own prompt "
            f"and {float(ds['logprob_source'].sum()):.2f} nat after the other. Layers without effect come after the layers "
            "that read these tokens.",
        )
    ]


def change_panel(ds: xr.Dataset, title: str, caption: str) -> Panel:
    """Draw the change of each token's log-probability, layers against steps."""
    changes = ds["change_by_step"].transpose("layer", "step").values
    largest = float(np.nanmax(np.abs(changes), initial=0)) or 1.0
    heatmap = go.Heatmap(
        x=[f"{step} {escape_text(text)}" for step, text in enumerate(ds["token"].values.tolist())],
        y=ds["layer"].values,
        z=changes,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu",
        colorbar={"title": "nat", "thickness": 10},
        hovertemplate="step %{x}, layer %{y}: %{z:+.3f} nat<extra></extra>",
    )
    figure = apply_layout(go.Figure(heatmap), height=180 + 24 * ds.sizes["layer"])
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    figure.update_yaxes(title="layer")
    totals = ", ".join(
        f"{layer}: {change:+.2f}"
        for layer, change in zip(ds["layer"].values, ds["change"].values, strict=True)
    )
    return Panel(
        title,
        figure,
        f"{caption} Colour: change of each token's log-probability. Change of the whole answer by layer, in nat: "
        f"{totals}. One answer, {ds.attrs['model']}.",
    )
