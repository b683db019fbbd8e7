"""Figure of `localisation`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.comparison import remarks
from mmprobe.viz.panel import Panel, styled

_NAMES = {"obj_iou": "Obj-IoU", "func_iou": "Func-IoU", "f1_iou": "F1-IoU"}
_MAPS = {"tam": ("full map", "#0072b2", ""), "raw": ("plain map, equation 18", "#999999", "/")}


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = go.Figure()
    for kind, (title, colour, pattern) in _MAPS.items():
        of = ds.sel(map=kind)
        mean, low, high = (
            np.array([float(of[f"{name}{end}"]) for name in _NAMES]) for end in ("", "_low", "_high")
        )
        figure.add_bar(
            x=list(_NAMES.values()),
            y=mean,
            error_y={"array": high - mean, "arrayminus": mean - low, "symmetric": False},
            name=title,
            marker={"color": colour, "pattern": {"shape": pattern}},
            customdata=np.stack([low, high], -1),
            hovertemplate="%{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
        )
    figure.update_yaxes(title="mean over samples", range=[0, 1.05])
    return [
        Panel(
            "Do words light up their objects?",
            styled(figure).update_layout(barmode="group"),
            f"Obj-IoU: maps of nouns above Otsu's threshold against the regions, n = {int(ds['n_obj'])} samples. Func-IoU: "
            f"share of function words' maps below the nouns' mean threshold, n = {int(ds['n_func'])}. F1-IoU: harmonic mean "
            f"of the two. 95 % bootstrap intervals over samples; {ds.attrs['model']}. {remarks(ds)}".strip(),
        )
    ]
