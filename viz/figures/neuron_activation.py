"""Figures of `neuron_activation`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.panel import LABEL_COLOURS, Panel, styled

_TITLES = {"": "sum above 0", "_any": "fires at any step", "_mean": "fires at most steps"}


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_ratios(ds)]
    if "note" not in ds.attrs:
        names = ("effect", "p_holm")
        parts = [
            (
                title,
                ds["layer"],
                {name: ds[f"{name}{suffix}"] for name in ("difference", *names)}
                | {end: ds[f"difference{suffix}_{end}"] for end in ("low", "high")},
            )
            for suffix, title in _rules(ds).items()
        ]
        found += [comparison(ds, "share of active neurons", parts), _most_different(ds)]
    if "ratio_third" in ds:
        found.append(_thirds(ds))
    return found


def _rules(ds: xr.Dataset) -> dict[str, str]:
    """Titles of the rules that the data set has, by the end of their variables' names."""
    titles = _TITLES | {"_mean": f"fires at over {ds.attrs['threshold']:.0%} of steps"}
    return {suffix: title for suffix, title in titles.items() if f"ratio{suffix}" in ds}


def _ratios(ds: xr.Dataset) -> Panel:
    rules = _rules(ds)
    figure = make_subplots(1, len(rules), subplot_titles=list(rules.values()), horizontal_spacing=0.08)
    for column, suffix in enumerate(rules, 1):
        lines = lines_by_label(ds, f"ratio{suffix}_by_label", "label", ds["n_label"], column == 1)
        figure.add_traces(lines, rows=1, cols=column)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="share of active neurons", col=1)
    return Panel(
        "Active FFN neurons by layer",
        styled(figure).update_layout(margin={"t": 72}, legend={"y": 1.1, "traceorder": "normal"}),
        f"Share of a layer's {ds.attrs['neurons']} neurons that are active while the answer is written; by the paper's "
        "rule if the sum of the gate over the generated tokens is above 0. Mean over samples with its 95 % bootstrap "
        f"interval: {counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. {remarks(ds)}".strip(),
    )


def _most_different(ds: xr.Dataset) -> Panel:
    names = [
        f"layer {layer}, {neuron}"
        for layer, neuron in zip(ds["top_layer"].values, ds["top_neuron"].values, strict=True)
    ]
    figure = go.Figure()
    for faithful, unfaithful, name in zip(
        ds["top_faithful"].values, ds["top_unfaithful"].values, names, strict=True
    ):
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
        "Neurons that differ most between the labels",
        styled(figure, height=160 + 22 * len(names)),
        f"The {len(names)} of {ds.attrs['neurons'] * ds.sizes['layer']} neurons with the largest difference, n = "
        f"{int(ds['n_faithful'])} faithful and {int(ds['n_unfaithful'])} unfaithful samples. Being the largest of many, "
        "they differ more here than they would in new samples; a description, not a test.",
    )


def _thirds(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "ratio_third_by_label", "label", ds["n_label"], x="third"))
    figure.update_xaxes(title="third of the captured layers", type="category")
    figure.update_yaxes(title="share of active neurons", rangemode="tozero")
    return Panel(
        "Active neurons by thirds of the layers",
        styled(figure),
        "Mean of the shares (sum above 0) over each third's layers, then over samples, with its 95 % bootstrap interval: "
        f"{counts(ds['n_label'], 'sample')}.{_third_differences(ds)}",
    )


def _third_differences(ds: xr.Dataset) -> str:
    """Differences by third in words; nothing where the labels are not compared."""
    if "note" in ds.attrs:
        return ""
    said = [
        f"{third} {float(ds['difference_third'].sel(third=third)):+.3f} "
        f"[{float(ds['difference_third_low'].sel(third=third)):+.3f}, "
        f"{float(ds['difference_third_high'].sel(third=third)):+.3f}]"
        for third in ds["third"].values.tolist()
    ]
    return f" Unfaithful minus faithful: {', '.join(said)}."
