"""Figures of `attribution`: maps on the images' grids, or bars of the prompt's groups, for one answer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import format_number
from mmprobe.viz.panel import GROUP_COLOURS, LABEL_COLOURS, Panel, apply_layout

_METHODS = {
    "occlusion": "Occlusion of one visual token or block at a time",
    "integrated_gradients": "Integrated gradients on the embeddings of the visual tokens",
    "feature_ablation": "Ablation of whole groups of tokens",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_group_panel(ds)] if "group_attribution" in ds else [_map_panel(ds)]


def _map_panel(ds: xr.Dataset) -> Panel:
    """Draw the sum over the steps: each token's part in the log-probability of the answer."""
    total = ds["attribution"].sum("step", skipna=False)
    views, sources = ds.sizes["image"], ds["source"].values.tolist()
    largest = float(np.nanmax(np.abs(total.values), initial=0)) or 1.0
    several_views = views > len(set(sources))
    titles = [
        f"image {source}" + (f", view {view}" if several_views else "") for view, source in enumerate(sources)
    ]
    figure = make_subplots(1, views, subplot_titles=titles, horizontal_spacing=0.3 / views)
    for view in range(views):
        rows, columns = ds["grid"].values[view].tolist()
        figure.add_trace(
            go.Heatmap(
                z=total.values[view, :rows, :columns],
                zmin=-largest,
                zmax=largest,
                colorscale="RdBu_r",
                showscale=view == views - 1,
                colorbar={"title": "nat", "thickness": 10},
                hovertemplate="row %{y}, column %{x}: %{z:+.3f} nat<extra></extra>",
            ),
            row=1,
            col=view + 1,
        )
    figure.update_xaxes(constrain="domain", showticklabels=False)
    figure.update_yaxes(autorange="reversed", constrain="domain", showticklabels=False)
    for view in range(views):  # cells keep the shape that they have in the image
        (rows, columns), (_, _, width, height) = ds["grid"].values[view], ds["box"].values[view]
        ratio = height * columns / (width * rows)
        figure.update_yaxes(scaleanchor=figure.data[view].xaxis, scaleratio=ratio, col=view + 1)
    return Panel(
        f"Attribution of the answer to image patches, sample {ds.attrs['sample']}",
        apply_layout(figure),
        _write_caption(ds),
    )


def _group_panel(ds: xr.Dataset) -> Panel:
    names = [f"{name} ({int(n)})" for name, n in zip(ds["group"].values, ds["n_tokens"].values, strict=True)]
    bars = go.Bar(
        x=ds["group_attribution"].sum("step", skipna=False).values,
        y=names,
        orientation="h",
        marker={
            "color": [GROUP_COLOURS.get(name, LABEL_COLOURS["all"]) for name in ds["group"].values.tolist()]
        },
        hovertemplate="%{y}: %{x:+.3f} nat<extra></extra>",
    )
    figure = apply_layout(go.Figure(bars), height=120 + 36 * len(names))
    figure.update_xaxes(title="log-probability lost without them, nat")
    figure.update_yaxes(autorange="reversed")
    return Panel(
        f"Attribution of the answer to parts of the prompt, sample {ds.attrs['sample']}",
        figure,
        _write_caption(ds),
    )


def _write_caption(ds: xr.Dataset) -> str:
    steps = ds.sizes["step"]
    loss = float((ds["logprob"] - ds["logprob_baseline"]).sum())
    return (
        f"{_METHODS[ds.attrs['method']]}. Baseline: {ds.attrs['baseline']}. Sum over {steps} "
        f"step{'' if steps == 1 else 's'} of one answer of {ds.attrs['model']}: {ds.attrs['answer']!r}. Without all of "
        f"these tokens, the log-probability falls by {format_number(loss)} nat. At each step, the sum of the attributions differs "
        f"from the loss by at most {format_number(float(ds['delta'].max()))} nat."
    )
