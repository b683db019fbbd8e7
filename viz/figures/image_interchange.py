"""Figures of `image_interchange` and `image_interchange_run`."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import Estimate, format_interval, format_number, read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    describe_answer,
    draw_samples,
    draw_signed_steps,
    error_bars,
    interval_line,
    name_points,
)

_UNIT = "log-probability lost, nat"


def panels(ds: xr.Dataset) -> list[Panel]:
    if "sample" not in ds.dims:
        return [_answer_panel(ds)]
    shown = [_kind_panel(ds), _step_panel(ds)]
    if int(ds["n_class"].sel({"class": "other"})) < int(ds["n_class"].sum()):
        shown.append(_class_panel(ds))
    if ds.sizes.get("frame"):
        shown.append(_frame_panel(ds))
    return shown


def _answer_panel(ds: xr.Dataset) -> Panel:
    """Draw the effect of each token: all images in the first row, then one row a region."""
    rows = np.vstack([ds["effect"].values[None], ds["effect_by_region"].values])
    names = ["all images"] + [
        f"image {image}, {box[2]} x {box[3]} at {box[0]}, {box[1]}"
        for image, box in zip(ds["region_image"].values, ds["region_box"].values.tolist(), strict=True)
    ]
    names = [f"{number}: {name}" for number, name in enumerate(names)]
    return Panel(
        f"What the answer loses with other images, sample {ds.attrs['sample']}",
        draw_signed_steps(ds["token"].values.tolist(), names, rows, "nat"),
        f"Log-probability of each token after the sample's own images minus after those of {ds.attrs['counterfactual']} "
        "(first row), or after its own images with one region exchanged (other rows). Above 0: the own images make the "
        f"token likelier. Mean of the first row: {format_number(ds.attrs['effect_per_token'])} nat a token over {ds.attrs['n']} "
        f"tokens; {describe_answer(ds)}.",
    )


def _kind_panel(ds: xr.Dataset) -> Panel:
    figure = _draw_means(ds, "kind", "mean_by_kind", "n_kind", "effect_by_kind")
    figure.update_yaxes(title=f"{_UNIT} per token")
    mean, low, high = (float(ds[name]) for name in ("mean", "low", "high"))
    return Panel(
        "What the answers lose with other images",
        figure,
        f"Image interchange: the same answers after other images. With {ds.attrs['kind']} images they lose {format_number(mean)} nat "
        f"a token{format_interval(low, high)} (median {format_number(float(ds['median']))}).{_unchanged(ds)} "
        f"Diamonds: means over answers with 95 % intervals, n = {int(ds['n'])}. "
        f"{name_points(ds.sizes['sample'])} {ds.attrs['model']}. {_localisation(ds)}".strip(),
    )


def _unchanged(ds: xr.Dataset) -> str:
    if "unused" not in ds:
        return ""
    share = format_number(float(ds["unused_share"]), ".0%")
    return f" {share} of the answers stay as they are with other images of every kind."


def _localisation(ds: xr.Dataset) -> str:
    if not int(ds["n_localisation"]):
        return ""
    share = read_estimate(ds, "localisation")
    return (
        f"With only the samples' regions exchanged, they lose {share:.0%} of that, "
        f"n = {int(ds['n_localisation'])}."
    )


def _step_panel(ds: xr.Dataset) -> Panel:
    reached = np.flatnonzero(ds["n_step"].values >= min(2, int(ds["n_step"].max())))
    ds = ds.isel(step=slice(0, int(reached[-1]) + 1))
    steps, colour = ds["step"].values, LABEL_COLOURS["all"]
    mean = read_estimate(ds, "effect_by_step")
    line = interval_line(
        steps,
        mean,
        colour,
        "step %{x}: %{y:.2f} nat<br>n = %{customdata}",
        name="all",
        mode="lines" if len(steps) > 1 else "markers",
        customdata=ds["n_step"].values,
    )
    figure = go.Figure(line)
    figure.add_hline(y=0, line=REFERENCE_LINE)
    figure.update_xaxes(title="step (generated token)")
    limit = _limit(mean)
    figure.update_yaxes(title=_UNIT, range=limit)
    slope, low, high = (float(ds[f"slope_{end}"]) for end in ("mean", "low", "high"))
    return Panel(
        "What the answers lose with other images, by step",
        apply_layout(figure),
        f"Image interchange ({ds.attrs['kind']} images): mean over the answers that reach a step, with 95 % "
        f"intervals{', cut off where they are very wide' if limit else ''}; hover for the number of answers. Slope {format_number(slope, '+')} nat a step{format_interval(low, high, '+')}, "
        f"n = {int(ds['n_slope'])}; below 0 if later words depend less on the images. {ds.attrs['model']}.",
    )


def _limit(mean: Estimate[np.ndarray]) -> list[float] | None:
    """Return the range of an axis that shows a line whole, where the intervals of a few answers would hide it."""
    ends = np.concatenate([mean.value, mean.low, mean.high, [0.0]])
    low, high = min(0.0, np.nanmin(mean.value)), max(0.0, np.nanmax(mean.value))
    margin = max(high - low, 0.1)
    if np.nanmin(ends) > low - margin and np.nanmax(ends) < high + margin:
        return None
    return [float(max(np.nanmin(ends), low - margin)), float(min(np.nanmax(ends), high + margin))]


def _class_panel(ds: xr.Dataset) -> Panel:
    figure = _draw_means(ds.isel({"class": ds["n_class"].values > 0}), "class", "effect_by_class", "n_class")
    figure.update_yaxes(title=f"{_UNIT} per token")
    return Panel(
        "What words lose with other images, by class",
        figure,
        f"Image interchange ({ds.attrs['kind']} images): mean over an answer's tokens of a class, then over the answers "
        "that have one, with 95 % intervals. The samples declare which words name things, colours, places and "
        f"verdicts. {ds.attrs['model']}.",
    )


def _frame_panel(ds: xr.Dataset) -> Panel:
    figure = _draw_means(ds, "frame", "effect_by_frame", "n_frame")
    figure.update_xaxes(title="frame (number of answers)")
    figure.update_yaxes(title=_UNIT)
    return Panel(
        "What the answers lose with one other frame",
        figure,
        f"Image interchange ({ds.attrs['kind']} images) of one frame of the samples' videos at a time: mean loss of the "
        f"whole answer, with 95 % intervals. Frames are counted from 0, as the model is shown them. {ds.attrs['model']}.",
    )


def _draw_means(ds: xr.Dataset, dim: str, name: str, count: str, of_sample: str = "") -> go.Figure:
    """Draw a mean with its interval for each member of a dimension, over what each sample has."""
    mean = read_estimate(ds, name)
    members = [f"{value} ({n})" for value, n in zip(ds[dim].values, ds[count].values, strict=True)]
    figure = go.Figure()
    if of_sample:
        values = ds[of_sample].transpose("sample", dim).values
        names = ds["sample"].values.tolist()
        figure.add_trace(draw_samples(members, values, names, LABEL_COLOURS["all"]))
    figure.add_scatter(
        x=members,
        y=mean.value,
        mode="markers",
        name="mean",
        showlegend=False,
        error_y={"type": "data", **error_bars(mean), "thickness": 2, "width": 8},
        marker={"color": LABEL_COLOURS["unfaithful"], "size": 10, "symbol": "diamond"},
        customdata=np.stack([mean.low, mean.high], -1),
        hovertemplate="mean, %{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}] nat<extra></extra>",
    )
    figure.add_hline(y=0, line=REFERENCE_LINE)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=members)
    return apply_layout(figure)
