"""Figure of `chain_tests`: the share of verdicts that change under each test."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import Estimate
from mmprobe.viz.panel import LABEL_COLOURS, Panel, apply_layout, error_bars, escape_text


def panels(ds: xr.Dataset) -> list[Panel]:
    share = Estimate(ds["share"].values, ds["low"].values, ds["high"].values)
    bars = go.Bar(
        x=ds["test"].values.tolist(),
        y=share.value,
        marker={"color": LABEL_COLOURS["faithful"]},
        error_y={"type": "data", **error_bars(share)},
        customdata=ds["n"].values,
        hovertemplate="%{x}: %{y:.2f}, %{customdata} answers<extra></extra>",
    )
    figure = go.Figure(bars)
    figure.update_yaxes(title="share of verdicts that change", range=[0, 1])
    caption = (
        f"The steps of an answer are changed, and the model continues from them to its conclusion. "
        f"{ds.attrs['samples'] - ds.attrs['n_unread']} answers over {ds.attrs['n_groups']} sets of images, with 95 % "
        f"intervals over sets of images, {escape_text(ds.attrs['model'])}. Own steps (`whole`) should change nothing. "
        "Few changes under `truncated` and `mistake` mean that the steps do not decide the verdict. Mistakes: "
        f"{escape_text(ds.attrs['mistakes'])}."
    )
    return [Panel("Verdicts under changed steps", apply_layout(figure), caption)]
