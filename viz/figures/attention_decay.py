"""Figures of `attention_decay`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import GROUP_COLOURS, LABEL_COLOURS, Panel, band, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = ds.isel(step=_reached(ds["n"]))
    found = [_by_group(shown), _layer_by_step(shown), _per_token(shown), _layers(ds)]
    if shown["mass_authors"].notnull().any():
        found.append(_authors(shown))
    if (ds["n_share"].sel(label=["faithful", "unfaithful"]) > 0).any():
        found.append(_by_label(shown))
    return found


def _reached(n: xr.DataArray) -> slice:
    """Steps that at least two samples reach, or all of them if the run has only one."""
    enough = np.flatnonzero(n.values >= min(2, int(n.max())))
    return slice(0, int(enough[-1]) + 1)


def _samples(ds: xr.Dataset) -> str:
    count = ds.attrs["samples"]
    return f"{count} sample{'' if count == 1 else 's'}, {ds.attrs['model']}"


def _lines(ds: xr.Dataset, values: xr.DataArray, dim: str, colours: dict[str, str]) -> list[go.Scatter]:
    return [
        go.Scatter(
            x=ds["step"].values,
            y=values.sel({dim: name}).values,
            name=name,
            mode=_mode(ds),
            line={"color": colours[name], "width": 2.5 if name == "visual" else 1.8},
            customdata=ds["n"].values,
            hovertemplate=f"{name}<br>step %{{x}}: %{{y:.3f}}<br>n = %{{customdata}}<extra></extra>",
        )
        for name in values[dim].values.tolist()
        if values.sel({dim: name}).notnull().any()
    ]


def _mode(ds: xr.Dataset) -> str:
    return "lines" if ds.sizes["step"] > 1 else "markers"  # a line through one point is not drawn


def _over_steps(ds: xr.Dataset, values: xr.DataArray, dim: str, y_title: str, log: bool = False) -> go.Figure:
    figure = go.Figure(_lines(ds, values, dim, GROUP_COLOURS))
    figure.update_xaxes(title="step (generated token)")
    figure.update_yaxes(title=y_title, **({"type": "log"} if log else {"rangemode": "tozero"}))
    return styled(figure)


def _by_group(ds: xr.Dataset) -> Panel:
    figure = _over_steps(ds, ds["mass"].mean("layer"), "group", "attention (rows sum to 1)")
    return Panel(
        "Where attention goes while the answer is written",
        figure,
        f"Attention of each step's query by token group, mean over layers, heads and samples ({_samples(ds)}). "
        "Answers differ in length; hover for the number of samples that reach a step. Steps reached by a single "
        "sample are left out.",
    )


def _layer_by_step(ds: xr.Dataset) -> Panel:
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
        "Attention to the images, by layer and step",
        styled(figure),
        f"Attention on all visual tokens, mean over heads and samples ({_samples(ds)}).",
    )


def _per_token(ds: xr.Dataset) -> Panel:
    figure = _over_steps(
        ds, ds["mass_per_token"].mean("layer"), "group", "attention per token (log)", log=True
    )
    return Panel(
        "The same, per token of the group",
        figure,
        "Attention divided by the number of tokens in the group: what one visual token gets, against one token of text.",
    )


def _layers(ds: xr.Dataset) -> Panel:
    figure = make_subplots(
        1, 2, subplot_titles=("visual share", "decay slope, per step"), horizontal_spacing=0.12
    )
    layers, colour = ds["layer"].values, GROUP_COLOURS["visual"]
    for column, name in enumerate(("visual_share", "slope"), 1):
        figure.add_traces(
            [
                *band(layers, ds[f"{name}_low"].values, ds[f"{name}_high"].values, colour),
                go.Scatter(
                    x=layers,
                    y=ds[name].values,
                    mode="lines+markers",
                    line={"color": colour},
                    showlegend=False,
                    hovertemplate="layer %{x}: %{y:.4f}<extra></extra>",
                ),
            ],
            rows=1,
            cols=column,
        )
        figure.update_xaxes(title="layer", row=1, col=column)
    figure.add_hline(y=0, line={"width": 1, "dash": "dot", "color": "#888888"}, row=1, col=2)
    return Panel(
        "Share of attention on the images by layer, and its decay",
        styled(figure),
        f"Mean over samples with its 95 % bootstrap interval (share: n = {int(ds['n_share'].sel(label='all'))}, slope: "
        f"n = {int(ds['n_slope'].sel(label='all'))} answers of two tokens or more). A slope below 0 is decay."
        f"{_early(ds, ['all'])}",
    )


def _early(ds: xr.Dataset, labels: list[str]) -> str:
    """Early suppression in words; nothing where it is not known, as of a single layer."""
    said = []
    for label in labels:
        value, low, high = (
            float(ds[f"early_suppression{end}"].sel(label=label)) for end in ("", "_low", "_high")
        )
        if not np.isnan(value):
            name = "" if label == "all" else f"{label} "
            said.append(f"{name}{value:+.3f}" + ("" if np.isnan(low) else f" [{low:+.3f}, {high:+.3f}]"))
    about = "Early suppression, the visual share in the first third of the layers minus the rest"
    return f" {about}: {'; '.join(said)}." if said else ""


def _authors(ds: xr.Dataset) -> Panel:
    figure = _over_steps(
        ds, ds["mass_authors"].mean("layer"), "authors_group", "attention (three groups sum to 1)"
    )
    return Panel(
        "In the three groups of SPD-Faith Bench",
        figure,
        "The form of the paper's authors: system is everything before the first image, user the rest of the prompt; "
        "renormalised over the three, so attention to generated tokens is left out. Samples with an image only.",
    )


def _by_label(ds: xr.Dataset) -> Panel:
    titles = ("attention on the images, over steps", "decay slope by layer, per step")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    present = [label for label in ("faithful", "unfaithful") if int(ds["n_share"].sel(label=label))]
    for label in present:
        mine, colour = ds.sel(label=label), LABEL_COLOURS[label]
        figure.add_scatter(
            x=ds["step"].values,
            y=mine["visual_by_label"].mean("layer").values,
            name=f"{label} (n = {int(mine['n_share'])})",
            mode=_mode(ds),
            line={"color": colour, "width": 2.2},
            customdata=mine["n_by_label"].values,
            hovertemplate="step %{x}: %{y:.3f}<br>n = %{customdata}<extra></extra>",
            row=1,
            col=1,
        )
        slope = go.Scatter(
            x=ds["layer"].values,
            y=mine["slope_by_label"].values,
            mode="lines+markers",
            line={"color": colour},
            showlegend=False,
            hovertemplate=f"{label}, layer %{{x}}: %{{y:.4f}}<extra></extra>",
        )
        low, high = mine["slope_by_label_low"].values, mine["slope_by_label_high"].values
        figure.add_traces([*band(ds["layer"].values, low, high, colour), slope], rows=1, cols=2)
    figure.update_xaxes(title="step (generated token)", row=1, col=1)
    figure.update_xaxes(title="layer", row=1, col=2)
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    figure.add_hline(y=0, line={"width": 1, "dash": "dot", "color": "#888888"}, row=1, col=2)
    return Panel(
        "Faithful and unfaithful answers",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1}),
        f"Attention on all visual tokens, mean over layers, heads and the samples of each label, and its slope with a 95 % "
        f"bootstrap interval.{_early(ds, present)} The two groups may differ in questions and length; this is a "
        "description, not a test.",
    )
