"""Figure of CHAIR by length: recall of objects against hallucinated mentions, of captions that are cut and of lists that need no image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import xarray as xr
from plotly.colors import qualitative

from mmprobe.stats.estimate import Estimate, read_estimate
from mmprobe.viz.panel import Panel, apply_layout, error_bars, escape_text

COMMONEST = "the commonest objects"
_AXES = ("chair_i", "recall")
_LENGTH = re.compile(r"(?P<axis>chair_i|recall)\[(?P<kind>words|commonest)=(?P<length>\d+)\]")


def read_lengths(metrics: Mapping[str, Estimate[Any]], name: str = "captions") -> xr.Dataset | None:
    """Return the metrics at each length (`bench chair --lengths`); None where there are none.

    Args:
        metrics: by name, as in results.json.
        name: of the line of captions.

    Returns:
        chair_i, recall (source, length), each with `NAME_low` and `NAME_high`. The sources are the captions, at most so many words
        long, and lists of as many of the commonest objects.

    Example:
        >>> names = ("chair_i[words=8]", "recall[words=8]")
        >>> read_lengths({name: Estimate(0.5, 0.4, 0.6) for name in names})["recall"].item()
        0.5
    """
    found = {
        (m["axis"], m["kind"], int(m["length"])): metrics[each]
        for each in metrics
        if (m := _LENGTH.fullmatch(each))
    }
    if not found:
        return None
    kinds = {"words": name, "commonest": COMMONEST}
    shown = [kind for kind in kinds if any(kind == each for _, each, _ in found)]
    lengths = sorted({length for _, _, length in found})
    unknown = Estimate(float("nan"), float("nan"), float("nan"))
    variables: dict[str, object] = {}
    for axis in _AXES:
        for end, part in (("", "value"), ("_low", "low"), ("_high", "high")):
            rows = [
                [getattr(found.get((axis, kind, length), unknown), part) for length in lengths]
                for kind in shown
            ]
            variables[f"{axis}{end}"] = (
                ("source", "length"),
                [[float("nan") if x is None else x for x in row] for row in rows],
            )
    coords = {"source": [kinds[kind] for kind in shown], "length": lengths}
    return xr.Dataset(variables, coords, {"analysis": "caption_lengths"})


def panels(ds: xr.Dataset) -> list[Panel]:
    """Return the frontier, a line a source and a point a length."""
    figure = go.Figure()
    for index, source in enumerate(ds["source"].values):
        own = ds.sel(source=source)
        chair, recall = (read_estimate(own, axis) for axis in _AXES)
        colour = "#7c8594" if source == COMMONEST else qualitative.Safe[index % len(qualitative.Safe)]
        name = escape_text(source)
        figure.add_trace(
            go.Scatter(
                x=chair.value,
                y=recall.value,
                error_x=error_bars(chair, thickness=1),
                error_y=error_bars(recall, thickness=1),
                mode="lines+markers+text",
                text=[str(length) for length in ds["length"].values],
                textposition="top center",
                name=name,
                line={"color": colour, "dash": "dot" if source == COMMONEST else "solid"},
                hovertemplate=f"{name}, %{{text}}: hallucinated %{{x:.3f}}, recall %{{y:.3f}}<extra></extra>",
            )
        )
    figure.update_xaxes(title="share of hallucinated mentions (chair_i)")
    figure.update_yaxes(title="recall of shown objects")
    caption = (
        "Captions cut after the number of words at each point; the dotted line is of lists of so many of the objects that most other "
        "images show, which need no image. Up and to the left is better. 95 % intervals over sets of images."
    )
    return [Panel("Recall against hallucination, by length", apply_layout(figure, 460), caption)]
