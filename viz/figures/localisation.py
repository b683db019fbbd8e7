"""Figure of `localisation`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate, stack_estimates
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    Panel,
    apply_layout,
    draw_samples,
    error_bars,
    format_notes,
    name_points,
)

_MEASURE_NAMES = {"obj_iou": "Obj-IoU", "func_iou": "Func-IoU", "f1_iou": "F1-IoU"}
_OF_SAMPLES = ("obj_iou", "func_iou")  # the harmonic mean is of their means
_MAPS = {
    "tam": ("full map", "#0072b2", "diamond"),
    "raw": ("plain map, equation 18", "#d55e00", "circle"),
}

_GAP = 0.3  # between the groups of all kinds of traces, so that their centres are the same
_GROUPED = {f"{kind}mode": "group" for kind in ("box", "violin", "scatter")} | {
    f"{kind}gap": _GAP for kind in ("box", "violin", "scatter")
}


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = go.Figure()
    for kind, (title, colour, symbol) in _MAPS.items():
        scores = ds.sel(map=kind)
        mean = stack_estimates([read_estimate(scores, name) for name in _MEASURE_NAMES])
        own = [scores[f"{name}_sample"].values for name in _OF_SAMPLES]
        measures, names = list(_MEASURE_NAMES.values()), ds["sample"].values.tolist()
        figure.add_trace(
            draw_samples(
                measures[: len(own)], np.stack(own, -1), names, LABEL_COLOURS["all"], offsetgroup=kind
            )
        )
        figure.add_scatter(
            x=measures,
            y=mean.value,
            mode="markers",
            offsetgroup=kind,
            error_y=error_bars(mean, symmetric=False, thickness=2, width=8),
            name=title,
            marker={"color": colour, "symbol": symbol, "size": 10},
            customdata=np.stack([mean.low, mean.high], -1),
            hovertemplate="%{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=list(_MEASURE_NAMES.values()))
    figure.update_yaxes(title="overlap, 0 to 1", range=[-0.03, 1.05])
    return [
        Panel(
            "Localisation by token activation maps",
            apply_layout(figure).update_layout(_GROUPED),
            "Obj-IoU: overlap of a noun's map above Otsu's threshold with the noun's own regions, "
            f"n = {int(ds['n_obj'])} samples, in {int(ds['n_own'])} of which every noun has its own regions; else "
            "with all regions of the sample. Func-IoU: share of the maps of function words below the nouns' mean "
            f"threshold, n = {int(ds['n_func'])} samples. F1-IoU: harmonic mean of the two. Means with 95 % intervals over "
            f"sets of images. {name_points(ds.sizes['sample'])} {ds.attrs['model']}. {format_notes(ds)}".strip(),
        )
    ]
