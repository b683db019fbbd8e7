"""Figures of `patch_components` and `attribution_patching`, the effect of each component, and of `rank_heads`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import LABEL_COLOURS, REFERENCE_LINE, Panel, apply_layout, describe_answer

_KINDS = {
    "head": "One head's output before the output projection",
    "attention": "The output of one attention sublayer",
    "ffn": "What one FFN adds to the residual stream",
    "residual": "The residual stream that enters one layer",
    "resid_mid": "The residual stream between attention and FFN of one layer",
    "resid_post": "The residual stream that leaves one layer",
}
_METHODS = {
    "atp": "Estimated to first order by gradients at the clean prompt",
    "atp_star": "Estimated by gradients as in AtP*",
    "ig": "Estimated by integrated gradients, one layer at a time",
}

_RANKED_BY = {
    "patching": "what the answers lose when the head's output is that for other images",
    "attribution": "an estimate by gradients of what the answers lose when the head's output is that for other images",
    "attention": "attention of the answer's steps to the regions, or to the images",
    "logit": "what the head adds to the logits of the answer's tokens",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    estimated = ds.attrs["analysis"] == "attribution_patching"
    title = f"{'Estimated loss' if estimated else 'Loss'} when one {_name(ds)} is replaced"
    if "sample" in ds.dims:
        return [Panel(title, _draw(ds), _write_run_caption(ds, estimated))]
    return [Panel(f"{title}, sample {ds.attrs['sample']}", _draw(ds), _write_caption(ds, estimated))]


def ranking_panels(ds: xr.Dataset) -> list[Panel]:
    stability, top = read_estimate(ds, "stability"), read_estimate(ds, "stability_top")
    effect = ds.rename(
        {name: str(name).replace("score", "effect") for name in ds if str(name).startswith("score")}
    )
    caption = (
        f"Heads ranked by {_RANKED_BY[ds.attrs['by']]}: mean over {ds.attrs['samples']} answers, {ds.attrs['sets']} sets "
        "of images; hover for 95 % intervals over sets of images. Two halves of the sets of images agree on the order with "
        f"Spearman's correlation {stability:.2f}, and on {top:.2f} of the first {ds.attrs['top']} heads. A ranking can be "
        f"stable and wrong: change the first heads on other answers, beside random ones. {ds.attrs['model']}."
    )
    return [Panel(f"Heads ranked by {ds.attrs['by']}", _draw(effect, ds.attrs["unit"]), caption)]


def _name(ds: xr.Dataset) -> str:
    names = {"head": "head", "attention": "attention", "ffn": "FFN"}
    return names.get(ds.attrs["kind"], "layer's stream")


def _draw(ds: xr.Dataset, unit: str = "loss") -> go.Figure:
    effect = ds["effect"]
    ends = [ds[name].values for name in ("effect_low", "effect_high") if name in ds]
    customdata = np.stack(ends, -1) if ends else None
    interval = " [%{customdata[0]:+.3f}, %{customdata[1]:+.3f}]" if ends else ""
    if effect.ndim == 1:
        bars = go.Bar(
            x=ds["layer"].values,
            y=effect.values,
            marker={"color": LABEL_COLOURS["faithful"]},
            customdata=customdata,
            hovertemplate=f"layer %{{x}}: %{{y:+.3f}}{interval}<extra></extra>",
        )
        figure = apply_layout(go.Figure(bars))
        figure.add_hline(y=0, line=REFERENCE_LINE)
        figure.update_xaxes(title="layer", dtick=1 if ds.sizes["layer"] <= 20 else None)
        figure.update_yaxes(title=f"loss ({ds.attrs['metric']})")
        return figure
    other = str(effect.dims[1])
    largest = float(np.nanmax(np.abs(effect.values), initial=0)) or 1.0
    heatmap = go.Heatmap(
        x=[str(value) for value in ds[other].values.tolist()],
        y=ds["layer"].values,
        z=effect.values,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu_r",
        colorbar={"title": unit, "thickness": 10},
        customdata=customdata,
        hovertemplate=f"layer %{{y}}, {other} %{{x}}: %{{z:+.3f}}{interval}<extra></extra>",
    )
    figure = apply_layout(go.Figure(heatmap), height=180 + 24 * ds.sizes["layer"])
    figure.update_xaxes(title=other, type="category")
    figure.update_yaxes(title="layer")
    return figure


def _write_caption(ds: xr.Dataset, estimated: bool) -> str:
    caption = (
        f"{_KINDS[ds.attrs['kind']]} at {ds.attrs['tokens']} tokens comes from sample {ds.attrs['corrupt']} "
        f"({ds.attrs.get('replacement', 'corrupt')}). Above 0: the answer loses by it, so the model used it. Metric: "
        f"{ds.attrs['metric']}, {format_number(float(ds['metric_clean']))} for the clean prompt and "
        f"{format_number(float(ds['metric_corrupt']))} for the other. "
    )
    if estimated:
        exact = f"; the {ds.attrs['verified']} largest are measured exactly" if ds.attrs["verified"] else ""
        caption += f"{_METHODS[ds.attrs['method']]}{exact}. "
    return f"{caption}{ds.attrs['n']} components, {describe_answer(ds)}."


def _write_run_caption(ds: xr.Dataset, estimated: bool) -> str:
    total = read_estimate(ds, "total")
    return (
        f"{_KINDS[ds.attrs['kind']]} at {ds.attrs['tokens']} tokens comes from the same prompt with "
        f"{ds.attrs['counterfactual']} images. Above 0: the answers lose by it. Metric: {ds.attrs['metric']}; mean "
        f"over {ds.attrs['samples']} answers, {ds.attrs['sets']} sets of images; hover for 95 % intervals over sets of "
        f"images. With all of the other prompt they lose {total:.2f}. "
        f"{_METHODS[ds.attrs['method']] + '. ' if estimated else ''}{ds.attrs['model']}."
    )
