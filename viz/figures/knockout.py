"""Figures of `attention_knockout` and `attention_knockout_run`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.figures.patching import change_panel
from mmprobe.viz.label_comparison import (
    comparison_panel,
    difference_variables,
    format_counts,
    format_notes,
    lines_by_label,
)
from mmprobe.viz.panel import REFERENCE_LINE, Panel, apply_layout


def panels(ds: xr.Dataset) -> list[Panel]:
    if "change_by_step" in ds:
        title = f"Change of the answer without attention to {ds.attrs['group']} tokens, sample {ds.attrs['sample']}"
        return [change_panel(ds, title, f"Attention knockout, {_format_window(ds)}.")]
    shown = [_layer_panel(ds)]
    if "note" not in ds.attrs:
        plots = {"nat per token": difference_variables(ds)}
        shown.append(comparison_panel(ds, "effect of attention knockout", plots))
    return shown


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
