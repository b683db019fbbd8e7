"""Figures of `attention_vs_activation`."""

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
    format_counts,
    format_notes,
)

# A space at the end keeps labels distinct: plotly merges categories of the same name.
_MEASURE_NAMES = {
    "iou": "IoU of the top cells",
    "rank_correlation": "rank correlation",
    "region_mass_attention": "attention on the regions",
    "random_mass_attention": "… on random regions",
    "region_mass_activation": "activation on the regions",
    "random_mass_activation": "… on random regions ",
    "pointing_attention": "attention peak in a region",
    "random_pointing_attention": "… in a random region",
    "pointing_activation": "activation peak in a region",
    "random_pointing_activation": "… in a random region ",
}
_PLOTS = {
    "Agreement of the two maps": ["iou", "rank_correlation"],
    "Share on the regions": [name for name in _MEASURE_NAMES if "_mass_" in name],
    "Peak in the regions": [name for name in _MEASURE_NAMES if "pointing" in name],
}
_SYMBOLS = {"all": "circle", "faithful": "square", "unfaithful": "diamond"}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_mean_panel(ds)] if "note" in ds.attrs else [_mean_panel(ds), _difference_panel(ds)]


def _mean_panel(ds: xr.Dataset) -> Panel:
    figure = make_subplots(
        3,
        1,
        subplot_titles=list(_PLOTS),
        row_heights=[len(measures) for measures in _PLOTS.values()],
        vertical_spacing=0.12,
    )
    n = ds["n"].sel(measure="iou")
    labels = [label for label in ("faithful", "unfaithful") if int(n.sel(label=label))] or ["all"]
    for row, measures in enumerate(_PLOTS.values(), 1):
        for label in labels:
            values = ds.sel(measure=measures, label=label)
            mean = read_estimate(values, "mean")
            figure.add_scatter(
                x=mean.value,
                y=[_MEASURE_NAMES[measure] for measure in measures],
                error_x=error_bars(mean, symmetric=False, thickness=1.5),
                mode="markers",
                name=f"{label} (n = {int(n.sel(label=label))})",
                showlegend=row == 1,
                marker={"color": LABEL_COLOURS[label], "symbol": _SYMBOLS[label], "size": 9},
                customdata=np.stack([mean.low, mean.high, values["n"].values], -1),
                hovertemplate=f"{label}, %{{y}}: %{{x:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]"
                "<br>n = %{customdata[2]}<extra></extra>",
                row=row,
                col=1,
            )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="mean over steps and samples", row=3)
    return Panel(
        "Attention and token activation",
        apply_layout(figure, height=560),
        "Agreement of each step's attention map (mean over heads and layers) with its token activation map, and the "
        f"share of each map on the changed regions. Baseline: {ds.attrs['draws']} random regions of the same size. "
        f"Top cells: the largest {format_number(ds.attrs['top'], '.0%')}. Means with 95 % intervals over sets of images: "
        f"{format_counts(n, 'sample')}, {ds.attrs['model']}. Fewer samples have regions; hover for n. "
        f"{format_notes(ds)}".strip(),
    )


def _difference_panel(ds: xr.Dataset) -> Panel:
    measures = [name for name in ds["measure"].values.tolist() if "random" not in name]
    compared = ds.sel(measure=measures)
    difference = read_estimate(compared, "difference")
    effect, p_holm = compared["effect"].values, compared["p_holm"].values
    figure = go.Figure(
        go.Scatter(
            x=difference.value,
            y=[name.replace("_", " ") for name in measures],
            error_x=error_bars(difference, symmetric=False),
            mode="markers",
            marker={
                "color": LABEL_COLOURS["all"],
                "size": 9,
                "symbol": ["circle" if p < 0.05 else "circle-open" for p in p_holm],
            },
            customdata=np.stack([difference.low, difference.high, effect, p_holm], -1),
            hovertemplate="%{y}: %{x:+.4f} [%{customdata[0]:+.4f}, %{customdata[1]:+.4f}]"
            "<br>Hedges' g %{customdata[2]:+.2f}, p (Holm) %{customdata[3]:.4f}<extra></extra>",
        )
    )
    figure.add_vline(x=0, line=REFERENCE_LINE)
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="unfaithful minus faithful")
    return Panel(
        "Unfaithful minus faithful: attention and token activation",
        apply_layout(figure, height=340),
        "Difference of the means with 95 % intervals over sets of images. Filled: p < 0.05 in a two-sided "
        "permutation test, with Holm's correction over the measures. Hover for Hedges' g. Lift is the share on the regions minus the share "
        "on random regions.",
    )
