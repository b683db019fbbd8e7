"""Figures of `predict_unfaithful`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    error_bars,
    format_notes,
    interval_line,
)

_COLOUR = LABEL_COLOURS["all"]


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_roc_panel(ds), _step_panel(ds), _feature_panel(ds)]


def _roc_panel(ds: xr.Dataset) -> Panel:
    """Draw the ROC curve of the held-out scores."""
    scores, unfaithful = ds["score"].values, ds["unfaithful"].values == 1
    thresholds = np.unique(scores)[::-1]
    true_rate, false_rate = (
        [0.0, *((scores[members] >= thresholds[:, None]).mean(1)), 1.0]
        for members in (unfaithful, ~unfaithful)
    )
    curve = go.Scatter(
        x=false_rate,
        y=true_rate,
        mode="lines",
        line={"color": _COLOUR},
        showlegend=False,
        hovertemplate="%{y:.2f} of unfaithful at %{x:.2f} of faithful answers<extra></extra>",
    )
    chance = go.Scatter(
        x=[0, 1], y=[0, 1], mode="lines", line=REFERENCE_LINE, showlegend=False, hoverinfo="skip"
    )
    figure = go.Figure([chance, curve])
    figure.update_xaxes(title="share of faithful answers flagged", range=[-0.02, 1.02])
    figure.update_yaxes(title="share of unfaithful answers flagged", range=[-0.02, 1.02])
    return Panel(
        "Prediction of unfaithful answers from internals",
        apply_layout(figure),
        f"ROC curve of a logistic regression on {ds.sizes['feature']} features of each answer, cross-validated over image "
        f"sets ({ds.attrs['folds']} folds). Area under the curve: {read_estimate(ds, 'auc'):.2f} (95 % interval "
        f"over sets of images); {_format_counts(ds)}, {ds.attrs['model']}. {_compare_types(ds)} With shuffled labels: "
        f"{read_estimate(ds, 'auc_shuffled'):.2f} (middle 95 % of {ds.attrs['shuffles']} shuffles), "
        f"p = {format_number(float(ds['p']))}. {format_notes(ds)}".strip(),
    )


def _compare_types(ds: xr.Dataset) -> str:
    """Return what the type of the question alone predicts, and what the internals do within types."""
    if "auc_type" not in ds:  # of an earlier version
        return ""
    within = read_estimate(ds, "auc_within")
    types = len(np.unique(ds["question_type"].values))
    return (
        f"The type of the question alone ({types} types): {read_estimate(ds, 'auc_type'):.2f}. Among answers to questions of one "
        f"type: {within:.2f} ({int(ds['n_pairs'])} pairs); 0.5 is chance. What internals say beyond the type is this last number."
    )


def _step_panel(ds: xr.Dataset) -> Panel:
    steps, auc, by_chance = (
        ds["upto"].values,
        read_estimate(ds, "auc_by_step"),
        read_estimate(ds, "auc_shuffled"),
    )
    line = interval_line(
        steps,
        auc,
        _COLOUR,
        "first %{x} steps: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]"
        "<br>%{customdata[2]} answers are at least that long",
        showlegend=False,
        customdata=np.stack([auc.low, auc.high, ds["n_by_step"].values], -1),
    )
    figure = go.Figure(line)
    figure.add_hrect(
        y0=by_chance.low,
        y1=by_chance.high,
        fillcolor="#888888",
        opacity=0.12,
        line_width=0,
    )
    figure.add_hline(y=0.5, line=REFERENCE_LINE)
    figure.update_xaxes(
        title="first steps used", type="log", tickvals=steps, ticktext=[str(step) for step in steps]
    )
    figure.update_yaxes(title="area under the ROC curve")
    counts = ", ".join(f"{n} of {step}" for step, n in zip(steps, ds["n_by_step"].values, strict=True))
    return Panel(
        "Prediction from the first steps of an answer",
        apply_layout(figure),
        "The same model on the first steps alone, without features that need the end of the answer, with 95 % "
        f"intervals over sets of images; {_format_counts(ds)}. Answers with at least so many steps: {counts}. Shorter "
        "answers are used whole. Dotted: chance. Grey: middle 95 % for whole answers with shuffled labels.",
    )


def _feature_panel(ds: xr.Dataset) -> Panel:
    order = np.argsort(np.abs(ds["auc_feature"].values - 0.5), kind="stable")
    features = ds["feature"].values[order]
    figure = make_subplots(
        1, 2, shared_yaxes=True, subplot_titles=["alone", "with all features"], horizontal_spacing=0.06
    )
    for column, name in enumerate(("auc_feature", "weight"), 1):
        estimate = read_estimate(ds, name)[order]
        points = go.Scatter(
            x=estimate.value,
            y=features,
            mode="markers",
            marker={"color": _COLOUR, "size": 8},
            error_x=error_bars(estimate, color=_COLOUR, thickness=1.2),
            showlegend=False,
            customdata=np.stack([estimate.low, estimate.high], -1),
            hovertemplate="%{y}: %{x:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
        figure.add_trace(points, row=1, col=column)
    figure.add_vline(x=0.5, line=REFERENCE_LINE, col=1)
    figure.add_vline(x=0, line=REFERENCE_LINE, col=2)
    figure.update_xaxes(title="area under the ROC curve", col=1)
    figure.update_xaxes(title="weight (log odds per standard deviation)", col=2)
    missing = ds.attrs["features_left_out"]
    return Panel(
        "Features that predict unfaithful answers",
        apply_layout(figure, height=150 + 26 * len(features)).update_layout(margin={"l": 150}),
        "Left: above 0.5 the feature is larger in unfaithful answers, below 0.5 smaller. Right: coefficients of the "
        "logistic regression on all samples; correlated features share their weight. 95 % intervals over sets of "
        f"images; {_format_counts(ds)}. The best of many features looks better than it is."
        f"{f' Not available from this run: {missing}.' if missing else ''}",
    )


def _format_counts(ds: xr.Dataset) -> str:
    return (
        f"n = {int(ds['n'])} samples, {int(ds['n_unfaithful'])} unfaithful and {int(ds['n_faithful'])} faithful, over "
        f"{int(ds['n_pictures'])} image sets"
    )
