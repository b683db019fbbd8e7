"""Figures of `predict_unfaithful`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import remarks
from mmprobe.viz.panel import LABEL_COLOURS, Panel, band, styled

_COLOUR = LABEL_COLOURS["all"]
_CHANCE = {"width": 1, "dash": "dot", "color": "#888888"}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_curve(ds), _by_step(ds), _features(ds)]


def _curve(ds: xr.Dataset) -> Panel:
    """The ROC curve of the held-out scores."""
    unfaithful = ds["unfaithful"].values == 1
    cuts = np.unique(ds["score"].values)[::-1]
    found, alarms = (
        [0.0, *((ds["score"].values[mine] >= cuts[:, None]).mean(1)), 1.0]
        for mine in (unfaithful, ~unfaithful)
    )
    line = go.Scatter(
        x=alarms,
        y=found,
        mode="lines",
        line={"color": _COLOUR},
        showlegend=False,
        hovertemplate="%{y:.2f} of unfaithful at %{x:.2f} of faithful answers<extra></extra>",
    )
    chance = go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=_CHANCE, showlegend=False, hoverinfo="skip")
    figure = go.Figure([chance, line])
    figure.update_xaxes(title="share of faithful answers flagged", range=[-0.02, 1.02])
    figure.update_yaxes(title="share of unfaithful answers flagged", range=[-0.02, 1.02])
    return Panel(
        "Do internals tell unfaithful answers?",
        styled(figure),
        f"ROC curve of a logistic regression on {ds.sizes['feature']} numbers of each answer, each scored by a model "
        f"fitted without its pictures ({ds.attrs['folds']} folds). Area under it {_said(ds, 'auc')}, with its 95 % "
        f"bootstrap interval over sets of pictures; {_numbers(ds)}, {ds.attrs['model']}. With shuffled labels "
        f"{_said(ds, 'auc_shuffled')}, the middle 95 % of {ds.attrs['shuffles']} shuffles; p {_p(ds)}. {remarks(ds)}".strip(),
    )


def _by_step(ds: xr.Dataset) -> Panel:
    steps, values, low, high = (
        ds[name].values for name in ("upto", "auc_by_step", "auc_by_step_low", "auc_by_step_high")
    )
    line = go.Scatter(
        x=steps,
        y=values,
        mode="lines+markers",
        line={"color": _COLOUR},
        showlegend=False,
        customdata=np.stack([low, high, ds["n_by_step"].values], -1),
        hovertemplate="first %{x} steps: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]"
        "<br>%{customdata[2]} answers are at least that long<extra></extra>",
    )
    figure = go.Figure([*band(steps, low, high, _COLOUR), line])
    figure.add_hrect(
        y0=float(ds["auc_shuffled_low"]),
        y1=float(ds["auc_shuffled_high"]),
        fillcolor="#888888",
        opacity=0.12,
        line_width=0,
    )
    figure.add_hline(y=0.5, line=_CHANCE)
    figure.update_xaxes(
        title="steps seen", type="log", tickvals=steps, ticktext=[str(step) for step in steps]
    )
    figure.update_yaxes(title="area under the ROC curve")
    reach = ", ".join(f"{n} of {step}" for step, n in zip(steps, ds["n_by_step"].values, strict=True))
    return Panel(
        "How early do internals tell?",
        styled(figure),
        "The same model on the first steps alone, without features that need the end of the answer, and the 95 % "
        f"bootstrap interval over sets of pictures; {_numbers(ds)}. Answers of at least so many steps: {reach}; shorter ones are "
        "seen whole. Dotted: chance; grey: the middle 95 % of whole answers with shuffled labels.",
    )


def _features(ds: xr.Dataset) -> Panel:
    order = np.argsort(np.abs(ds["auc_feature"].values - 0.5), kind="stable")
    names = ds["feature"].values[order]
    figure = make_subplots(
        1, 2, shared_yaxes=True, subplot_titles=["by itself", "beside the others"], horizontal_spacing=0.06
    )
    for column, name in enumerate(("auc_feature", "weight"), 1):
        values, low, high = (ds[f"{name}{end}"].values[order] for end in ("", "_low", "_high"))
        dots = go.Scatter(
            x=values,
            y=names,
            mode="markers",
            marker={"color": _COLOUR, "size": 8},
            error_x={"array": high - values, "arrayminus": values - low, "color": _COLOUR, "thickness": 1.2},
            showlegend=False,
            customdata=np.stack([low, high], -1),
            hovertemplate="%{y}: %{x:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
        figure.add_trace(dots, row=1, col=column)
    figure.add_vline(x=0.5, line=_CHANCE, col=1)
    figure.add_vline(x=0, line=_CHANCE, col=2)
    figure.update_xaxes(title="area under the ROC curve", col=1)
    figure.update_xaxes(title="weight (log odds per standard deviation)", col=2)
    left_out = ds.attrs["features_left_out"]
    return Panel(
        "What tells unfaithful answers",
        styled(figure, height=150 + 26 * len(names)).update_layout(margin={"l": 150}),
        "Left: above 0.5, unfaithful answers have more of it; below, less. Right: coefficient of the logistic regression on "
        f"all samples; features that say the same share it. With 95 % bootstrap intervals over sets of pictures; {_numbers(ds)}. "
        f"Of many features the best looks better than it is.{f' Not to be had from this run: {left_out}.' if left_out else ''}",
    )


def _said(ds: xr.Dataset, name: str) -> str:
    return f"{float(ds[name]):.2f} [{float(ds[f'{name}_low']):.2f}, {float(ds[f'{name}_high']):.2f}]"


def _p(ds: xr.Dataset) -> str:
    return f"{float(ds['p']):.3f}"


def _numbers(ds: xr.Dataset) -> str:
    return (
        f"n = {int(ds['n'])} samples, {int(ds['n_unfaithful'])} unfaithful and {int(ds['n_faithful'])} faithful, over "
        f"{int(ds['n_pictures'])} sets of pictures"
    )
