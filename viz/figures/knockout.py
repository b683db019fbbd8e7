"""Figures of `attention_knockout` and `attention_knockout_run`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.comparison import comparison, counts, lines_by_label, remarks
from mmprobe.viz.figures.patching import of_one_answer
from mmprobe.viz.panel import Panel, styled


def panels(ds: xr.Dataset) -> list[Panel]:
    if "change_by_step" in ds:
        title = f"What the answer of sample {ds.attrs['sample']} loses without looks at {ds.attrs['group']} tokens"
        return [of_one_answer(ds, title, f"Attention knockout, {_window(ds)}.")]
    found = [_by_layer(ds)]
    if "note" not in ds.attrs:
        names = {"difference": "difference", "low": "difference_low", "high": "difference_high"}
        variables = {
            name: ds[variable]
            for name, variable in (names | {"effect": "effect", "p_holm": "p_holm"}).items()
        }
        found.append(comparison(ds, "what knockout costs", [("nat per token", ds["layer"], variables)]))
    return found


def _by_layer(ds: xr.Dataset) -> Panel:
    figure = go.Figure(lines_by_label(ds, "change_by_label", "label", ds["n_label"]))
    figure.add_hline(y=0, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_xaxes(title="layer (centre of the window)")
    figure.update_yaxes(title="change of log-probability, nat per token")
    without = ds.attrs["n_without_group"]
    return Panel(
        f"Which layers' looks at {ds.attrs['group']} tokens the answers need",
        styled(figure),
        f"Attention knockout, {_window(ds)}: the queries of the answer's steps cannot attend to {ds.attrs['group']} tokens "
        "there, and the model reads its own answer again. Mean over each answer's tokens, then over samples, with its "
        f"95 % bootstrap interval: {counts(ds['n_label'], 'sample')}, {ds.attrs['model']}."
        f"{f' Without such tokens: {without}.' if without else ''} {remarks(ds)}".strip(),
    )


def _window(ds: xr.Dataset) -> str:
    layers = ds.attrs["window"]
    return "one layer at a time" if layers == 1 else f"{layers} layers at a time"
