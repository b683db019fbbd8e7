"""Figure of `patch_regions_run`: how often the named value follows a region's visual tokens, by layer."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import LABEL_COLOURS, Panel, apply_layout, interval_line

_KINDS = {
    "residual": "that enters the layer (resid_pre)",
    "resid_mid": "between attention and FFN (resid_mid)",
    "resid_post": "that leaves the layer (resid_post)",
}
_LINES = (
    ("region", LABEL_COLOURS["unfaithful"], "solid"),
    ("other patches", LABEL_COLOURS["faithful"], "dash"),
)


def panels(ds: xr.Dataset) -> list[Panel]:
    figure = go.Figure()
    layers = ds["layer"].values
    for place, colour, dash in _LINES:
        share = read_estimate(ds.sel(tokens=place), "follows")
        hover, name = "layer %{x}: %{y:.0%} follow", f"{place} exchanged"
        figure.add_traces(interval_line(layers, share, colour, hover, name=name, dash=dash))
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="values that follow", range=[-0.03, 1.03], tickformat=".0%")
    region = ds["follows"].sel(tokens="region")
    best = int(layers[int(region.values.argmax())])
    others = read_estimate(ds.sel(tokens="other patches").sel(layer=best), "follows")
    return [
        Panel(
            "Whether the named value follows its patches, by layer",
            apply_layout(figure),
            f"The residual stream {_KINDS[ds.attrs['kind']]} comes from the same prompt with {ds.attrs['counterfactual']} "
            "images, at the visual tokens of a region or at all others, one layer at a time. Share of answers in which the "
            "model then names the value of the other images, with 95 % intervals over sets of images: "
            f"{ds.attrs['samples']} answers whose value changes with the images, {ds.attrs['sets']} sets of images. In layer "
            f"{best}, {format_number(float(region.max()), '.0%')} follow the region and {others:.0%} the other patches. "
            f"{ds.attrs['n_unmoved']} answers name the same after both images. {ds.attrs['model']}.",
        )
    ]
