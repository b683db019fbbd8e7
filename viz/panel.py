"""One figure with its title and caption, and the layout that all figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import plotly.graph_objects as go
import xarray as xr

# After Okabe and Ito: distinct with red-green and blue-yellow blindness, on white and on dark grey.
GROUP_COLOURS = {
    "template": "#a9adb3",
    "system": "#0072b2",
    "visual": "#d55e00",
    "user": "#e69f00",
    "generated": "#009e73",
}
LABEL_COLOURS = {"all": "#7c8594", "faithful": "#0072b2", "unfaithful": "#d55e00"}
UPLOAD_BUTTON = "sendChartToCloud"  # sends the figure to a server; plotly's toolbar has it by default
REFERENCE_LINE = {"width": 1, "dash": "dot", "color": "#888888"}  # of zero, chance or a threshold


@dataclass(frozen=True)
class Panel:
    """A figure for the report with its title and caption. The caption names quantity and sample size."""

    title: str
    figure: go.Figure
    caption: str


def apply_layout(figure: go.Figure, height: int = 380) -> go.Figure:
    """Set the layout that all figures share, and return the figure."""
    return figure.update_layout(
        template="simple_white",
        height=height,
        margin={"l": 64, "r": 24, "t": 40, "b": 56},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        modebar={"remove": [UPLOAD_BUTTON]},
    )


def escape_text(text: object) -> str:
    """Return a text of a model or of data as plotly must get it, which reads some HTML in its texts.

    Example:
        >>> escape_text("<a href='x'>")
        "&lt;a href='x'&gt;"
    """
    return escape(str(text), quote=False)


def describe_answer(ds: xr.Dataset) -> str:
    """Return what a caption says of a probe's one answer: also that it is not the model's, where it is the true one.

    Example:
        >>> describe_answer(xr.Dataset(attrs={"model": "tiny-spd", "answer_from": "true"}))
        'one answer, the true one and not what the model said, tiny-spd'
    """
    is_true = ds.attrs.get("answer_from") == "true"
    return f"one answer, {'the true one and not what the model said, ' * is_true}{ds.attrs['model']}"


def draw_signed_steps(
    tokens: Sequence[str], names: Sequence[str], values: np.ndarray, unit: str
) -> go.Figure:
    """Return a heat map of values [row, step] whose colours are white at 0.

    Args:
        tokens: text of each step's token.
        names: name of each row.
        values: [row, step].
        unit: unit of the values.
    """
    largest = float(np.abs(values).max(initial=0)) or 1.0
    heatmap = go.Heatmap(
        x=[f"{step} {escape_text(text)}" for step, text in enumerate(tokens)],
        y=[escape_text(name) for name in names],
        z=values,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu_r",
        colorbar={"title": unit, "thickness": 10},
        hovertemplate=f"step %{{x}}, %{{y}}: %{{z:+.3f}} {unit}<extra></extra>",
    )
    figure = apply_layout(go.Figure(heatmap), height=190 + 25 * len(names))
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    return figure.update_yaxes(autorange="reversed")


def interval_band(x: object, low: object, high: object, colour: str) -> list[go.Scatter]:
    """Return a shaded interval for the line that is added next.

    The CSV of a figure finds the ends of the interval by their `meta`.
    """
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}
    return [
        go.Scatter(x=x, y=high, meta={"end": "high"}, **edge),
        go.Scatter(x=x, y=low, meta={"end": "low"}, **fill, **edge),
    ]
