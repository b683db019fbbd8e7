"""Figures of `logit_lens`, for one answer and for a run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.compare import read_comparison
from mmprobe.stats.estimate import format_number
from mmprobe.viz.panel import (
    Panel,
    apply_layout,
    comparison_panel,
    escape_text,
    format_counts,
    format_notes,
    plots_by_label,
)

_TITLES = {
    "logprob": "log-probability of the token, nat",
    "entropy": "entropy, nat",
    "first_share": "share of steps with rank 0",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    if "top_token" in ds:
        return [_answer_panel(ds)]
    shown = [_layer_panel(ds)]
    if "note" not in ds.attrs:
        plots = {title: read_comparison(ds.sel(measure=measure)) for measure, title in _TITLES.items()}
        shown.append(comparison_panel(ds, "logit lens", plots))
    return shown


def _layer_panel(ds: xr.Dataset) -> Panel:
    titles = {f"{name}_by_label": title for name, title in _TITLES.items()}
    return Panel(
        "Logit lens by layer",
        plots_by_label(ds, titles, "label", ds["n_label"]),
        "The residual stream after each layer, read through the final norm and the unembedding: log-probability of the "
        "generated token, entropy of the distribution, and how often the generated token is the most likely one. "
        "Mean over each answer's steps, then over samples, with 95 % intervals over sets of images: "
        f"{format_counts(ds['n_label'], 'sample')}, {ds.attrs['model']}. {format_notes(ds)}".strip(),
    )


def _answer_panel(ds: xr.Dataset) -> Panel:
    steps = [f"{step} {escape_text(text)}" for step, text in enumerate(ds["token"].values.tolist())]
    top_tokens = ds["top_token"].isel(top=0).transpose("layer", "step").values
    heatmap = go.Heatmap(
        x=steps,
        y=ds["layer"].values,
        z=ds["logprob"].transpose("layer", "step").values,
        zmax=0,
        colorscale="Viridis",
        colorbar={"title": "nat", "thickness": 10},
        text=np.vectorize(escape_text, otypes=[str])(top_tokens),
        texttemplate="%{text}" if len(steps) <= 32 else None,
        customdata=_list_top_tokens(ds),
        hovertemplate="step %{x}, layer %{y}: %{z:.2f} nat<br>most likely:<br>%{customdata}<extra></extra>",
    )
    depth = go.Scatter(
        x=steps,
        y=ds["depth"].values,
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 14, "color": "#d1495b", "line": {"width": 3}},
        hovertemplate="step %{x}: rank 0 from layer %{y} on<extra></extra>",
    )
    figure = apply_layout(go.Figure([heatmap, depth]), height=160 + 26 * ds.sizes["layer"])
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    figure.update_yaxes(title="layer")
    return Panel(
        f"Logit lens of sample {ds.attrs['sample']}",
        figure,
        "The residual stream after each layer, read through the final norm and the unembedding. Colour: log-probability "
        "of the generated token. Text: the most likely token. Red: the first layer from which on the generated token "
        f"stays the most likely one. One answer of {ds.attrs['model']}: {ds.attrs['answer']!r}.",
    )


def _list_top_tokens(ds: xr.Dataset) -> np.ndarray:
    """Return [layer, step], the most likely tokens as lines of text with their log-probabilities."""
    tokens = ds["top_token"].transpose("layer", "step", "top").values
    logprobs = ds["top_logprob"].transpose("layer", "step", "top").values
    texts = np.empty(tokens.shape[:2], dtype=object)
    for place in np.ndindex(texts.shape):
        pairs = zip(tokens[place].tolist(), logprobs[place].tolist(), strict=True)
        texts[place] = "<br>".join(
            f"{escape_text(repr(text))} {format_number(value)}" for text, value in pairs
        )
    return texts.astype(str)
