"""Figures of `attribution`: maps on the pictures' grids, or bars of the prompt's groups. One answer each."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import GROUP_COLOURS, LABEL_COLOURS, Panel, styled

_METHODS = {
    "occlusion": "occlusion, one visual token or block at a time",
    "integrated_gradients": "integrated gradients on the visual tokens' embeddings",
    "feature_ablation": "taking away whole groups of tokens",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_groups(ds)] if "group_attribution" in ds else [_maps(ds)]


def _maps(ds: xr.Dataset) -> Panel:
    """The sum over the steps, which is what the answer's own log-probability owes to each token."""
    total, views = ds["attribution"].sum("step", skipna=False), ds.sizes["image"]
    largest = float(np.nanmax(np.abs(total.values), initial=0)) or 1.0
    titles = [
        f"picture {source}" + (f", view {view}" if views > len(set(ds["source"].values.tolist())) else "")
        for view, source in enumerate(ds["source"].values.tolist())
    ]
    figure = make_subplots(1, views, subplot_titles=titles, horizontal_spacing=0.3 / views)
    for column in range(views):
        rows, columns = ds["grid"].values[column].tolist()
        figure.add_trace(
            go.Heatmap(
                z=total.values[column, :rows, :columns],
                zmin=-largest,
                zmax=largest,
                colorscale="RdBu_r",
                showscale=column == views - 1,
                colorbar={"title": "nat", "thickness": 10},
                hovertemplate="row %{y}, column %{x}: %{z:+.3f} nat<extra></extra>",
            ),
            row=1,
            col=column + 1,
        )
    figure.update_xaxes(constrain="domain", showticklabels=False)
    figure.update_yaxes(autorange="reversed", constrain="domain", showticklabels=False)
    for column in range(1, views + 1):  # cells of the shape that they have in the picture
        (rows, columns), (_, _, width, height) = (ds[name].values[column - 1] for name in ("grid", "box"))
        x = figure.data[column - 1].xaxis
        figure.update_yaxes(scaleanchor=x, scaleratio=height * columns / (width * rows), col=column)
    return Panel(
        f"What the answer owes to each patch, sample {ds.attrs['sample']}", styled(figure), _caption(ds)
    )


def _groups(ds: xr.Dataset) -> Panel:
    names = [f"{name} ({int(n)})" for name, n in zip(ds["group"].values, ds["n_tokens"].values, strict=True)]
    colours = [GROUP_COLOURS.get(name, LABEL_COLOURS["all"]) for name in ds["group"].values.tolist()]
    total = ds["group_attribution"].sum("step", skipna=False).values
    hover = "%{y}: %{x:+.3f} nat<extra></extra>"
    bars = go.Bar(x=total, y=names, orientation="h", marker={"color": colours}, hovertemplate=hover)
    figure = styled(go.Figure(bars), height=120 + 36 * len(names))
    figure.update_xaxes(title="log-probability lost without them, nat")
    figure.update_yaxes(autorange="reversed")
    return Panel(
        f"What the answer owes to each part of the prompt, sample {ds.attrs['sample']}", figure, _caption(ds)
    )


def _caption(ds: xr.Dataset) -> str:
    steps = ds.sizes["step"]
    lost = float((ds["logprob"] - ds["logprob_baseline"]).sum())
    return (
        f"Attribution by {_METHODS[ds.attrs['method']]}, baseline: {ds.attrs['baseline']}; summed over {steps} "
        f"step{'' if steps == 1 else 's'} of one answer, {ds.attrs['model']}: {ds.attrs['answer']!r}. With all of it "
        f"gone, the log-probability falls by {lost:.2f} nat; the parts add up to that within "
        f"{float(ds['delta'].max()):.2f} nat at every step."
    )
