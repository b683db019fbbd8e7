"""Figures of `attention_decay`. The paper is SPD-Faith Bench (arXiv:2602.07833)."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import (
    GROUP_COLOURS,
    LABEL_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    interval_line,
    shown_groups,
)

_FORM_NAMES = {
    "_authors": "of three groups (the paper's form)",
    "": "of all attention, generated tokens included",
}
_FORM_COLOURS = {"_authors": GROUP_COLOURS["visual"], "": LABEL_COLOURS["all"]}


def panels(ds: xr.Dataset) -> list[Panel]:
    first_steps = ds.isel(step=_shared_steps(ds["n"]))
    shown = [_group_panel(first_steps), _layer_step_panel(first_steps), _per_token_panel(first_steps)]
    shown.append(_layer_panel(ds))
    if first_steps["mass_authors"].notnull().any():
        shown.append(_paper_groups_panel(first_steps))
    if (ds["n_share"].sel(label=["faithful", "unfaithful"]) > 0).any():
        shown.append(_label_panel(first_steps))
    return shown


def _shared_steps(n: xr.DataArray) -> slice:
    """Return the steps that at least two samples reach, or all steps if the run has one sample."""
    reached = np.flatnonzero(n.values >= min(2, int(n.max())))
    return slice(0, int(reached[-1]) + 1)


def _format_samples(ds: xr.Dataset) -> str:
    count = ds.attrs["samples"]
    return f"{count} sample{'' if count == 1 else 's'}, {ds.attrs['model']}"


def _line_mode(ds: xr.Dataset) -> str:
    return "lines" if ds.sizes["step"] > 1 else "markers"  # plotly draws no line through one point


def _draw_steps(ds: xr.Dataset, values: xr.DataArray, dim: str, y_title: str, log: bool = False) -> go.Figure:
    """Draw one line over the steps for each token group; `values` has dimensions (step, dim)."""
    figure = go.Figure()
    for group in values[dim].values.tolist():
        line = values.sel({dim: group})
        if line.notnull().any():
            figure.add_scatter(
                x=ds["step"].values,
                y=line.values,
                name=group,
                mode=_line_mode(ds),
                line={"color": GROUP_COLOURS[group], "width": 2.5 if group == "visual" else 1.8},
                customdata=ds["n"].values,
                hovertemplate=f"{group}<br>step %{{x}}: %{{y:.3f}}<br>n = %{{customdata}}<extra></extra>",
            )
    figure.update_xaxes(title="step (generated token)")
    figure.update_yaxes(title=y_title, **({"type": "log"} if log else {"rangemode": "tozero"}))
    return apply_layout(figure)


def _group_panel(ds: xr.Dataset) -> Panel:
    return Panel(
        "Attention by token group over the answer",
        _draw_steps(
            ds,
            ds["mass"].sel(group=shown_groups(ds["mass"])).mean("layer"),
            "group",
            "attention (rows sum to 1)",
        ),
        f"Attention of each step's query to each token group, mean over layers, heads and samples "
        f"({_format_samples(ds)}). Answers differ in length: hover for the number of samples at a step. Steps that "
        "only one sample reaches are not shown.",
    )


def _layer_step_panel(ds: xr.Dataset) -> Panel:
    visual = ds["mass"].sel(group="visual")
    figure = go.Figure(
        go.Heatmap(
            x=ds["step"].values,
            y=ds["layer"].values,
            z=visual.transpose("layer", "step").values,
            colorscale="Magma",
            zmin=0,
            colorbar={"title": "attention"},
            hovertemplate="layer %{y}, step %{x}: %{z:.3f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="step (generated token)")
    figure.update_yaxes(title="layer", dtick=max(1, len(ds["layer"]) // 12))
    return Panel(
        "Attention to the images by layer and step",
        apply_layout(figure),
        f"Attention to all visual tokens, mean over heads and samples ({_format_samples(ds)}).",
    )


def _per_token_panel(ds: xr.Dataset) -> Panel:
    values = ds["mass_per_token"].mean("layer")
    return Panel(
        "Attention per token of each group",
        _draw_steps(ds, values, "group", "attention per token (log)", log=True),
        "Attention to a group divided by the number of its tokens. It compares one visual token with one text token.",
    )


def _layer_panel(ds: xr.Dataset) -> Panel:
    titles = ("attention share of the images", "its slope, per step")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    layers = ds["layer"].values
    for form in _forms(ds):
        name, colour = _FORM_NAMES[form], _FORM_COLOURS[form]
        for column, kind in enumerate(("visual_share", "slope"), 1):
            line = interval_line(
                layers,
                read_estimate(ds, f"{kind}{form}"),
                colour,
                f"{name}<br>layer %{{x}}: %{{y:.4f}}",
                dash="solid" if form else "dot",
                name=name,
                showlegend=column == 1,
            )
            figure.add_traces(line, rows=1, cols=column)
    figure.update_xaxes(title="layer")
    figure.add_hline(y=0, line=REFERENCE_LINE, row=1, col=2)
    return Panel(
        "Attention to the images and its decay by layer",
        apply_layout(figure),
        "Left: attention to the images. Right: its slope over the steps; below 0 is decay. In the paper's form, attention "
        "to generated tokens is left out. In the share of all attention, it takes a larger part with each step, so "
        "that share tends to fall (dilution). Means over samples with 95 % intervals over sets of "
        "images (share: "
        f"n = {int(ds['n_share'].sel(label='all'))}, slope: n = {int(ds['n_slope'].sel(label='all'))} answers of two "
        f"tokens or more).{_early_suppression(ds, ['all'])}",
    )


def _forms(ds: xr.Dataset) -> list[str]:
    """Return the ends of the variables' names: the paper's form, if it was captured, and all attention."""
    return [form for form in _FORM_NAMES if not form or ds[f"visual_share{form}"].notnull().any()]


def _early_suppression(ds: xr.Dataset, labels: list[str]) -> str:
    """Return early suppression in words, or nothing if it is undefined, for example for a single layer."""
    form = _forms(ds)[0]
    texts = []
    for variable, what in (
        (f"early_suppression{form}", "share of the images"),
        ("system_excess", "share of the system prompt"),
    ):
        values = []
        for label in labels:
            mean = read_estimate(ds.sel(label=label), variable)
            if not np.isnan(mean.value):
                values.append(f"{'' if label == 'all' else f'{label} '}{mean:+.3f}")
        if values:
            texts.append(f"{what} {'; '.join(values)}")
    definition = "Early suppression, first third of the layers minus the rest"
    return f" {definition}: {', '.join(texts)}." if texts else ""


def _paper_groups_panel(ds: xr.Dataset) -> Panel:
    values = ds["mass_authors"].mean("layer")
    return Panel(
        "Attention in the three groups of SPD-Faith Bench",
        _draw_steps(ds, values, "authors_group", "attention (three groups sum to 1)"),
        "The paper's groups: system (everything before the first image), visual, and user (the rest of the prompt). "
        "Averaged over heads, then renormalised, so attention to generated tokens is excluded. Samples with an image only.",
    )


def _label_panel(ds: xr.Dataset) -> Panel:
    form = _forms(ds)[0]
    titles = ("attention to the images, over steps", "decay slope by layer, per step")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    n_share = ds[f"n_share{form}"]
    present = [label for label in ("faithful", "unfaithful") if int(n_share.sel(label=label))]
    layers = ds["layer"].values
    for label in present:
        of_label, colour = ds.sel(label=label), LABEL_COLOURS[label]
        figure.add_scatter(
            x=ds["step"].values,
            y=of_label[f"visual{form}_by_label"].mean("layer").values,
            name=f"{label} (n = {int(n_share.sel(label=label))})",
            mode=_line_mode(ds),
            line={"color": colour, "width": 2.2},
            customdata=of_label["n_by_label"].values,
            hovertemplate="step %{x}: %{y:.3f}<br>n = %{customdata}<extra></extra>",
            row=1,
            col=1,
        )
        slope = read_estimate(of_label, f"slope{form}_by_label")
        line = interval_line(layers, slope, colour, f"{label}, layer %{{x}}: %{{y:.4f}}", showlegend=False)
        figure.add_traces(line, rows=1, cols=2)
    figure.update_xaxes(title="step (generated token)", row=1, col=1)
    figure.update_xaxes(title="layer", row=1, col=2)
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    figure.add_hline(y=0, line=REFERENCE_LINE, row=1, col=2)
    return Panel(
        "Faithful and unfaithful answers",
        apply_layout(figure),
        f"Left: attention to the images, {_FORM_NAMES[form]}, mean over layers, heads and the samples of each label. "
        "Right: its slope with 95 % intervals over sets of images."
        f"{_early_suppression(ds, present)} The two groups may differ in questions and length; this is a description, not a test.",
    )
