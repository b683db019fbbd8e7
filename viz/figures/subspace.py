"""Figure of `align_subspace`: interchange accuracy of the learnt subspace and of its controls."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import LABEL_COLOURS, REFERENCE_LINE, Panel, apply_layout, error_bars, escape_text


def panels(ds: xr.Dataset) -> list[Panel]:
    names = ds["control"].values.tolist()
    accuracy = read_estimate(ds, "accuracy")
    colours = [LABEL_COLOURS["unfaithful" if name == "learned" else "all"] for name in names]
    bars = go.Bar(
        x=names,
        y=accuracy.value,
        marker={"color": colours},
        error_y={"type": "data", **error_bars(accuracy)},
    )
    figure = go.Figure(bars)
    figure.add_hline(y=float(ds["unchanged"]), line=REFERENCE_LINE)
    figure.update_yaxes(title="share of pairs", range=[0, 1])
    attrs = ds.attrs
    caption = (
        f"The residual stream after layer {attrs['layer']} at the last token of the prompt is set to that of another "
        f"sample, inside a subspace of {attrs['rank']} dimensions. Share of {int(ds['n'])} held-out pairs over "
        f"{attrs['n_groups']} sets of images whose answer becomes the predicted one "
        f"({escape_text(attrs['choices'])}), with 95 % intervals over sets of images, {escape_text(attrs['model'])}. "
        "Dotted: without an intervention. The subspace carries the variable if it exceeds all controls."
    )
    return [Panel("Interchange in a learnt subspace", apply_layout(figure), caption)]
