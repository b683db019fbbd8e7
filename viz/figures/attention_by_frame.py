"""Figure of `attention_by_frame`: a row a frame, a column a generated token."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import format_number
from mmprobe.viz.panel import Panel, apply_layout, escape_text


def panels(ds: xr.Dataset) -> list[Panel]:
    if not ds.sizes["frame"] or not ds.sizes["step"]:
        return []
    names = [_name_frame(ds.isel(frame=frame)) for frame in range(ds.sizes["frame"])]
    tokens = [f"{step}: {escape_text(text).strip() or '␣'}" for step, text in enumerate(ds["token"].values)]
    figure = go.Figure(
        go.Heatmap(
            z=100 * ds["attention"].values,
            x=tokens,
            y=names,
            customdata=ds["activation"].values,
            colorscale="Viridis",
            zmin=0,
            colorbar={"title": "attention, %", "thickness": 10},
            hovertemplate="%{y}, token %{x}: %{z:.2f} % of attention, peak of the token activation map "
            "%{customdata:.2f}<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", title="frame")
    figure.update_xaxes(title="generated token", tickangle=-60)
    return [
        Panel(
            f"Attention by frame and token, sample {ds.attrs['sample']}",
            apply_layout(figure, height=200 + 22 * len(names)).update_layout(margin={"l": 180, "b": 110}),
            f"How much each generated token attends to the visual tokens of each frame: the mean over layers and heads, in "
            f"percent of all its attention, for {len(tokens)} tokens and {len(names)} rows of frames. One answer, so no "
            "interval. Attention is not use: exchange a frame (image_interchange) to see what the answer loses.",
        )
    ]


def _name_frame(frame: xr.Dataset) -> str:
    """Return the name of a row: its video, its frames and their time."""
    first, last, time = frame["first"].item(), frame["last"].item(), frame["time"].item()
    shown = f"frame {first}" if first == last else f"frames {first} to {last}"
    return f"video {frame['video'].item() + 1}, {shown}" + (
        f" ({format_number(time)} s)" if np.isfinite(time) else ""
    )
