"""Figures of `evaluate_circuit`, `check_circuit` and `patch_edges`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import LABEL_COLOURS, REFERENCE_LINE, Panel, apply_layout, interval_line

_RANKINGS = {
    "score": ("the highest scores", LABEL_COLOURS["faithful"]),
    "magnitude": ("the largest absolute scores", LABEL_COLOURS["unfaithful"]),
    "random": ("random edges", LABEL_COLOURS["all"]),
}


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return the faithfulness of growing circuits."""
    figure = apply_layout(go.Figure())
    percent = 100 * ds["share"].values
    for ranking in ds["ranking"].values.tolist():
        name, colour = _RANKINGS[ranking]
        mean = read_estimate(ds.sel(ranking=ranking), "faithfulness")
        band = bool(np.isfinite(mean.low).all())
        figure.add_traces(interval_line(percent, mean, colour, band=band, name=name))
    for level in (0, 1):
        figure.add_hline(y=level, line=REFERENCE_LINE)
    positive = percent[percent > 0]
    figure.update_xaxes(title="edges that are kept (%)", type="log", tickvals=positive)
    figure.update_yaxes(title="faithfulness")
    pairs = ds.attrs.get("n_held_out", ds.attrs["n"])
    caption = (
        "All edges but the best carry the corrupt prompt's values. 1: the answers' metric is that of the whole model; "
        f"0: that of the corrupt prompts. CPR {read_estimate(ds, 'cpr'):.2f} (random edges {read_estimate(ds, 'cpr_random'):.2f}), CMD "
        f"{read_estimate(ds, 'cmd'):.2f} ({read_estimate(ds, 'cmd_random'):.2f}). Bands: 95 % intervals over sets of images. "
        f"{pairs} pairs, {ds.attrs['model']}."
    )
    return [Panel("What the best edges keep up alone", figure, caption)]


def check_panels(ds: xr.Dataset) -> list[Panel]:
    """Return scores against exact effects of edges and nodes."""
    shown = []
    for kind, text in (("edge", ds["edge_name"].values), ("node", ds["source"].values)):
        score, effect = ds[f"{kind}_score"].values, ds[f"{kind}_effect"].values
        texts = np.broadcast_to(text, score.shape).ravel()
        marker = {"color": LABEL_COLOURS["faithful"], "size": 6, "opacity": 0.6}
        points = go.Scatter(x=score.ravel(), y=effect.ravel(), text=texts, mode="markers", marker=marker)
        figure = apply_layout(go.Figure(points))
        figure.update_xaxes(title=f"score ({ds.attrs['metric']})")
        figure.update_yaxes(title="exact effect")
        caption = (
            f"Each point is one {kind} of one pair. Spearman's correlation within a pair: "
            f"{read_estimate(ds, f'{kind}_agreement'):.2f}. {ds.attrs['n']} pairs, {ds.attrs['model']}."
        )
        shown.append(Panel(f"Scores and exact effects of {kind}s", figure, caption))
    return shown


def edge_panels(ds: xr.Dataset) -> list[Panel]:
    """Return the exact effects of single edges."""
    names = [f"{a} → {b}" for a, b in zip(ds["source"].values, ds["destination"].values, strict=True)]
    bars = go.Bar(
        x=ds["effect"].values, y=names, orientation="h", marker={"color": LABEL_COLOURS["faithful"]}
    )
    figure = apply_layout(go.Figure(bars), height=160 + 26 * len(names))
    figure.update_xaxes(title=f"loss ({ds.attrs['metric']})")
    figure.update_yaxes(autorange="reversed")
    caption = (
        "The named edge alone carries the corrupt prompt's values. Above 0: the answer loses by it. Mean over "
        f"{ds.attrs['n']} pairs, {ds.attrs['model']}."
    )
    return [Panel("Exact effects of single edges", figure, caption)]
