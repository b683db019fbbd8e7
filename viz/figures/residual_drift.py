"""Figures of `residual_drift`. The paper is SPD-Faith Bench (arXiv:2602.07833)."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.compare import read_comparison
from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    Panel,
    apply_layout,
    comparison_panel,
    draw_rows,
    format_counts,
    format_notes,
    interval_line,
    plots_by_label,
)


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_mean_panel(ds), _pair_panel(ds)]
    if int(ds["n_consistency"].sel(consistency="contradictory")):
        shown.append(_contradiction_panel(ds))
    if "note" not in ds.attrs:
        plots = {
            "mean over steps (as in the paper)": read_comparison(ds),
            "same step": read_comparison(ds, "_aligned"),
        }
        shown.append(comparison_panel(ds, "cosine of paired answers", plots, "pairs"))
    return shown


def _mean_panel(ds: xr.Dataset) -> Panel:
    titles = {
        "cosine_mean": "of the mean over steps (as in the paper)",
        "cosine_aligned_mean": "mean over shared steps",
    }
    figure = plots_by_label(ds, titles, "faithful", ds["n"], spacing=0.12)
    figure.update_yaxes(title="cosine of the two answers", col=1)
    return Panel(
        "Similarity of the answers to opposite questions",
        figure,
        f"Cosine between the residual streams ({ds.attrs['stream']} of each layer) of the answers to 'same?' and "
        "'different?' about the same images; 1 means the same direction. Means over pairs with 95 % intervals over sets "
        "of images: "
        f"{format_counts(ds['n'], 'pair')}, {ds.attrs['model']}. A pair is unfaithful if either answer is. Left: cosine "
        f"of the means over steps. Right: mean over the {_format_range(ds['n_steps'].values)} steps that both answers "
        f"have. {_format_contradictions(ds)} {format_notes(ds)}".strip(),
    )


def _contradiction_panel(ds: xr.Dataset) -> Panel:
    figure, layers = go.Figure(), ds["layer"].values
    for kind, label in (("consistent", "faithful"), ("contradictory", "unfaithful")):
        of_kind, colour = ds.sel(consistency=kind), LABEL_COLOURS[label]
        mean = read_estimate(of_kind, "cosine_by_consistency")
        name = f"{kind} (n = {int(of_kind['n_consistency'])})"
        figure.add_traces(interval_line(layers, mean, colour, f"{kind}, layer %{{x}}: %{{y:.4f}}", name=name))
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="cosine of the two answers")
    return Panel(
        "Similarity of contradictory and consistent answers",
        apply_layout(figure),
        "The grouping of the paper's figure 8a. Answers to 'same?' and 'different?' contradict each other if both are yes "
        f"or both are no. {_format_contradictions(ds)} Cosine of the means over steps, mean over pairs, with 95 % "
        f"intervals over sets of images. {_format_test(ds)}".strip(),
    )


def _format_contradictions(ds: xr.Dataset) -> str:
    consistent, contradictory = (int(count) for count in ds["n_consistency"].values)
    unread = ds.sizes["pair"] - consistent - contradictory
    return (
        f"Pairs: {contradictory} contradictory ({int(ds['n_both_yes'])} yes and yes, {int(ds['n_both_no'])} no and no) "
        f"and {consistent} consistent" + (f", {unread} neither yes nor no." if unread else ".")
    )


def _format_test(ds: xr.Dataset) -> str:
    """Return in words in which layers the groups differ, or why they are not compared."""
    if "note_contradictory" in ds.attrs:
        return f"{ds.attrs['note_contradictory']}."
    layers = ds["layer"].values[ds["p_holm_contradictory"].values < 0.05]
    found = f"layers {', '.join(map(str, layers))}" if len(layers) else "no layer"
    return f"They differ in {found} (p < 0.05, permutation test with Holm's correction)."


def _format_range(values: np.ndarray) -> str:
    return str(values.min()) if values.min() == values.max() else f"{values.min()} to {values.max()}"


def _pair_panel(ds: xr.Dataset) -> Panel:
    return Panel(
        "Similarity by pair",
        draw_rows(ds, "cosine", "pair", "cosine", "pair %{y}, layer %{x}: %{z:.4f}", zmax=1),
        f"Cosine of the means over steps, for each of {ds.sizes['pair']} pairs. Each row is one pair. The two answers "
        "differ where a row is dark.",
    )
