"""Figures of `attention_knockout` and `attention_routes`, of one answer and of a run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.compare import read_comparison
from mmprobe.stats.estimate import format_number
from mmprobe.viz.panel import (
    REFERENCE_LINE,
    Panel,
    apply_layout,
    comparison_panel,
    describe_answer,
    escape_text,
    format_counts,
    format_notes,
    lines_by_label,
)


def panels(ds: xr.Dataset) -> list[Panel]:
    if "change_by_step" in ds:
        title = f"Change of the answer without attention to {ds.attrs['group']} tokens, sample {ds.attrs['sample']}"
        return [_change_panel(ds, title, f"Attention knockout, {_format_window(ds)}.")]
    shown = [_layer_panel(ds)]
    if "note" not in ds.attrs:
        plots = {"nat per token": read_comparison(ds)}
        shown.append(comparison_panel(ds, "effect of attention knockout", plots))
    return shown


def route_panels(ds: xr.Dataset) -> list[Panel]:
    """Draw the loss by source and query, one map a window of layers."""
    of_run = "sample" in ds.dims
    replacement = {
        "counterfactual": "the same tokens of a prompt with other images are seen in their place",
        "mean": "their values are the mean of their group's",
        "block": "nothing is seen in their place",
    }[ds.attrs["replacement"]]
    effect = ds["effect"].transpose("window", "from", "to")
    top = effect.where(effect == effect.max(), drop=True)
    strongest = f"{top['from'].values[0]} to {top['to'].values[0]} in layers {top['window'].values[0]}"
    measured = (
        f"Mean loss a token over {ds.attrs['samples']} answers, {ds.attrs['sets']} sets of images; "
        "hover for 95 % intervals over sets of images"
        if of_run
        else f"Loss of one answer of {ds.attrs['n']} tokens"
    )
    return [
        Panel(
            "Routes of attention" + ("" if of_run else f", sample {ds.attrs['sample']}"),
            _draw_routes(ds, effect),
            f"{measured}, when the tokens below (to) cannot read the tokens at the left (from) in some layers; "
            f"{replacement}. Above 0: the answer loses, so the way is used. Largest: {strongest}, "
            f"{format_number(float(effect.max()))} nat; {ds.attrs['model'] if of_run else describe_answer(ds)}.",
        )
    ]


def _draw_routes(ds: xr.Dataset, effect: xr.DataArray) -> go.Figure:
    columns = min(4, effect.sizes["window"])
    rows = -(-effect.sizes["window"] // columns)
    titles = [f"layers {window}" for window in effect["window"].values]
    figure = make_subplots(
        rows, columns, subplot_titles=titles, shared_yaxes=True, shared_xaxes=True, horizontal_spacing=0.02
    )
    for number, window in enumerate(effect["window"].values):
        values = effect.sel(window=window).values
        ends = [ds[name].sel(window=window).values for name in ("effect_low", "effect_high") if name in ds]
        interval = " [%{customdata[0]:+.3f}, %{customdata[1]:+.3f}]" if ends else ""
        heatmap = go.Heatmap(
            x=effect["to"].values,
            y=effect["from"].values,
            z=values,
            coloraxis="coloraxis",
            customdata=np.stack(ends, -1) if ends else None,
            hovertemplate=f"%{{y}} to %{{x}}, layers {window}: %{{z:+.3f}}{interval} nat<extra></extra>",
        )
        figure.add_trace(heatmap, row=number // columns + 1, col=number % columns + 1)
    largest = float(np.nanmax(np.abs(effect.values), initial=0)) or 1.0
    figure.update_layout(
        coloraxis={
            "colorscale": "RdBu_r",
            "cmin": -largest,
            "cmax": largest,
            "colorbar": {"title": "nat", "thickness": 10},
        }
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_yaxes(title="from", col=1)
    figure.update_xaxes(title="to", tickangle=-60, row=rows)
    return apply_layout(figure, height=150 + rows * (60 + 26 * effect.sizes["from"]))


def _layer_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "change_by_label", "label", ds["n_label"]))
    figure.add_hline(y=0, line=REFERENCE_LINE)
    figure.update_xaxes(title="layer (centre of the window)")
    figure.update_yaxes(title="change of log-probability, nat per token")
    group, without = ds.attrs["group"], ds.attrs["n_without_group"]
    return Panel(
        f"Attention knockout of {group} tokens by layer",
        apply_layout(figure),
        f"Attention knockout, {_format_window(ds)}: the queries of the answer cannot attend to {group} tokens in these "
        "layers, and the model reads its own answer again. Mean over each answer's tokens, then over samples, with "
        f"95 % intervals over sets of images: {format_counts(ds['n_label'], 'sample')}, {ds.attrs['model']}."
        f"{f' Samples without such tokens: {without}.' if without else ''} {format_notes(ds)}".strip(),
    )


def _format_window(ds: xr.Dataset) -> str:
    layers = ds.attrs["window"]
    return "one layer at a time" if layers == 1 else f"{layers} layers at a time"


def _change_panel(ds: xr.Dataset, title: str, caption: str) -> Panel:
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
        f"{layer}: {format_number(change, '+')}"
        for layer, change in zip(ds["layer"].values, ds["change"].values, strict=True)
    )
    return Panel(
        title,
        figure,
        f"{caption} Colour: change of each token's log-probability. Change of the whole answer by layer, in nat: "
        f"{totals}. One answer, {ds.attrs['model']}.",
    )
