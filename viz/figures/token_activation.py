"""Figure of `token_activation`: the maps of the tokens with the largest peaks, over their images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import Panel, apply_layout, escape_text
from mmprobe.viz.report.images import embed_image

MAX_TOKENS = 6
_ROW = 140  # pixels of a map's height
_SIDE = (
    160  # pixels of an image under its maps; each map has its own copy, so those of many views are smaller
)


def panels(ds: xr.Dataset) -> list[Panel]:
    if not ds.sizes["image"] or not ds.sizes["step"]:
        return []
    peaks = np.nan_to_num(ds["tam"].values).reshape(ds.sizes["step"], -1).max(1)
    steps = sorted(np.argsort(-peaks, kind="stable")[:MAX_TOKENS].tolist())
    views = ds.sizes["image"]
    figure = make_subplots(
        2 * views,
        len(steps),
        column_titles=[f"{escape_text(ds['token'].values[step]).strip() or '␣'} ({step})" for step in steps],
        row_titles=[f"{name} {view + 1}" for view in range(views) for name in ("full", "plain")],
        horizontal_spacing=0.02,
        vertical_spacing=min(0.03, 0.1 / views),  # tiled models have dozens of views; all gaps must fit
    )
    images = [_embed_view(ds, view) for view in range(views)]
    for view in range(views):
        for offset, (name, axis) in enumerate((("tam", "coloraxis"), ("raw", "coloraxis2"))):
            for column, step in enumerate(steps, 1):
                heat = _draw_map(ds[name].values[step, view], axis, images[view] is not None)
                figure.add_trace(heat, 2 * view + offset + 1, column)
                _lay_over(figure, ds, view, images[view])
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(visible=False, constrain="domain")
    bar = {"thickness": 10, "len": 0.45}
    apply_layout(figure, height=120 + 2 * _ROW * views).update_layout(
        margin={"r": 96},
        coloraxis={"colorscale": "Viridis", "colorbar": bar | {"y": 0.78, "title": "full"}},
        coloraxis2={"colorscale": "Cividis", "colorbar": bar | {"y": 0.22, "title": "plain, logit"}},
    )
    over = "over the images, on the grids" if any(image is not None for image in images) else "on the grids"
    return [
        Panel(
            f"Token activation maps of sample {ds.attrs['sample']}",
            figure,
            f"The {len(steps)} of {ds.sizes['step']} generated tokens with the largest peaks, with their steps in "
            f"brackets, {over} of {views} view{'' if views == 1 else 's'}. Plain: the token's logit at each patch "
            "(equation 18). Full: minus what earlier words account for, scaled with the token's scores in the text, "
            "and smoothed. One answer, so no interval.",
        )
    ]


def _draw_map(values: np.ndarray, coloraxis: str, over_image: bool) -> go.Heatmap:
    """Draw the finite part of a map [y, x]."""
    finite = np.isfinite(values)
    rows, columns = int(finite.any(1).sum()), int(finite.any(0).sum())
    return go.Heatmap(
        z=values[:rows, :columns],
        coloraxis=coloraxis,
        opacity=0.6 if over_image else 1,
        hovertemplate="row %{y}, column %{x}: %{z:.4f}<extra></extra>",
    )


def _embed_view(ds: xr.Dataset, view: int) -> str | None:
    """Return the part of an image that a view shows; None where there is no such file here."""
    if "view_file" not in ds:
        return None
    left, top, width, height = ds["view_box"].values[view].tolist()
    frame = int(ds["view_frame"].values[view])
    source, _ = embed_image(
        Path(str(ds["view_file"].values[view])),
        (left, top, left + width, top + height),
        round(_SIDE / max(1.0, ds.sizes["image"] / 4) ** 0.5),
        None if frame < 0 else frame,
    )
    return source


def _lay_over(figure: go.Figure, ds: xr.Dataset, view: int, image: str | None) -> None:
    """Lay the last map over its image, in the image's shape."""
    heat = figure.data[-1]
    rows, columns = np.shape(heat.z)
    ratio = 1.0
    if "view_box" in ds and rows and columns:
        _, _, width, height = ds["view_box"].values[view].tolist()
        ratio = height * columns / (width * rows)
    figure.layout[heat.xaxis.replace("x", "xaxis")].range = [-0.5, columns - 0.5]
    figure.layout[heat.yaxis.replace("y", "yaxis")].update(
        range=[rows - 0.5, -0.5], scaleanchor=heat.xaxis, scaleratio=ratio
    )
    if image is not None:
        figure.add_layout_image(
            source=image, xref=heat.xaxis, yref=heat.yaxis, x=-0.5, y=-0.5, sizex=columns, sizey=rows,
            sizing="stretch", layer="below",
        )  # fmt: skip
