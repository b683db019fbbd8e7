"""Figures of `attention_ratio`."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.compare import read_comparison
from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import (
    GROUP_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    comparison_panel,
    format_counts,
    format_notes,
    interval_line,
    lines_by_label,
)

_RANDOM_COLOUR = "#888888"


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_ratio_panel(ds)]
    if "note" not in ds.attrs:
        shown.append(comparison_panel(ds, "attention ratio", {"": read_comparison(ds)}))
    if "head_ratio" in ds:
        shown.append(_head_panel(ds))
    return [*shown, _sink_panel(ds)]


def _ratio_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "ratio_by_label", "label", ds["n_label"]))
    layers = ds["layer"].values
    random = read_estimate(ds.sel(label="all"), "random_by_label")
    hover = "random regions, layer %{x}: %{y:.3f}"
    figure.add_traces(
        interval_line(layers, random, _RANDOM_COLOUR, hover, name="random regions", mode="lines", dash="dot")
    )
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="attention on regions / elsewhere", rangemode="tozero")
    return Panel(
        "Attention on the changed regions against the rest of the images",
        apply_layout(figure),
        "Mean attention per visual token on the changed regions, divided by the mean elsewhere in the images, over an "
        "answer's steps. A ratio of 1 means no preference. Means over samples with 95 % intervals over sets of images: "
        f"{format_counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. Dotted: {ds.attrs['draws']} random regions "
        f"of the same size. {format_notes(ds)}".strip(),
    )


def _head_panel(ds: xr.Dataset) -> Panel:
    ratio = ds["head_ratio"].values
    with np.errstate(divide="ignore"):
        powers = np.log10(ratio)  # a head with an attention sink may have a ratio of thousands
    ticks = np.arange(np.floor(np.min(powers, initial=0, where=np.isfinite(powers))), 10)
    figure = go.Figure(
        go.Heatmap(
            z=np.where(np.isfinite(powers), powers, np.nan),
            customdata=ratio,
            x=ds["head"].values,
            y=ds["layer"].values,
            colorscale="Viridis",
            colorbar={"title": "ratio", "tickvals": ticks, "ticktext": [f"{10**tick:g}" for tick in ticks]},
            hovertemplate="layer %{y}, head %{x}: %{customdata:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="head", dtick=1 if ds.sizes["head"] <= 32 else None)
    figure.update_yaxes(title="layer", autorange="reversed")
    heads = zip(ds["head_layer"].values[:5].tolist(), ds["head_number"].values[:5].tolist(), strict=True)
    top = ", ".join(
        f"{layer}.{head} ({format_number(float(ds['head_ratio'].sel(layer=layer, head=head)))})"
        for layer, head in heads
    )
    return Panel(
        "Visual heads",
        apply_layout(figure, height=420),
        f"Attention ratio of each head, mean over {ds.sizes['sample']} samples. The largest, as layer.head: {top}."
        f"{_head_stability(ds)}",
    )


def _head_stability(ds: xr.Dataset) -> str:
    """Return the stability of the ranking in words, or nothing if there is one set of images or one head."""
    correlation = read_estimate(ds, "head_stability")
    if math.isnan(correlation.value):
        return ""
    return (
        " Rank correlation of the heads between two halves of the data that share no images: "
        f"{correlation:.2f}."
    )


def _sink_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    layers = ds["layer"].values
    lines = {
        "border_share": ("border patches, of attention on images", GROUP_COLOURS["visual"], "solid"),
        "leading_share": ("before the first image, of all attention", GROUP_COLOURS["system"], "dash"),
    }
    for name, (title, colour, dash) in lines.items():
        if name in ds:
            mean = read_estimate(ds, name)
            line = interval_line(layers, mean, colour, "layer %{x}: %{y:.3f}", name=title, dash=dash)
            figure.add_traces(line)
    figure.add_hline(y=float(ds["border_area"]), line=REFERENCE_LINE)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="share of attention", range=[0, 1.02])
    return Panel(
        "Attention sinks",
        apply_layout(figure),
        "Share of the attention on images that falls on their border patches. Dotted: the share of patches on the "
        f"border, {format_number(float(ds['border_area']), '.0%')}. Also the share of all attention that falls on tokens before the "
        f"first image. Means over {ds.sizes['sample']} samples with 95 % intervals over sets of images.",
    )
