"""Figures of `find_circuit` and `circuit_run`: the strongest edges as a graph, layers upwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.figures import circuit_faithfulness
from mmprobe.viz.panel import LABEL_COLOURS, Panel, apply_layout

EDGES = 45  # that are drawn at most; our choice
_DASHES = {"q": "dot", "k": "dash", "v": "solid"}
_NAMES = {"q": "to queries", "k": "to keys", "v": "to values, FFNs and logits"}
_OFFSETS = {"q": -0.16, "k": 0.0, "v": 0.16}  # of an edge's end from the head's centre
_COLOURS = {True: LABEL_COLOURS["faithful"], False: LABEL_COLOURS["unfaithful"]}
_WIDEST = 9.0  # pixels


class Edge(NamedTuple):
    """One edge: the rows of its source and its destination in the data set, and its score."""

    source: int
    destination: int
    score: float


def panels(ds: xr.Dataset) -> list[Panel]:
    edges = select_edges(ds)
    total = int(np.isfinite(ds["score"].values).sum())
    caption = (
        f"The {len(edges)} strongest of {total:,} edges on a path from the input to the logits (of the "
        f"{EDGES} with the largest scores). Blue: the answer loses when the edge carries the corrupt prompt's values, "
        "so the model used it; orange: it gains. The width is the size of the score. Numbers are layer.head. "
        "An edge ends at a head's queries (dotted), keys (dashed) or values (solid); keys and values that a group of "
        f"heads shares end at the bar below the group. Scores are estimates (EAP-IG, {ds.attrs['steps']} points) of the "
        f"loss in {ds.attrs['metric']}, mean over {ds.attrs['n']} pairs, {ds.attrs['model']}."
    )
    shown = [Panel("The circuit by which the images reach the answer", _draw(ds, edges), caption)]
    return shown + (circuit_faithfulness.panels(ds) if "faithfulness" in ds else [])


def select_edges(ds: xr.Dataset, most: int = EDGES) -> list[Edge]:
    """Return the edges with the largest scores on a path from the input to the logits."""
    scores = np.nan_to_num(ds["score"].values)
    order = np.argsort(-np.abs(scores), axis=None, kind="stable")[:most]
    places = [np.unravel_index(flat, scores.shape) for flat in order]
    edges = [Edge(int(a), int(b), float(scores[a, b])) for a, b in places if scores[a, b] != 0]
    while True:
        heard = {row for edge in edges for row in _heads_of(ds, edge.destination)}
        spoken = {edge.source for edge in edges}
        kept = [
            edge
            for edge in edges
            if (ds["source_kind"].values[edge.source] in ("text", "image", "between") or edge.source in heard)
            and (
                ds["destination_kind"].values[edge.destination] == "logits"
                or spoken & set(_heads_of(ds, edge.destination))
            )
        ]
        if len(kept) == len(edges):
            return edges
        edges = kept


def _heads_of(ds: xr.Dataset, destination: int) -> list[int]:
    """Return the rows of the sources that compute from what a destination reads."""
    kind, layer, head = (ds[f"destination_{key}"].values[destination] for key in ("kind", "layer", "head"))
    same = ds["source_layer"].values == layer
    if kind == "ffn":
        return np.flatnonzero(same & (ds["source_kind"].values == "ffn")).tolist()
    group = 1 if kind == "q" else ds.attrs["group_size"]
    heads = same & (ds["source_kind"].values == "head") & (ds["source_head"].values // group == head)
    return np.flatnonzero(heads).tolist()


def _draw(ds: xr.Dataset, edges: list[Edge]) -> go.Figure:
    n_layers = int(ds["source_layer"].max()) + 1
    places = _place_sources(ds)
    figure = apply_layout(go.Figure(), height=260 + 62 * n_layers)
    largest = max((abs(edge.score) for edge in edges), default=1.0)
    for edge in reversed(edges):  # the strongest on top
        figure.add_trace(_draw_edge(ds, edge, places, largest))
    _draw_groups(figure, ds, edges, places)
    _draw_nodes(figure, ds, places, {edge.source for edge in edges})
    for name, dash in _DASHES.items():
        line = {"color": "#666666", "dash": dash, "width": 2}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=_NAMES[name]))
    for positive, name in ((True, "the answer loses"), (False, "the answer gains")):
        line = {"color": _COLOURS[positive], "width": 5}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=name))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(title="layer", tickvals=list(range(n_layers)), zeroline=False)
    return figure


def _place_sources(ds: xr.Dataset) -> np.ndarray:
    """Return the positions of the sources, [source, x and y]: heads at their layer, FFNs on the right."""
    kinds, layers, heads = (ds[f"source_{key}"].values for key in ("kind", "layer", "head"))
    middle = (int(heads[kinds == "head"].max()) if (kinds == "head").any() else 0) / 2
    right = 2 * middle + 1.5
    x, y = np.where(kinds == "head", heads, right).astype(float), layers.astype(float)
    y[kinds == "ffn"] += 0.5
    y[kinds == "between"] -= 0.35
    x[kinds == "between"] = -1
    inputs = np.flatnonzero(layers < 0)
    x[inputs] = middle + 1.6 * (np.arange(len(inputs)) - (len(inputs) - 1) / 2)
    y[inputs] = -0.9
    return np.column_stack([x, y])


def _place_logits(ds: xr.Dataset, places: np.ndarray) -> np.ndarray:
    return np.array([places[ds["source_kind"].values == "head", 0].mean(), places[:, 1].max() + 0.7])


def _draw_edge(ds: xr.Dataset, edge: Edge, places: np.ndarray, largest: float) -> go.Scatter:
    kind = str(ds["destination_kind"].values[edge.destination])
    start = places[edge.source]
    if kind == "logits":
        end = _place_logits(ds, places)
    else:
        end = places[_heads_of(ds, edge.destination)].mean(0) + (_OFFSETS.get(kind, 0.0), -0.14)
    names = ds["source"].values[edge.source], ds["destination"].values[edge.destination]
    middle = (start + end) / 2 + (0.08 * (end - start)[1] * np.sign(start[0] - end[0] + 1e-9), 0)
    path = np.array([start, middle, end])
    width = 0.6 + (_WIDEST - 0.6) * abs(edge.score) / largest
    return go.Scatter(
        x=path[:, 0],
        y=path[:, 1],
        mode="lines",
        line={"width": width, "color": _COLOURS[edge.score > 0], "dash": _DASHES.get(kind, "solid"),
              "shape": "spline"},
        opacity=0.6,
        text=f"{names[0]} → {names[1]}: {edge.score:+.3g}",
        hoverinfo="text",
        showlegend=False,
    )  # fmt: skip


def _draw_groups(figure: go.Figure, ds: xr.Dataset, edges: list[Edge], places: np.ndarray) -> None:
    """Draw a bar below the heads that share keys or values in which an edge ends."""
    for destination in {edge.destination for edge in edges}:
        ends = places[_heads_of(ds, destination)]
        if ds["destination_kind"].values[destination] in ("k", "v") and len(ends) > 1:
            first, last = ends[0, 0] - 0.2, ends[-1, 0] + 0.2
            bar = {"y0": ends[0, 1] - 0.14, "y1": ends[0, 1] - 0.14, "line": {"width": 2, "color": "#999999"}}
            figure.add_shape(type="line", x0=first, x1=last, **bar)


def _draw_nodes(figure: go.Figure, ds: xr.Dataset, places: np.ndarray, used: set[int]) -> None:
    names, kinds = ds["source"].values, ds["source_kind"].values
    rows = sorted(used)
    others = sorted(set(range(len(names))) - used)
    figure.add_trace(
        go.Scatter(x=places[others, 0], y=places[others, 1], mode="markers", text=names[others], hoverinfo="text",
                   marker={"size": 4, "color": "#cccccc"}, showlegend=False)
    )  # fmt: skip
    labels = [
        str(name).removeprefix("head ").replace("ffn ", "FFN ") if kind in ("head", "ffn") else str(name)
        for name, kind in zip(names[rows], kinds[rows], strict=True)
    ]
    for place, label in zip([*places[rows], _place_logits(ds, places)], [*labels, "logits"], strict=True):
        figure.add_annotation(
            x=place[0], y=place[1], text=label, showarrow=False, bgcolor="#ffffff", bordercolor="#555555",
            borderpad=2, font={"size": 11},
        )  # fmt: skip
