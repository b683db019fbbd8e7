"""Figures of `sublayer_transitions`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.panel import Panel, styled

_TITLES = {"cos_mha": "attention: cosine", "cos_ffn": "FFN: cosine", "kl": "conflict: KL, nat"}
_NORM_TITLES = {"norm_mha": "attention", "norm_ffn": "FFN"}


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_by_layer(ds), _by_step(ds)]
    if "norm_mha" in ds:
        found.append(_norms(ds))
    if "note" not in ds.attrs:
        found.append(_compared(ds))
    return found


def _by_layer(ds: xr.Dataset) -> Panel:
    return Panel(
        "What attention and FFN do to the residual stream, by layer",
        _lines(ds, _TITLES),
        "Cosine of the stream before and after each sublayer (1 leaves its direction as it is), and the KL divergence "
        "of the softmaxed attention update from the FFN update. Mean over each answer's steps, then over samples, "
        f"with its 95 % bootstrap interval: {counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. {remarks(ds)}".strip(),
    )


def _norms(ds: xr.Dataset) -> Panel:
    figure = _lines(ds, _NORM_TITLES).update_yaxes(rangemode="tozero")
    return Panel(
        "Length of what each sublayer adds",
        figure.update_yaxes(title="length of the update", col=1),
        "Mean length of the update over each answer's steps, then over samples, with its 95 % bootstrap interval: "
        f"{counts(ds['n_label'], 'sample')}. From streams as they are stored, in half precision if nothing else was asked for.",
    )


def _lines(ds: xr.Dataset, titles: dict[str, str]) -> go.Figure:
    figure = make_subplots(1, len(titles), subplot_titles=list(titles.values()), horizontal_spacing=0.08)
    for column, name in enumerate(titles, 1):
        lines = lines_by_label(ds, f"{name}_by_label", "label", ds["n_label"], column == 1)
        figure.add_traces(lines, rows=1, cols=column)
    figure.update_xaxes(title="layer")
    return styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"})


def _by_step(ds: xr.Dataset) -> Panel:
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
        "The same, by layer and step",
        styled(figure),
        f"Mean over the samples that reach a step: n = {int(n[0])} at the first, {int(n[steps - 1])} at the last one shown. "
        "Steps reached by a single sample are left out where others are there.",
    )


def _compared(ds: xr.Dataset) -> Panel:
    names = {"low": "difference_low", "high": "difference_high"}
    names |= {name: name for name in ("difference", "effect", "p_holm")}
    parts = [
        (title, ds["layer"], {name: ds[variable].sel(measure=measure) for name, variable in names.items()})
        for measure, title in _TITLES.items()
    ]
    return comparison(ds, "sublayer transitions", parts)
