"""Figures of `patch_residual`, and what it shares with `attention_knockout`: one answer, changed layer by layer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.panel import Panel, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    source = float(ds["logprob_source"].sum())
    return [
        of_one_answer(
            ds,
            f"What the answer of sample {ds.attrs['sample']} loses with another prompt's residual stream",
            f"The residual stream ({ds.attrs['stream']} of one layer) at the {ds.attrs['groups']} tokens is that of "
            f"sample {ds.attrs['source']}. The answer has {float(ds['logprob'].sum()):.2f} nat behind its own prompt, "
            f"{source:.2f} nat behind the other. Layers from which on nothing changes come after those tokens were read.",
        )
    ]


def of_one_answer(ds: xr.Dataset, title: str, caption: str) -> Panel:
    """Change of each token's log-probability, layers against steps."""
    changes = ds["change_by_step"].transpose("layer", "step").values
    largest = float(np.nanmax(np.abs(changes), initial=0)) or 1.0
    steps = [f"{step} {text}" for step, text in enumerate(ds["token"].values.tolist())]
    heatmap = go.Heatmap(
        x=steps,
        y=ds["layer"].values,
        z=changes,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu",
        colorbar={"title": "nat", "thickness": 10},
        hovertemplate="step %{x}, layer %{y}: %{z:+.3f} nat<extra></extra>",
    )
    figure = styled(go.Figure(heatmap), height=180 + 24 * ds.sizes["layer"])
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    figure.update_yaxes(title="layer")
    whole = ", ".join(
        f"{layer}: {change:+.2f}"
        for layer, change in zip(ds["layer"].values, ds["change"].values, strict=True)
    )
    return Panel(
        title,
        figure,
        f"{caption} Colour: change of each token's log-probability; of the whole answer, by layer, in nat: {whole}. "
        f"One answer, {ds.attrs['model']}.",
    )
