"""Figures of `attention_vs_activation`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.comparison import counts, remarks
from mmprobe.viz.panel import LABEL_COLOURS, Panel, styled

_NAMES = {
    "iou": "IoU of the top cells",
    "rank_correlation": "rank correlation",
    "region_mass_attention": "attention on the regions",
    "random_mass_attention": "… on random places",
    "region_mass_activation": "activation on the regions",
    "random_mass_activation": "… on random places ",
    "pointing_attention": "attention points at them",
    "random_pointing_attention": "… at random places",
    "pointing_activation": "activation points at them",
    "random_pointing_activation": "… at random places ",
}
_SYMBOLS = {"all": "circle", "faithful": "square", "unfaithful": "diamond"}


def panels(ds: xr.Dataset) -> list[Panel]:
    found = [_means(ds)]
    return found if "note" in ds.attrs else [*found, _differences(ds)]


def _means(ds: xr.Dataset) -> Panel:
    parts: Sequence[tuple[str, list[str]]] = (
        ("Do the maps agree?", ["iou", "rank_correlation"]),
        ("How much lies on the regions?", [name for name in _NAMES if "_mass_" in name]),
        ("Does the peak?", [name for name in _NAMES if "pointing" in name]),
    )
    figure = make_subplots(
        3,
        1,
        subplot_titles=[title for title, _ in parts],
        row_heights=[len(measures) for _, measures in parts],
        vertical_spacing=0.12,
    )
    n = ds["n"].sel(measure="iou")
    labelled = [label for label in ("faithful", "unfaithful") if int(n.sel(label=label))] or ["all"]
    for row, (_, measures) in enumerate(parts, 1):
        for label in labelled:
            of = ds.sel(measure=measures, label=label)
            mean, low, high = of["mean"].values, of["mean_low"].values, of["mean_high"].values
            figure.add_scatter(
                x=mean,
                y=[_NAMES[measure] for measure in measures],
                error_x={
                    "array": high - mean,
                    "arrayminus": mean - low,
                    "symmetric": False,
                    "thickness": 1.5,
                },
                mode="markers",
                name=f"{label} (n = {int(n.sel(label=label))})",
                showlegend=row == 1,
                marker={"color": LABEL_COLOURS[label], "symbol": _SYMBOLS[label], "size": 9},
                customdata=np.stack([low, high, of["n"].values], -1),
                hovertemplate=f"{label}, %{{y}}: %{{x:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]"
                "<br>n = %{customdata[2]}<extra></extra>",
                row=row,
                col=1,
            )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="mean over steps and samples", row=3)
    return Panel(
        "Attention and token activation",
        styled(figure, height=560).update_layout(margin={"t": 84}, legend={"y": 1.06}),
        "Agreement of each step's attention map (mean over heads and layers) with its token activation map, and how much "
        f"of each lies on the regions that changed, against {ds.attrs['draws']} random places of the same size. Top: "
        f"{ds.attrs['top']:.0%} of the cells. Means with 95 % bootstrap intervals over samples: {counts(n, 'sample')}, "
        f"{ds.attrs['model']}; measures on regions have fewer (hover). {remarks(ds)}".strip(),
    )


def _differences(ds: xr.Dataset) -> Panel:
    measures = [name for name in ds["measure"].values.tolist() if "random" not in name]
    of = ds.sel(measure=measures)
    values, low, high = (of[f"difference{end}"].values for end in ("", "_low", "_high"))
    names = [name.replace("_", " ") for name in measures]
    figure = go.Figure(
        go.Scatter(
            x=values,
            y=names,
            error_x={"array": high - values, "arrayminus": values - low, "symmetric": False},
            mode="markers",
            marker={
                "color": LABEL_COLOURS["all"],
                "size": 9,
                "symbol": ["circle" if p < 0.05 else "circle-open" for p in of["p_holm"].values],
            },
            customdata=np.stack([low, high, of["effect"].values, of["p_holm"].values], -1),
            hovertemplate="%{y}: %{x:+.4f} [%{customdata[0]:+.4f}, %{customdata[1]:+.4f}]"
            "<br>Hedges' g %{customdata[2]:+.2f}, p (Holm) %{customdata[3]:.4f}<extra></extra>",
        )
    )
    figure.add_vline(x=0, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="unfaithful minus faithful")
    return Panel(
        "Unfaithful minus faithful: attention and token activation",
        styled(figure, height=340),
        "Difference of the means with its 95 % bootstrap interval. Filled: p under 0.05 in a two-sided permutation test, "
        "corrected for the measures by Holm's rule; hover for Hedges' g. Lift is the share on the regions less that on "
        "random places. Samples over the same pictures are not independent.",
    )
