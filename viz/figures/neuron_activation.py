"""Figures of `neuron_activation`. The paper is SPD-Faith Bench (arXiv:2602.07833)."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.compare import read_comparison
from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    Panel,
    apply_layout,
    comparison_panel,
    format_counts,
    format_notes,
    lines_by_label,
    plots_by_label,
)

_RULE_TITLES = {
    "": "sum above 0",
    "_tokens": "without the prompt's last token",
    "_any": "active at any step",
    "_mean": "active at most steps",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_ratio_panel(ds)]
    if "note" not in ds.attrs:
        plots = {title: read_comparison(ds, suffix) for suffix, title in _rule_titles(ds).items()}
        shown += [comparison_panel(ds, "share of active neurons", plots), _top_neurons_panel(ds)]
    if "ratio_third" in ds:
        shown.append(_third_panel(ds))
    return shown


def _rule_titles(ds: xr.Dataset) -> dict[str, str]:
    """Return the titles of the data set's rules, by the suffix of their variables."""
    titles = _RULE_TITLES | {
        "_mean": f"active at over {format_number(ds.attrs['threshold'], '.0%')} of steps"
    }
    return {suffix: title for suffix, title in titles.items() if f"ratio{suffix}" in ds}


def _ratio_panel(ds: xr.Dataset) -> Panel:
    titles = {f"ratio{suffix}_by_label": title for suffix, title in _rule_titles(ds).items()}
    figure = plots_by_label(ds, titles, "label", ds["n_label"])
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="share of active neurons", col=1)
    return Panel(
        "Active FFN neurons by layer",
        figure,
        f"Share of a layer's {ds.attrs['neurons']} neurons that are active during the answer. In SPD-Faith Bench a "
        "neuron is active if the sum of its gate over the generated tokens is above 0. Means over samples with 95 % "
        f"intervals over sets of images: {format_counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. "
        f"{format_notes(ds)}".strip(),
    )


def _top_neurons_panel(ds: xr.Dataset) -> Panel:
    neurons = zip(ds["top_layer"].values, ds["top_neuron"].values, strict=True)
    names = [f"layer {layer}, {neuron}" for layer, neuron in neurons]
    figure = go.Figure()
    shares = zip(ds["top_faithful"].values, ds["top_unfaithful"].values, strict=True)
    for name, (faithful, unfaithful) in zip(names, shares, strict=True):
        figure.add_scatter(
            x=[faithful, unfaithful],
            y=[name, name],
            mode="lines",
            line={"color": "#c0c4cc"},
            showlegend=False,
            hoverinfo="skip",
        )
    for label in ("faithful", "unfaithful"):
        figure.add_scatter(
            x=ds[f"top_{label}"].values,
            y=names,
            name=f"{label} (n = {int(ds[f'n_{label}'])})",
            mode="markers",
            marker={"color": LABEL_COLOURS[label], "size": 9},
            customdata=ds["top_h"].values,
            hovertemplate=f"%{{y}}: active in %{{x:.2f}} of {label} samples"
            "<br>Cohen's h %{customdata:+.2f}<extra></extra>",
        )
    figure.update_xaxes(title="share of samples in which the neuron is active", range=[-0.03, 1.03])
    figure.update_yaxes(type="category", autorange="reversed", dtick=1)
    return Panel(
        "Neurons with the largest difference between labels",
        apply_layout(figure, height=160 + 22 * len(names)),
        f"The {len(names)} of {ds.attrs['neurons'] * ds.sizes['layer']} neurons with the largest difference, n = "
        f"{int(ds['n_faithful'])} faithful and {int(ds['n_unfaithful'])} unfaithful samples. These neurons were selected "
        "for their difference, so it would be smaller in new samples. This is a description, not a test.",
    )


def _third_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "ratio_third_by_label", "label", ds["n_label"], x="third"))
    figure.update_xaxes(title="third of the captured layers", type="category")
    figure.update_yaxes(title="share of active neurons", rangemode="tozero")
    return Panel(
        "Active neurons by thirds of the layers",
        apply_layout(figure),
        "Share of active neurons (sum above 0), mean over the layers of each third, then over samples, with 95 % "
        f"intervals over sets of images: {format_counts(ds['n_label'], 'sample')}.{_format_third_differences(ds)}",
    )


def _format_third_differences(ds: xr.Dataset) -> str:
    """Return the differences by third in words, or nothing if the labels are not compared."""
    if "note" in ds.attrs:
        return ""
    differences = []
    for third in ds["third"].values.tolist():
        differences.append(f"{third} {read_estimate(ds.sel(third=third), 'difference_third'):+.3f}")
    return f" Unfaithful minus faithful: {', '.join(differences)}."
