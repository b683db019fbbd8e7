"""One figure with its words, and the look that all figures share."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

GROUP_COLOURS = {
    "template": "#9aa0a6",
    "system": "#6f7fb5",
    "visual": "#d1495b",
    "user": "#e0a030",
    "generated": "#2f8f6b",
}
LABEL_COLOURS = {"all": "#4a5568", "faithful": "#2f8f6b", "unfaithful": "#d1495b"}


@dataclass(frozen=True)
class Panel:
    """A figure for the report: title, figure, and a caption that says what is shown and of how many samples."""

    title: str
    figure: go.Figure
    caption: str


def styled(figure: go.Figure, height: int = 380) -> go.Figure:
    """The shared layout: no clutter, room for labels, readable in print."""
    return figure.update_layout(
        template="simple_white",
        height=height,
        margin={"l": 64, "r": 24, "t": 40, "b": 56},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )


def band(x: object, low: object, high: object, colour: str) -> list[go.Scatter]:
    """A shaded interval around a line."""
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return [
        go.Scatter(x=x, y=high, **edge),
        go.Scatter(x=x, y=low, fill="tonexty", fillcolor=f"rgba({red},{green},{blue},0.18)", **edge),
    ]
