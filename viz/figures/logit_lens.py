"""Figures of `logit_lens`, for one answer and for a run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.panel import Panel, styled

_TITLES = {
    "logprob": "log-probability of the token, nat",
    "entropy": "entropy, nat",
    "first_share": "share of steps it is first",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    if "top_token" in ds:
        return [_one_answer(ds)]
    found = [_by_layer(ds)]
    if "note" not in ds.attrs:
        names = {"low": "difference_low", "high": "difference_high"}
        names |= {name: name for name in ("difference", "effect", "p_holm")}
        parts = [
            (
                title,
                ds["layer"],
                {name: ds[variable].sel(measure=measure) for name, variable in names.items()},
            )
            for measure, title in _TITLES.items()
        ]
        found.append(comparison(ds, "what the layers say", parts))
    return found


def _by_layer(ds: xr.Dataset) -> Panel:
    figure = make_subplots(1, len(_TITLES), subplot_titles=list(_TITLES.values()), horizontal_spacing=0.08)
    for column, name in enumerate(_TITLES, 1):
        lines = lines_by_label(ds, f"{name}_by_label", "label", ds["n_label"], column == 1)
        figure.add_traces(lines, rows=1, cols=column)
    figure.update_xaxes(title="layer")
    return Panel(
        "What each layer would have said",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"}),
        "The residual stream after each layer through the final norm and the unembedding (logit lens): the "
        "log-probability of the token that was generated, the entropy of the distribution, and how often that token is "
        "the most likely one. Mean over each answer's steps, then over samples, with its 95 % bootstrap interval: "
        f"{counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. {remarks(ds)}".strip(),
    )


def _one_answer(ds: xr.Dataset) -> Panel:
    steps = [f"{step} {text}" for step, text in enumerate(ds["token"].values.tolist())]
    listed = [
        ["<br>".join(f"{text!r} {value:.2f}" for text, value in zip(*both, strict=True)) for both in of_layer]
        for of_layer in (
            zip(texts, values, strict=True)
            for texts, values in zip(
                ds["top_token"].transpose("layer", "step", "top").values.tolist(),
                ds["top_logprob"].transpose("layer", "step", "top").values.tolist(),
                strict=True,
            )
        )
    ]
    heatmap = go.Heatmap(
        x=steps,
        y=ds["layer"].values,
        z=ds["logprob"].transpose("layer", "step").values,
        zmax=0,
        colorscale="Viridis",
        colorbar={"title": "nat", "thickness": 10},
        text=ds["top_token"].isel(top=0).transpose("layer", "step").values,
        texttemplate="%{text}" if len(steps) <= 32 else None,
        customdata=np.array(listed),
        hovertemplate="step %{x}, layer %{y}: %{z:.2f} nat<br>most likely:<br>%{customdata}<extra></extra>",
    )
    depth = go.Scatter(
        x=steps,
        y=ds["depth"].values,
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 14, "color": "#d1495b", "line": {"width": 3}},
        hovertemplate="step %{x}: first from layer %{y} on<extra></extra>",
    )
    figure = styled(go.Figure([heatmap, depth]), height=160 + 26 * ds.sizes["layer"])
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    figure.update_yaxes(title="layer")
    return Panel(
        f"What each layer would have said in sample {ds.attrs['sample']}",
        figure,
        "Colour: log-probability of the token that was generated, read from the residual stream after each layer by "
        "the final norm and the unembedding (logit lens); text: the most likely token there. Red: the layer from "
        f"which on the generated token is the most likely one. One answer, {ds.attrs['model']}: {ds.attrs['answer']!r}.",
    )
