"""Figure of `localisation`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate, stack_estimates
from mmprobe.viz.panel import Panel, apply_layout, error_bars, format_notes

_MEASURE_NAMES = {"obj_iou": "Obj-IoU", "func_iou": "Func-IoU", "f1_iou": "F1-IoU"}
_MAPS = {"tam": ("full map", "#0072b2", ""), "raw": ("plain map, equation 18", "#999999", "/")}


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = go.Figure()
    for kind, (title, colour, pattern) in _MAPS.items():
        scores = ds.sel(map=kind)
        mean = stack_estimates([read_estimate(scores, name) for name in _MEASURE_NAMES])
        figure.add_bar(
            x=list(_MEASURE_NAMES.values()),
            y=mean.value,
            error_y=error_bars(mean, symmetric=False),
            name=title,
            marker={"color": colour, "pattern": {"shape": pattern}},
            customdata=np.stack([mean.low, mean.high], -1),
            hovertemplate="%{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
    figure.update_yaxes(title="mean over samples", range=[0, 1.05])
    return [
        Panel(
            "Localisation by token activation maps",
            apply_layout(figure).update_layout(barmode="group"),
            "Obj-IoU: overlap of a noun's map above Otsu's threshold with the noun's own regions, "
            f"n = {int(ds['n_obj'])} samples, in {int(ds['n_own'])} of which every noun has its own regions; else "
            "with all regions of the sample. Func-IoU: share of the maps of function words below the nouns' mean "
            f"threshold, n = {int(ds['n_func'])} samples. F1-IoU: harmonic mean of the two. 95 % intervals over sets "
            f"of images; {ds.attrs['model']}. {format_notes(ds)}".strip(),
        )
    ]
