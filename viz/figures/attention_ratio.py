"""Figures of `attention_ratio`."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.panel import GROUP_COLOURS, Panel, band, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_ratio(ds)]
    if "note" not in ds.attrs:
        names = ("effect", "p_holm")
        parts = {name: ds[name] for name in ("difference", *names)}
        ends = {end: ds[f"difference_{end}"] for end in ("low", "high")}
        found.append(comparison(ds, "attention ratio", [("", ds["layer"], parts | ends)]))
    if "head_ratio" in ds:
        found.append(_heads(ds))
    return [*found, _sinks(ds)]


def _ratio(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "ratio_by_label", "label", ds["n_label"]))
    random = ds.sel(label="all")
    layers = ds["layer"].values
    figure.add_traces(
        [
            *band(
                layers, random["random_by_label_low"].values, random["random_by_label_high"].values, "#888888"
            ),
            go.Scatter(
                x=layers,
                y=random["random_by_label"].values,
                mode="lines",
                name="random regions",
                line={"color": "#888888", "dash": "dot"},
                hovertemplate="random regions, layer %{x}: %{y:.3f}<extra></extra>",
            ),
        ]
    )
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="attention on regions / elsewhere", rangemode="tozero")
    return Panel(
        "Attention on what changed, against the rest of the pictures",
        styled(figure),
        "Mean attention on the visual tokens of the changed regions over that on the others, over an answer's steps; 1 is "
        f"what any place gets. Mean over samples with its 95 % bootstrap interval: {counts(ds['n_label'], 'sample')}, "
        f"{ds.attrs['model']}. Dotted: {ds.attrs['draws']} random regions of the same size. {remarks(ds)}".strip(),
    )


def _heads(ds: xr.Dataset) -> Panel:
    figure = go.Figure(
        go.Heatmap(
            z=ds["head_ratio"].values,
            x=ds["head"].values,
            y=ds["layer"].values,
            colorscale="Viridis",
            colorbar={"title": "ratio"},
            hovertemplate="layer %{y}, head %{x}: %{z:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="head", dtick=1 if ds.sizes["head"] <= 32 else None)
    figure.update_yaxes(title="layer", autorange="reversed")
    top = ", ".join(
        f"{layer}.{head} ({float(ds['head_ratio'].sel(layer=layer, head=head)):.1f})"
        for layer, head in zip(ds["head_layer"].values[:5].tolist(), ds["head_number"].values[:5].tolist(), strict=True)
    )  # fmt: skip
    return Panel(
        "Visual heads",
        styled(figure, height=420),
        f"The attention ratio of each head, mean over {ds.sizes['sample']} samples. The largest, as layer.head: {top}."
        f"{_stability(ds)}",
    )


def _stability(ds: xr.Dataset) -> str:
    """How stable the ranking is, in words; nothing where one set of pictures or one head cannot tell."""
    stable, low, high = (float(ds[f"head_stability{end}"]) for end in ("", "_low", "_high"))
    if math.isnan(stable):
        return ""
    return (
        " Ranks of the heads in two halves of the data, no pictures in both, correlate by "
        f"{stable:.2f} [{low:.2f}, {high:.2f}]."
    )


def _sinks(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    layers = ds["layer"].values
    names = {"border_share": ("on the border, of attention on pictures", GROUP_COLOURS["visual"], "solid"),
             "leading_share": ("before the first picture, of all attention", GROUP_COLOURS["system"], "dash")}  # fmt: skip
    for name, (title, colour, dash) in names.items():
        if name in ds:
            value, low, high = (ds[f"{name}{end}"].values for end in ("", "_low", "_high"))
            figure.add_traces(band(layers, low, high, colour))
            figure.add_scatter(
                x=layers,
                y=value,
                name=title,
                mode="lines+markers",
                line={"color": colour, "dash": dash},
                hovertemplate="layer %{x}: %{y:.3f}<extra></extra>",
            )
    figure.add_hline(y=float(ds["border_area"]), line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="share of attention", range=[0, 1.02])
    return Panel(
        "Attention sinks",
        styled(figure),
        "Share of the attention on the pictures that goes to their outermost patches, which hold "
        f"{float(ds['border_area']):.0%} of the patches (dotted), and of all attention that goes to what stands before the "
        f"first picture. Means over {ds.sizes['sample']} samples with 95 % bootstrap intervals.",
    )
