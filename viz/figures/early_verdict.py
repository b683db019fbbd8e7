"""Figure of `early_verdict`: where an answer's verdict can be read, by layer."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import GROUP_COLOURS, REFERENCE_LINE, Panel, apply_layout, escape_text, interval_line


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = go.Figure()
    colours = list(GROUP_COLOURS.values())
    for number, point in enumerate(ds["point"].values.tolist()):
        row, colour = ds.sel(point=point), colours[number % len(colours)]
        layer, n = row["layer"].values, int(row["n"])
        auc = read_estimate(row, "auc")
        figure.add_traces(interval_line(layer, auc, colour, mode="lines", name=f"{point} (n = {n})"))
    figure.add_hline(y=0.5, line=REFERENCE_LINE)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="area under the ROC curve")
    caption = (
        f"Linear probes for the verdict ({escape_text(ds.attrs['verdicts'])}) at the last token before step 1, after "
        f"each step, and before the conclusion; held-out answers in {ds.attrs['folds']} folds, 95 % intervals over "
        f"sets of images, {escape_text(ds.attrs['model'])}. Dotted: 0.5. A verdict that can be read need not be used: "
        "steering shows that."
    )
    return [Panel("Where the verdict can be read", apply_layout(figure), caption)]
