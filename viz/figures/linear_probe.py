"""Figures of `linear_probe` and `linear_probe_by_step`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    format_notes,
    interval_line,
    mark_significant,
)

_COLOUR = LABEL_COLOURS["all"]


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_step_panel(ds)] if "step" in ds.dims else [_auc_panel(ds), _accuracy_panel(ds)]


def _auc_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure([*_held_out_line(ds, "auc", ds["auc_p_max"].values), _shuffled_line(ds, "auc")])
    figure.add_hline(y=0.5, line=REFERENCE_LINE)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="area under the ROC curve")
    return Panel(
        f"Linear probe: {ds.attrs['target']}",
        apply_layout(figure),
        f"Logistic regression on the residual stream ({_format_stream(ds)}), cross-validated over image sets "
        f"({ds.attrs['folds']} folds){_format_classes(ds)}. 95 % intervals over sets of images. "
        f"{_format_counts(ds)}, {ds.attrs['model']}. Filled: p < 0.05 against {ds.attrs['shuffles']} shuffles of the "
        "labels, corrected for the number of layers. Grey: mean of the shuffles. Dotted: 0.5. The model need not use "
        f"what a probe can read. {format_notes(ds)}".strip(),
    )


def _accuracy_panel(ds: xr.Dataset) -> Panel:
    chance = {"accuracy": float(ds["majority"]), "balanced_accuracy": 1 / ds.sizes["class"]}
    figure = make_subplots(1, 2, subplot_titles=["accuracy", "balanced accuracy"], horizontal_spacing=0.08)
    for column, (name, level) in enumerate(chance.items(), 1):
        legend = column == 1
        lines = [
            *_held_out_line(ds, name, ds[f"{name}_p"].values, legend),
            _shuffled_line(ds, name, legend),
        ]
        figure.add_traces(lines, rows=1, cols=column)
        figure.add_hline(y=level, line=REFERENCE_LINE, col=column)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="accuracy", col=1)
    small = ds.attrs["classes_left_out"]
    return Panel(
        f"Accuracy of the linear probe: {ds.attrs['target']}",
        apply_layout(figure),
        "Balanced accuracy is the mean accuracy over classes. 95 % intervals over sets of images. "
        f"{_format_counts(ds)}. Dotted: accuracy of always predicting the largest class "
        f"({format_number(float(ds['majority']))}, left) and 1 / classes (right). Filled: p < 0.05 against "
        f"{ds.attrs['shuffles']} shuffles of the labels, for each layer alone."
        f"{f' Excluded classes with too few samples: {small}.' if small else ''}",
    )


def _step_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    colours = sample_colorscale("Viridis", np.linspace(0, 0.9, max(2, ds.sizes["layer"])))
    several = ds.sizes["layer"] > 1
    for colour, layer in zip(colours, ds["layer"].values.tolist(), strict=False):
        auc = read_estimate(ds.sel(layer=layer), "auc")
        line = interval_line(
            ds["step"].values,
            auc,
            colour if several else _COLOUR,
            f"layer {layer}, step %{{x}}: %{{y:.3f}} [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]"
            "<br>n = %{customdata[2]}",
            band=not several,
            name=f"layer {layer}",
            customdata=np.stack([auc.low, auc.high, ds["n"].values], -1),
        )
        figure.add_traces(line)
    figure.add_hline(y=0.5, line=REFERENCE_LINE)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="area under the ROC curve")
    counts = ", ".join(f"{n} at {step}" for step, n in zip(ds["step"].values, ds["n"].values, strict=True))
    intervals = "Hover for" if several else "Shaded:"
    return Panel(
        f"Linear probe by step: {ds.attrs['target']}",
        apply_layout(figure),
        f"Logistic regression on the residual stream ({ds.attrs['stream']}) of single steps, cross-validated over image "
        f"sets{_format_classes(ds)}. {intervals} 95 % intervals over sets of images. Samples that reach a step: "
        f"{counts}. A step has no value if a class has too few samples or image sets. Dotted: chance. "
        f"{ds.attrs['model']}. {format_notes(ds)}".strip(),
    )


def _held_out_line(ds: xr.Dataset, name: str, p: np.ndarray, legend: bool = True) -> list[go.Scatter]:
    """Return the line of a measure in held-out samples, with its interval."""
    score = read_estimate(ds, name)
    return interval_line(
        ds["layer"].values,
        score,
        _COLOUR,
        "layer %{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>p %{customdata[2]:.3f}",
        name=f"held out (n = {int(ds['n'])})",
        marker=mark_significant(p),
        showlegend=legend,
        customdata=np.stack([score.low, score.high, p], -1),
    )


def _shuffled_line(ds: xr.Dataset, name: str, legend: bool = True) -> go.Scatter:
    return go.Scatter(
        x=ds["layer"].values,
        y=ds[f"{name}_shuffled"].values,
        name="shuffled labels, mean",
        mode="lines",
        line={"color": "#a0a4ac"},
        showlegend=legend,
        hovertemplate="layer %{x}, shuffled labels: %{y:.3f}<extra></extra>",
    )


def _format_stream(ds: xr.Dataset) -> str:
    reduction = {"mean": "mean over steps", "first": "first step", "last": "last step"}[ds.attrs["reduce"]]
    return f"{ds.attrs['stream']}, {reduction}"


def _format_classes(ds: xr.Dataset) -> str:
    return ", one class against the rest, mean over classes" if ds.sizes["class"] > 2 else ""


def _format_counts(ds: xr.Dataset) -> str:
    classes = ", ".join(
        f"{n} {name}" for name, n in zip(ds["class"].values, ds["n_class"].values, strict=True)
    )
    return f"n = {int(ds['n'])} samples ({classes}), over {int(ds['n_pictures'])} image sets"
