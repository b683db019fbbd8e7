"""Figures of `picture_absence`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import shortened
from mmprobe.viz.panel import GROUP_COLOURS, Panel, band, styled

_SPANS = {
    "first": ("before the first token", "#0072b2"),
    "answer": ("mean over the answer", "#d55e00"),
    "others": ("another question, both with pictures", "#7c8594"),
}


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_states(ds), _every_pair(ds)]
    if "mass" in ds:
        found.append(_attention(ds))
    return [*found, _entropy(ds)]


def _line(
    x: xr.DataArray, ds: xr.Dataset, name: str, colour: str, label: str, **look: object
) -> list[go.Scatter]:
    """A mean by layer with its interval."""
    value, low, high = (ds[f"{name}{end}"].values for end in ("", "_low", "_high"))
    line = go.Scatter(
        x=x.values,
        y=value,
        name=label,
        mode="lines+markers",
        line={"color": colour, "dash": "dot" if name.startswith("distance_others") else "solid"},
        customdata=np.stack([low, high], -1),
        hovertemplate=f"{label}, layer %{{x}}: %{{y:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]"
        f"<br>n = {int(ds['n'])}<extra></extra>",
        **look,
    )
    return [*band(x.values, low, high, colour), line]


def _states(ds: xr.Dataset) -> Panel:
    titles = ("1 - cosine, without against with pictures", "length without over with, less 1")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    for span, (label, colour) in _SPANS.items():
        if np.isfinite(ds[f"distance_{span}_mean"]).any():
            figure.add_traces(_line(ds["layer"], ds, f"distance_{span}_mean", colour, label), rows=1, cols=1)
        if span != "others":
            lines = _line(ds["layer"], ds, f"norm_{span}_mean", colour, label, showlegend=False)
            figure.add_traces(lines, rows=1, cols=2)
    figure.add_hline(y=0, line={"width": 1, "dash": "dot", "color": "#888888"}, row=1, col=2)
    figure.update_xaxes(title="layer")
    return Panel(
        "How the residual stream differs when there is nothing to see",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"}),
        f"States after each layer of the same question with its pictures and without them. Mean over pairs with its "
        f"95 % bootstrap interval, {_count(ds)}. Dotted: how far two questions with pictures of their own are apart; "
        f"where the solid lines lie below it, taking the pictures away changes less than asking something else. "
        f"{_remarks(ds)}".strip(),
    )


def _every_pair(ds: xr.Dataset) -> Panel:
    figure = go.Figure(
        go.Heatmap(
            x=ds["layer"].values,
            y=[str(name) for name in ds["pair"].values],
            z=ds["distance_first"].values,
            colorscale="Viridis",
            zmin=0,
            colorbar={"title": "1 - cosine"},
            hovertemplate="%{y}, layer %{x}: %{z:.4f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="question", type="category", autorange="reversed", nticks=24)
    return Panel(
        "Every question, before its first token",
        styled(figure),
        f"1 - cosine of the states without and with pictures at the query of the first token, {_count(ds)}, n = 1 a row. "
        "A row that stays dark is a question whose pictures hardly matter.",
    )


def _attention(ds: xr.Dataset) -> Panel:
    figure = make_subplots(1, 2, subplot_titles=["with pictures", "without"], shared_yaxes=True)
    for column, picture in enumerate(ds["picture"].values.tolist(), 1):
        shown = ds[["mass", "mass_low", "mass_high", "n"]].sel(picture=picture)
        for group in ds["group"].values.tolist():
            lines = _line(
                ds["layer"],
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
        "Where attention goes instead",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"}),
        f"Attention by token group, mean over heads, steps and pairs with its 95 % bootstrap interval, {_count(ds)}. "
        "Without pictures there are no visual tokens; what they got goes to the other groups.",
    )


def _entropy(ds: xr.Dataset) -> Panel:
    mean, low, high = (ds[f"entropy_mean{end}"].values for end in ("", "_low", "_high"))
    figure = go.Figure()
    for pair, values in zip(ds["pair"].values, ds["entropy"].values, strict=True):
        figure.add_scatter(
            x=list(ds["picture"].values),
            y=values,
            mode="lines",
            line={"color": "rgba(124,132,148,0.35)", "width": 1},
            showlegend=False,
            hovertemplate=f"{pair}, %{{x}}: %{{y:.3f}} nat<extra></extra>",
        )
    figure.add_scatter(
        x=list(ds["picture"].values),
        y=mean,
        mode="markers",
        name="mean",
        marker={"size": 11, "color": "#0072b2"},
        error_y={"array": high - mean, "arrayminus": mean - low, "symmetric": False},
        hovertemplate="mean, %{x}: %{y:.3f} nat<extra></extra>",
    )
    figure.update_xaxes(title="pictures")
    figure.update_yaxes(title="entropy of the first token (nat)", rangemode="tozero")
    change, *ends = (float(ds[f"entropy_difference{end}"]) for end in ("", "_low", "_high"))
    interval = "" if np.isnan(ends[0]) else f" [{ends[0]:+.3f}, {ends[1]:+.3f}]"
    return Panel(
        "How sure the model is of its first token",
        styled(figure),
        f"Entropy of the distribution of the first token, a line a question; mean with its 95 % bootstrap interval, "
        f"{_count(ds)}. Without minus with pictures: {change:+.3f}{interval} nat. A model "
        "that notices what is missing has reason to be less sure.",
    )


def _count(ds: xr.Dataset) -> str:
    count = int(ds["n"])
    return f"n = {count} pair{'' if count == 1 else 's'}, {ds.attrs['model']}"


def _remarks(ds: xr.Dataset) -> str:
    said = []
    if ds.attrs.get("n_left_out"):
        said.append(f"Left out, holding values that are not finite: {shortened(ds.attrs['left_out'])}.")
    if ds.attrs.get("n_unpaired"):
        said.append(f"Left out, without the same question with pictures: {shortened(ds.attrs['unpaired'])}.")
    return " ".join(said)
