"""Figure of `dose_response`: the measure and the share of changed answers at each scale."""

from __future__ import annotations

import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import read_estimate
from mmprobe.viz.panel import GROUP_COLOURS, Panel, apply_layout, escape_text, interval_line

_TITLES = {"mean": "measure, mean over answers", "changed": "share of answers that change"}


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = make_subplots(1, 2, subplot_titles=list(_TITLES.values()), horizontal_spacing=0.1)
    colours = list(GROUP_COLOURS.values())[1:]
    for column, variable in enumerate(_TITLES, 1):
        for number, name in enumerate(ds["direction"].values.tolist()):
            row, colour = ds.sel(direction=name), colours[number % len(colours)]
            mean, legend = read_estimate(row, variable), column == 1
            line = interval_line(row["scale"].values, mean, colour, name=escape_text(name), showlegend=legend)
            figure.add_traces(line, rows=1, cols=column)
    figure.update_xaxes(title="scale of the direction")
    return [
        Panel(
            "Dose and response of steering",
            apply_layout(figure),
            f"Answers while a direction acts on the residual stream (action {ds.attrs['action']}, layers: "
            f"{ds.attrs['layers']}), {ds.attrs['samples']} answers over {ds.attrs['n_groups']} sets of images, "
            f"{ds.attrs['model']}. 95 % intervals over sets of images. A direction that the model uses moves the "
            "answers more than a random one of the same length.",
        )
    ]
