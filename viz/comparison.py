"""What analyses that compare faithful and unfaithful samples layer by layer draw in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import LABEL_COLOURS, Panel, band, styled

_COMPARED = LABEL_COLOURS["all"]


def lines_by_label(
    ds: xr.Dataset, name: str, dim: str, n: xr.DataArray, legend: bool = True, x: str = "layer"
) -> list[go.Scatter]:
    """Lines with intervals of `name` (dim, x), one a label that has samples; `n` (dim) says how many.

    Faithful and unfaithful, or all where no sample has a label.
    """
    labelled = [label for label in ("faithful", "unfaithful") if int(n.sel({dim: label}))]
    traces: list[go.Scatter] = []
    for label in labelled or ["all"]:
        colour, count = LABEL_COLOURS[label], int(n.sel({dim: label}))
        value, low, high = (ds[f"{name}{end}"].sel({dim: label}).values for end in ("", "_low", "_high"))
        traces += band(ds[x].values, low, high, colour)
        traces.append(
            go.Scatter(
                x=ds[x].values,
                y=value,
                name=f"{label} (n = {count})",
                mode="lines+markers",
                line={"color": colour},
                showlegend=legend,
                customdata=np.stack([low, high], -1),
                hovertemplate=f"{label}, {x} %{{x}}: %{{y:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]"
                f"<br>n = {count}<extra></extra>",
            )
        )
    return traces


def comparison(
    ds: xr.Dataset,
    what: str,
    parts: Sequence[tuple[str, xr.DataArray, dict[str, xr.DataArray]]],
    unit: str = "samples",
) -> Panel:
    """Unfaithful minus faithful by layer, one plot a part, filled where Holm's p is under 0.05.

    Args:
        what: is compared, for the title.
        parts: title, layers, and by name difference, low, high, effect and p_holm (layer).
        unit: what the groups consist of.
    """
    figure = make_subplots(1, len(parts), subplot_titles=[part[0] for part in parts], horizontal_spacing=0.1)
    for column, (_, layers, found) in enumerate(parts, 1):
        about = np.stack([found[name].values for name in ("low", "high", "effect", "p_holm")], -1)
        line = go.Scatter(
            x=layers.values,
            y=found["difference"].values,
            mode="lines+markers",
            line={"color": _COMPARED},
            marker={
                "size": 9,
                "symbol": ["circle" if p < 0.05 else "circle-open" for p in found["p_holm"].values],
            },
            showlegend=False,
            customdata=about,
            hovertemplate="layer %{x}: %{y:+.4f} [%{customdata[0]:+.4f}, %{customdata[1]:+.4f}]"
            "<br>Hedges' g %{customdata[2]:+.2f}, p (Holm) %{customdata[3]:.4f}<extra></extra>",
        )
        interval = band(layers.values, found["low"].values, found["high"].values, _COMPARED)
        figure.add_traces([*interval, line], rows=1, cols=column)
    figure.add_hline(y=0, line={"width": 1, "dash": "dot", "color": "#888888"})
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="unfaithful minus faithful", col=1)
    return Panel(
        f"Unfaithful minus faithful: {what}",
        styled(figure),
        f"Difference of the means with its 95 % bootstrap interval, {int(ds['n_unfaithful'])} unfaithful and "
        f"{int(ds['n_faithful'])} faithful {unit}. Filled: p under 0.05 in a two-sided permutation test, corrected for "
        f"the layers by Holm's rule; hover for Hedges' g. The groups may differ in questions and length, and {unit} "
        "over the same pictures are not independent.",
    )


def counts(n: xr.DataArray, unit: str) -> str:
    """Numbers of all, faithful and unfaithful samples, in words; `n` has one dimension, the labels."""
    everyone, faithful, unfaithful = (int(count) for count in n.values)
    plain = f"n = {everyone} {unit}{'' if everyone == 1 else 's'}"
    return plain + (f", {faithful} faithful and {unfaithful} unfaithful" if faithful + unfaithful else "")


def remarks(ds: xr.Dataset) -> str:
    """What a reader of the numbers has to know: what was left out, and why labels are not compared."""
    said = []
    if ds.attrs.get("n_left_out"):
        said.append(f"Left out, holding values that are not finite: {shortened(ds.attrs['left_out'])}.")
    if ds.attrs.get("n_unpaired"):
        said.append(f"Left out, having one answer: {shortened(ds.attrs['unpaired'])}.")
    if "note" in ds.attrs:
        said.append(f"{ds.attrs['note'][0].upper()}{ds.attrs['note'][1:]}.")
    return " ".join(said)


def shortened(names: str, most: int = 5) -> str:
    """Number of the names in a list with commas, and the first of them.

    Example:
        >>> shortened("a, b, c", most=2)
        '3 (a, b, …)'
    """
    parts = names.split(", ")
    return f"{len(parts)} ({', '.join(parts[:most])}{', …' if len(parts) > most else ''})"
