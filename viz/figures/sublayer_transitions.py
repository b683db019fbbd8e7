"""Figures of `sublayer_transitions`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.compare import read_comparison
from mmprobe.viz.panel import (
    Panel,
    apply_layout,
    comparison_panel,
    format_counts,
    format_notes,
    lines_by_label,
    plots_by_label,
)

_TITLES = {"cos_mha": "attention: cosine", "cos_ffn": "FFN: cosine", "kl": "conflict: KL, nat"}
_NORM_TITLES = {"norm_mha": "attention", "norm_ffn": "FFN"}


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_layer_panel(ds), _step_panel(ds)]
    if "norm_mha" in ds:
        shown.append(_norm_panel(ds))
    if "note" not in ds.attrs:
        plots = {title: read_comparison(ds.sel(measure=measure)) for measure, title in _TITLES.items()}
        panel = comparison_panel(ds, "sublayer transitions", plots)
        shown.append(replace(panel, caption=f"{panel.caption} {_format_equivalence(ds)}"))
    return shown


def _format_equivalence(ds: xr.Dataset) -> str:
    """Return in words in which layers the transitions of the two groups are shown to be equal."""
    parts = []
    for name, title in (("cos_mha", "attention"), ("cos_ffn", "the FFN")):
        layers = ds["layer"].values[ds["p_equivalent"].sel(transition=name).values < 0.05]
        parts.append(f"{title}: {', '.join(map(str, layers)) or 'none'}")
    return (
        f"Layers whose cosines are equal within {ds.attrs['margin']:g} (two one-sided tests, p < 0.05): "
        f"{'; '.join(parts)}."
    )


def _layer_panel(ds: xr.Dataset) -> Panel:
    figure = _plot(ds, _TITLES)
    if "kl_median_by_label" in ds:  # not of an earlier version
        for line in lines_by_label(ds, "kl_median_by_label", "label", ds["n_label"], legend=False):
            if line.mode == "lines+markers":
                line.line.dash, line.hovertemplate = "dot", f"median over steps, {line.hovertemplate}"
                figure.add_trace(line, row=1, col=len(_TITLES))
    return Panel(
        "Effect of attention and FFN on the residual stream, by layer",
        figure,
        "Cosine between the residual stream before and after each sublayer; 1 means no change of direction. Conflict: KL "
        "divergence of the softmax of the attention update from the softmax of the FFN update; dotted: with the median over each "
        "answer's steps, which single steps with hundreds of nat do not rule. Mean over each answer's "
        f"steps, then over samples, with 95 % intervals over sets of images: {format_counts(ds['n_label'], 'sample')}, "
        f"{ds.attrs['model']}. {format_notes(ds)}".strip(),
    )


def _norm_panel(ds: xr.Dataset) -> Panel:
    figure = _plot(ds, _NORM_TITLES).update_yaxes(rangemode="tozero")
    return Panel(
        "Length of each sublayer's update",
        figure.update_yaxes(title="length of the update", col=1),
        "Norm of the update, mean over each answer's steps, then over samples, with 95 % intervals over sets of images: "
        f"{format_counts(ds['n_label'], 'sample')}. Computed from the stored streams, which are in half precision by "
        "default.",
    )


def _plot(ds: xr.Dataset, titles: dict[str, str]) -> go.Figure:
    of_variables = {f"{name}_by_label": title for name, title in titles.items()}
    return plots_by_label(ds, of_variables, "label", ds["n_label"])


def _step_panel(ds: xr.Dataset) -> Panel:
    n = ds["n_by_step"].sel(label="all").values
    steps = int(np.flatnonzero(n >= min(2, n.max()))[-1]) + 1
    shown = ds.isel(step=slice(0, steps)).sel(label="all")
    figure = make_subplots(1, 3, subplot_titles=list(_TITLES.values()), horizontal_spacing=0.12)
    edges = [axis.domain[1] for axis in figure.select_xaxes()]
    for column, name in enumerate(_TITLES, 1):
        figure.add_trace(
            go.Heatmap(
                x=shown["step"].values,
                y=shown["layer"].values,
                z=shown[f"{name}_by_step"].values,
                colorscale="Magma" if name == "kl" else "Viridis",
                colorbar={"x": edges[column - 1] + 0.005, "thickness": 8},
                customdata=np.tile(n[:steps], (shown.sizes["layer"], 1)),
                hovertemplate="layer %{y}, step %{x}: %{z:.3f}<br>n = %{customdata}<extra></extra>",
            ),
            row=1,
            col=column,
        )
    figure.update_xaxes(title="step (generated token)")
    figure.update_yaxes(title="layer", col=1)
    return Panel(
        "Effect of attention and FFN on the residual stream, by layer and step",
        apply_layout(figure),
        f"Mean over the samples that reach a step: n = {int(n[0])} at the first step, {int(n[steps - 1])} at the last "
        "shown. Steps that only one sample reaches are not shown, unless the run has one sample.",
    )
