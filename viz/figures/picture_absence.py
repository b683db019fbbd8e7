"""Figures of `picture_absence`."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import (
    GROUP_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    draw_rows,
    error_bars,
    escape_text,
    interval_line,
    shorten_list,
    shown_groups,
)

_SPANS = {
    "first": ("before the first token", "#0072b2"),
    "answer": ("mean over the answer", "#d55e00"),
    "others": ("another question, both with images", "#7c8594"),
}


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_state_panel(ds), _question_panel(ds)]
    if "mass" in ds:
        shown.append(_attention_panel(ds))
    return [*shown, _entropy_panel(ds)]


def _mean_lines(ds: xr.Dataset, name: str, colour: str, label: str, **options: Any) -> list[go.Scatter]:
    """Return the line of a mean by layer, with its interval."""
    hover = f"{label}, layer %{{x}}: %{{y:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]<br>n = {int(ds['n'])}"
    dash = "dot" if name.startswith("distance_others") else "solid"
    return interval_line(
        ds["layer"].values, read_estimate(ds, name), colour, hover, name=label, dash=dash, **options
    )


def _state_panel(ds: xr.Dataset) -> Panel:
    titles = ("1 - cosine, without and with images", "relative change of the norm")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    for span, (label, colour) in _SPANS.items():
        if np.isfinite(ds[f"distance_{span}_mean"]).any():
            figure.add_traces(_mean_lines(ds, f"distance_{span}_mean", colour, label), rows=1, cols=1)
        if span != "others":
            lines = _mean_lines(ds, f"norm_{span}_mean", colour, label, showlegend=False)
            figure.add_traces(lines, rows=1, cols=2)
    figure.add_hline(y=0, line=REFERENCE_LINE, row=1, col=2)
    figure.update_xaxes(title="layer")
    return Panel(
        "Change of the residual stream without images",
        apply_layout(figure),
        "The residual stream after each layer, for the same question without and with its images. Right: norm without "
        f"images divided by the norm with images, minus 1. Means over pairs with 95 % intervals over sets of images, "
        f"{_format_counts(ds)}. Dotted: distance between two questions that each have their images. Below it, removing "
        f"the images changes less than asking another question. {_format_notes(ds)}".strip(),
    )


def _question_panel(ds: xr.Dataset) -> Panel:
    return Panel(
        "Change of the residual stream by question",
        draw_rows(ds, "distance_first", "question", "1 - cosine", "%{y}, layer %{x}: %{z:.4f}", zmin=0),
        f"1 - cosine of the states without and with images at the query of the first token, {_format_counts(ds)}. Each "
        "row is one question. In a dark row the images hardly change the state.",
    )


def _attention_panel(ds: xr.Dataset) -> Panel:
    figure = make_subplots(1, 2, subplot_titles=["with images", "without images"], shared_yaxes=True)
    for column, condition in enumerate(ds["picture"].values.tolist(), 1):
        shown = ds[["mass", "mass_low", "mass_high", "n"]].sel(picture=condition)
        for group in shown_groups(ds["mass"]):
            lines = _mean_lines(
                shown.sel(group=group),
                "mass",
                GROUP_COLOURS[group],
                group,
                showlegend=column == 1,
                legendgroup=group,
            )
            figure.add_traces(lines, rows=1, cols=column)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="attention (sums to 1)", rangemode="tozero", col=1)
    return Panel(
        "Attention by token group, with and without images",
        apply_layout(figure),
        f"Mean over heads, steps and pairs with 95 % intervals over sets of images, {_format_counts(ds)}. Without "
        "images, the attention to visual tokens goes to the other groups.",
    )


def _entropy_panel(ds: xr.Dataset) -> Panel:
    mean = read_estimate(ds, "entropy_mean")
    conditions = list(ds["picture"].values)
    figure = go.Figure()
    pairs = [escape_text(pair) for pair in ds["pair"].values]
    figure.add_scatter(  # one line with gaps, since thousands of lines would stop the page
        x=[*conditions, None] * len(pairs),
        y=np.column_stack([ds["entropy"].values, np.full(len(pairs), np.nan)]).ravel(),
        mode="lines",
        line={"color": "rgba(124,132,148,0.35)", "width": 1},
        showlegend=False,
        text=np.repeat(pairs, len(conditions) + 1),
        hovertemplate="%{text}, %{x}: %{y:.3f} nat<extra></extra>",
    )
    figure.add_scatter(
        x=conditions,
        y=mean.value,
        mode="markers",
        name="mean",
        marker={"size": 11, "color": "#0072b2"},
        error_y=error_bars(mean, symmetric=False),
        hovertemplate="mean, %{x}: %{y:.3f} nat<extra></extra>",
    )
    figure.update_xaxes(title="images")
    figure.update_yaxes(title="entropy of the first token (nat)", rangemode="tozero")
    change = read_estimate(ds, "entropy_difference")
    return Panel(
        "Entropy of the first token, with and without images",
        apply_layout(figure),
        "Entropy of the distribution of the first token, one line for each question, and the mean with its 95 % "
        f"interval over sets of images, {_format_counts(ds)}. Without minus with images: {change:+.3f} nat. A "
        "model that notices the missing images should be less certain.",
    )


def _format_counts(ds: xr.Dataset) -> str:
    count = int(ds["n"])
    return f"n = {count} pair{'' if count == 1 else 's'}, {ds.attrs['model']}"


def _format_notes(ds: xr.Dataset) -> str:
    notes = []
    if ds.attrs.get("n_left_out"):
        notes.append(f"Excluded because of non-finite values: {shorten_list(ds.attrs['left_out'])}.")
    if ds.attrs.get("n_unpaired"):
        notes.append(
            f"Excluded because the same question with images is missing: {shorten_list(ds.attrs['unpaired'])}."
        )
    return " ".join(notes)
