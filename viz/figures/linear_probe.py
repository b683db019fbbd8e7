"""Figures of `linear_probe` and `linear_probe_by_step`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import remarks
from mmprobe.viz.panel import LABEL_COLOURS, Panel, band, styled

_COLOUR = LABEL_COLOURS["all"]
_CHANCE = {"width": 1, "dash": "dot", "color": "#888888"}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_by_step(ds)] if "step" in ds.dims else [_auc(ds), _accuracy(ds)]


def _auc(ds: xr.Dataset) -> Panel:
    figure = go.Figure([*_measured(ds, "auc", ds["auc_p_max"].values), _shuffled(ds, "auc")])
    figure.add_hline(y=0.5, line=_CHANCE)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="area under the ROC curve")
    return Panel(
        f"Linear probe: {ds.attrs['target']}",
        styled(figure),
        f"A logistic regression on the residual stream ({_stream(ds)}), in samples whose pictures it was not fitted on "
        f"({ds.attrs['folds']} folds){_rest(ds)}. With its 95 % bootstrap interval over sets of pictures; {_numbers(ds)}, "
        f"{ds.attrs['model']}. Filled: p under 0.05 against {ds.attrs['shuffles']} shuffles of the labels, corrected for the "
        f"layers; their mean is the grey line, 0.5 the dotted one. What can be read off need not be used by the model. "
        f"{remarks(ds)}".strip(),
    )


def _accuracy(ds: xr.Dataset) -> Panel:
    names = {"accuracy": "share that is right", "balanced_accuracy": "mean over classes of that share"}
    figure = make_subplots(1, 2, subplot_titles=list(names.values()), horizontal_spacing=0.08)
    levels = (float(ds["majority"]), 1 / ds.sizes["class"])
    for column, (name, level) in enumerate(zip(names, levels, strict=True), 1):
        lines = [*_measured(ds, name, ds[f"{name}_p"].values, column == 1), _shuffled(ds, name, column == 1)]
        figure.add_traces(lines, rows=1, cols=column)
        figure.add_hline(y=level, line=_CHANCE, col=column)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="accuracy", col=1)
    small = ds.attrs["classes_left_out"]
    return Panel(
        f"Accuracy of the linear probe: {ds.attrs['target']}",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1}),
        f"With its 95 % bootstrap interval over sets of pictures; {_numbers(ds)}. Dotted: left what calling the largest "
        f"class would give ({float(ds['majority']):.2f}), right 1 / classes. Filled: p under 0.05 against "
        f"{ds.attrs['shuffles']} shuffles of the labels, of that layer alone."
        f"{f' Classes with too few samples: {small}.' if small else ''}",
    )


def _by_step(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    colours = sample_colorscale("Viridis", np.linspace(0, 0.9, max(2, ds.sizes["layer"])))
    several = ds.sizes["layer"] > 1
    for colour, layer in zip(colours, ds["layer"].values.tolist(), strict=False):
        values, low, high = (ds[f"auc{end}"].sel(layer=layer).values for end in ("", "_low", "_high"))
        if not several:
            colour = _COLOUR
            figure.add_traces(band(ds["step"].values, low, high, colour))
        figure.add_scatter(
            x=ds["step"].values,
            y=values,
            name=f"layer {layer}",
            mode="lines+markers",
            line={"color": colour},
            customdata=np.stack([low, high, ds["n"].values], -1),
            hovertemplate=f"layer {layer}, step %{{x}}: %{{y:.3f}} [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]"
            "<br>n = %{customdata[2]}<extra></extra>",
        )
    figure.add_hline(y=0.5, line=_CHANCE)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="area under the ROC curve")
    reach = ", ".join(f"{n} at {step}" for step, n in zip(ds["step"].values, ds["n"].values, strict=True))
    shown = "Hover for" if several else "Shaded:"
    return Panel(
        f"Linear probe by step: {ds.attrs['target']}",
        styled(figure),
        f"A logistic regression on the residual stream ({ds.attrs['stream']}) of single steps, in samples whose pictures "
        f"it was not fitted on{_rest(ds)}. {shown} the 95 % bootstrap intervals over sets of pictures. Samples that reach a "
        f"step: {reach}; no number where a class or its pictures are too few. Dotted: chance, {ds.attrs['model']}. {remarks(ds)}".strip(),
    )


def _measured(ds: xr.Dataset, name: str, p: np.ndarray, legend: bool = True) -> list[go.Scatter]:
    layers, values, low, high = (ds[key].values for key in ("layer", name, f"{name}_low", f"{name}_high"))
    line = go.Scatter(
        x=layers,
        y=values,
        name=f"held out (n = {int(ds['n'])})",
        mode="lines+markers",
        line={"color": _COLOUR},
        marker={"size": 9, "symbol": ["circle" if value < 0.05 else "circle-open" for value in p]},
        showlegend=legend,
        customdata=np.stack([low, high, p], -1),
        hovertemplate="layer %{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]"
        "<br>p %{customdata[2]:.3f}<extra></extra>",
    )
    return [*band(layers, low, high, _COLOUR), line]


def _shuffled(ds: xr.Dataset, name: str, legend: bool = True) -> go.Scatter:
    return go.Scatter(
        x=ds["layer"].values,
        y=ds[f"{name}_shuffled"].values,
        name="shuffled labels, mean",
        mode="lines",
        line={"color": "#a0a4ac"},
        showlegend=legend,
        hovertemplate="layer %{x}, shuffled labels: %{y:.3f}<extra></extra>",
    )


def _stream(ds: xr.Dataset) -> str:
    how = {"mean": "mean over steps", "first": "first step", "last": "last step"}[ds.attrs["reduce"]]
    return f"{ds.attrs['stream']}, {how}"


def _rest(ds: xr.Dataset) -> str:
    return "; a class against the rest, mean over classes" if ds.sizes["class"] > 2 else ""


def _numbers(ds: xr.Dataset) -> str:
    by_class = ", ".join(
        f"{n} {name}" for name, n in zip(ds["class"].values, ds["n_class"].values, strict=True)
    )
    return f"n = {int(ds['n'])} samples ({by_class}), over {int(ds['n_pictures'])} sets of pictures"
