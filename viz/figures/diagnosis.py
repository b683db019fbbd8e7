"""Figure of a diagnosis: the score of each cause with its interval and the threshold that names it."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.panel import LABEL_COLOURS, Panel, apply_layout, escape_text

_THRESHOLD, _MUTED = "#0072b2", "#888888"  # seen on white and on dark grey


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return the figure of a diagnosis."""
    causes, score = ds["cause"].values.tolist(), ds["score"].values
    colours = [LABEL_COLOURS["unfaithful" if named else "all"] for named in ds["named"].values.tolist()]
    bars = go.Bar(
        x=score,
        y=causes,
        orientation="h",
        marker={"color": colours},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(ds["high"].values - score),
            "arrayminus": np.nan_to_num(score - ds["low"].values),
            "color": _MUTED,
        },
        name="score",
    )
    thresholds = go.Scatter(
        x=ds["threshold"].values,
        y=causes,
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 18, "color": _THRESHOLD, "line": {"width": 3}},
        name="named from here on",
    )
    not_run = [
        cause for cause, tested in zip(causes, ds["tested"].values.tolist(), strict=True) if not tested
    ]
    notes = go.Scatter(
        x=[0.0] * len(not_run),
        y=not_run,
        mode="text",
        text=["not run"] * len(not_run),
        textposition="middle right",
        textfont={"color": _MUTED},
        showlegend=False,
        hoverinfo="skip",
    )
    figure = apply_layout(go.Figure([bars, thresholds, notes]), height=150 + 32 * len(causes))
    figure.update_xaxes(title="share of answers, or difference of two shares")
    figure.update_yaxes(autorange="reversed").update_layout(margin={"l": 110})
    return [
        Panel(
            "Causes",
            figure,
            f"The score of each cause in {ds.attrs['samples']} answers of {escape_text(ds.attrs['model'])}, with 95 % "
            "intervals over sets of images. Coloured bars are named. A score of 0 has no bar.",
        )
    ]
