"""Figure of a training: what it logged at each step."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import GROUP_COLOURS, REFERENCE_LINE, Panel, apply_layout, escape_text

_TITLES = {
    "reward": "reward (0 to 2)",
    "accuracy": "accuracy",
    "format": "format",
    "variance_free": "share of groups with equal rewards",
    "length": "length (tokens)",
    "kl": "KL to the first model (nat)",
    "loss": "loss",
    "validation_loss": "validation loss (nat a token)",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return the figure of a training: one curve for each thing that it logged."""
    names = [name for name in _TITLES if name in ds]
    rows = -(-len(names) // 2)
    figure = make_subplots(
        rows, 2, subplot_titles=[_TITLES[name] for name in names], vertical_spacing=0.3 / rows
    )
    stages = ds["stage"].values
    for number, name in enumerate(names):
        shown = ds[name].notnull().values
        line = go.Scatter(
            x=ds["step"].values[shown],
            y=ds[name].values[shown],
            name=_TITLES[name],
            mode="lines+markers",
            marker={"size": 4},
            line={"color": GROUP_COLOURS["system"]},
            showlegend=False,
        )
        figure.add_trace(line, row=number // 2 + 1, col=number % 2 + 1)
    for step in ds["step"].values[1:][stages[1:] != stages[:-1]]:
        figure.add_vline(x=float(step) - 0.5, line=REFERENCE_LINE)
    figure.update_xaxes(title="step")
    apply_layout(figure, height=120 + 240 * rows)
    caption = (
        f"Means over the batch of each of {ds.sizes['step']} steps, {escape_text(ds.attrs['out'])}. Batches are small "
        "samples: the curves show a course, not an estimate."
    )
    return [Panel("Training", figure, caption)]
