"""Figure of `token_activation`: the maps of the tokens that are read from the pictures most."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.viz.panel import Panel, styled

SHOWN = 6


def panels(ds: xr.Dataset) -> list[Panel]:
    if not ds.sizes["image"] or not ds.sizes["step"]:
        return []
    peaks = np.nan_to_num(ds["tam"].values).reshape(ds.sizes["step"], -1).max(1)
    steps = sorted(np.argsort(-peaks, kind="stable")[:SHOWN].tolist())
    columns = [f"{_printable(str(ds['token'].values[step]))} ({step})" for step in steps]
    images = ds.sizes["image"]
    figure = make_subplots(
        2 * images,
        len(steps),
        column_titles=columns,
        row_titles=[f"{name} {image + 1}" for image in range(images) for name in ("full", "plain")],
        horizontal_spacing=0.02,
        vertical_spacing=min(0.03, 0.1 / images),  # of tiles there can be dozens, and all gaps must fit
    )
    for image in range(images):
        for offset, (name, axis) in enumerate((("tam", "coloraxis"), ("raw", "coloraxis2"))):
            for column, step in enumerate(steps, 1):
                values = ds[name].values[step, image]
                rows, wide = (int(np.isfinite(values).any(side).sum()) for side in (1, 0))
                heat = go.Heatmap(
                    z=values[:rows, :wide],
                    coloraxis=axis,
                    hovertemplate="row %{y}, column %{x}: %{z:.4f}<extra></extra>",
                )
                figure.add_trace(heat, 2 * image + offset + 1, column)
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(visible=False, autorange="reversed", constrain="domain")
    for heat in figure.data:  # square cells on every map, whatever the grids of the others
        figure.layout[heat.yaxis.replace("y", "yaxis")].scaleanchor = heat.xaxis
    bar = {"thickness": 10, "len": 0.45}
    styled(figure, height=120 + 240 * images).update_layout(
        margin={"t": 56, "r": 96},
        coloraxis={"colorscale": "Viridis", "colorbar": bar | {"y": 0.78, "title": "full"}},
        coloraxis2={"colorscale": "Cividis", "colorbar": bar | {"y": 0.22, "title": "plain, logit"}},
    )
    return [
        Panel(
            f"Token activation maps of sample {ds.attrs['sample']}",
            figure,
            f"The {len(steps)} of {ds.sizes['step']} generated tokens with the largest peaks, their step in brackets, on "
            f"the grids of {images} view{'' if images == 1 else 's'}. Plain: the token's logit at each patch (equation 18). "
            "Full: less what earlier words explain, scaled with the token's scores in the text, smoothed; of one answer, "
            "so without an interval.",
        )
    ]


def _printable(text: str) -> str:
    """A token's text, safe for plotly, which reads some HTML in titles."""
    return text.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") or "␣"
