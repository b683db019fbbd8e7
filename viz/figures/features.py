"""Figures of features: what a dictionary explains of each group of tokens, where its features are most active, and effects."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import Panel, apply_layout, escape_text
from mmprobe.viz.report.images import embed_image

_TITLES = {
    "explained": "variance explained",
    "l0": "active features of a token",
    "dead": "share never active",
}
_COLOUR = "#0072b2"
_AROUND = 1.0  # sides of a cell that are shown beside it
_TILE, _ROW = 0.62, 96  # share of a row's height, and pixels


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_fit_panel(ds)]
    return [*shown, _token_panel(ds)] if ds.sizes["shown"] else shown


def _fit_panel(ds: xr.Dataset) -> Panel:
    figure = make_subplots(1, len(_TITLES), subplot_titles=list(_TITLES.values()))
    for column, name in enumerate(_TITLES, 1):
        mean = read_estimate(ds, name)
        bars = go.Bar(
            x=ds["group"].values.tolist(), y=mean.value, marker={"color": _COLOUR}, showlegend=False,
            error_y={"array": mean.high - mean.value, "arrayminus": mean.value - mean.low},
        )  # fmt: skip
        figure.add_trace(bars, row=1, col=column)
    counts = ", ".join(
        f"{count:,} {group}" for group, count in zip(ds["group"].values, ds["n_tokens"].values, strict=True)
    )
    sets = ds.attrs["sets"]
    intervals = (
        f"Bars are 95 % intervals over {sets} sets of images."
        if sets > 1
        else "All answers are about one set of images, so there are no intervals."
    )
    return Panel(
        "Does the dictionary explain these tokens?",
        apply_layout(figure),
        f"Dictionary {ds.attrs['dictionary']} of {ds.attrs['hook']}, on {ds.attrs['samples']} answers of "
        f"{ds.attrs['model']}: {counts} tokens. Share of the variance over tokens that the reconstruction explains, mean "
        "number of active features, and share of features that are active at no token of the group. "
        f"{intervals}{_count_sinks(ds)} A feature says little about tokens that are not explained.",
    )


def _count_sinks(ds: xr.Dataset) -> str:
    """Return how many sink tokens are left out; nothing without one, or of an earlier version."""
    count = int(ds["n_sinks"].sum()) if "n_sinks" in ds else 0
    return (
        f" Left out: {count} sink token{'' if count == 1 else 's'}, whose norm is far above the others'."
        if count
        else ""
    )


def _token_panel(ds: xr.Dataset) -> Panel:
    """Draw a row for each listed feature: the tokens where it is most active, as parts of images or as texts."""
    rows, columns = ds.sizes["shown"], ds.sizes["place"]
    figure = go.Figure(go.Scatter(x=[0], y=[0], mode="markers", marker={"opacity": 0}, hoverinfo="skip"))
    for row, number in enumerate(ds["listed"].values.tolist()):
        told = bool(ds["told"].sel(feature=number).any())
        name = f"<b>{number}</b>" + ("<br>tells labels" if told else "")
        figure.add_annotation(x=-0.55, y=row, text=name, showarrow=False)
        for column in range(columns):
            top = ds.isel(shown=row, place=column)
            if not float(top["top_activation"]) > 0:
                continue
            _draw_token(figure, top, column, row)
    apply_layout(figure, height=80 + _ROW * rows)
    figure.update_xaxes(visible=False, range=[-0.9, columns - 0.4], scaleanchor="y", constrain="domain")
    figure.update_yaxes(visible=False, range=[rows - 0.4, -0.6])
    figure.update_layout(margin={"t": 16, "b": 16, "l": 16, "r": 16}, showlegend=False)
    return Panel(
        "Where features are most active",
        figure,
        "A row for each listed feature: the tokens of the run with its largest activations, largest first. A visual token "
        "is its cell with what is around it; another token is its text. What the largest activations share is a guess at "
        "what the feature means: test it on labels, and by changing the feature.",
    )


def _draw_token(figure: go.Figure, top: xr.Dataset, column: int, row: int) -> None:
    label = format_number(float(top["top_activation"]))
    source = None
    if int(top["top_image"]) >= 0:
        x, y, width, height = (float(each) for each in top["top_box"].values)
        around = (
            max(0.0, x - _AROUND * width),
            max(0.0, y - _AROUND * height),
            min(float(top["top_width"]), x + (1 + _AROUND) * width),
            min(float(top["top_height"]), y + (1 + _AROUND) * height),
        )
        source, _ = embed_image(Path(str(top["top_path"].item())), around)
        whole = around[2] - around[0], around[3] - around[1]
    if source is not None:
        scale = _TILE / max(whole)
        left, upper = column - _TILE / 2, row - _TILE / 2
        figure.add_layout_image(
            source=source, xref="x", yref="y", x=left, y=upper, sizex=scale * whole[0], sizey=scale * whole[1],
            sizing="stretch", layer="below",
        )  # fmt: skip
        corner = left + scale * (x - around[0]), upper + scale * (y - around[1])
        figure.add_shape(
            type="rect", x0=corner[0], y0=corner[1], x1=corner[0] + scale * width, y1=corner[1] + scale * height,
            line={"color": "#d55e00", "width": 2}, fillcolor="rgba(0, 0, 0, 0)",
        )  # fmt: skip
    else:
        text = escape_text(repr(str(top["top_text"].item())))
        figure.add_annotation(x=column, y=row, text=text, showarrow=False)
    about = escape_text(f"sample {top['top_sample'].item()}, {top['top_group'].item()}")
    figure.add_trace(
        go.Scatter(
            x=[column], y=[row + 0.42], mode="text", text=[label], hovertext=[about], hoverinfo="text",
            showlegend=False,
        )
    )  # fmt: skip


def effect_panels(ds: xr.Dataset) -> list[Panel]:
    """Draw what answers lose when a feature is changed: of one answer by token, of many with intervals."""
    names = [str(number) for number in ds["feature"].values.tolist()]
    change = ds.attrs["action"] + ("" if ds.attrs["action"] == "ablate" else f" {ds.attrs['value']:g}")
    if "step" in ds.dims:
        tokens = [escape_text(f"{step} {token!r}") for step, token in enumerate(ds["token"].values.tolist())]
        heat = go.Heatmap(
            x=tokens, y=names, z=ds["effect"].values, colorscale="RdBu_r", zmid=0, colorbar={"title": "nat"}
        )
        figure = (
            apply_layout(go.Figure(heat))
            .update_xaxes(title="token")
            .update_yaxes(title="feature", type="category")
        )
        return [Panel("What each token loses without a feature", figure, f"{change}, {ds.attrs['model']}.")]
    figure = make_subplots(1, 2, subplot_titles=["log-probability lost (nat)", "answers that change"])
    for column, name in enumerate(("effect", "moved"), 1):
        mean = read_estimate(ds, name)
        bars = go.Bar(
            x=names, y=mean.value, marker={"color": _COLOUR}, showlegend=False,
            error_y={"array": mean.high - mean.value, "arrayminus": mean.value - mean.low},
        )  # fmt: skip
        figure.add_trace(bars, row=1, col=column)
    figure.update_xaxes(title="feature", type="category")
    return [
        Panel(
            "What do answers lose when a feature is changed?",
            apply_layout(figure),
            f"One feature of {ds.attrs['dictionary']} at a time: {change}, at all tokens. Mean over {ds.attrs['samples']} answers "
            f"of {ds.attrs['model']} of the log-probability that an answer loses, and share of answers of which the model would "
            f"say another token. Bars are 95 % intervals over {ds.attrs['sets']} sets of images. Compare with other features "
            "that are as active: a change of any of them can break an answer.",
        )
    ]
