"""Figures of `failure_modes`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.comparison import remarks
from mmprobe.viz.panel import LABEL_COLOURS, Panel, styled

_NAMES = {
    "perceptual_blindness": "perceptual blindness",
    "dissociation": "perception-reasoning dissociation",
    "grounded": "grounded",
    "undecided": "undecided",
}
_SYMBOLS = {"perceptual_blindness": "x", "dissociation": "diamond", "grounded": "circle", "undecided": "square-open"}  # fmt: skip


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_shares(ds), _evidence(ds)]


def _shares(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    for suffix, label in (("", "unfaithful"), ("_faithful", "faithful")):
        n = int(ds[f"n_{label}"])
        if not n:
            continue
        share, low, high = (ds[f"share{suffix}{end}"].values for end in ("", "_low", "_high"))
        figure.add_bar(
            x=[_NAMES[kind] for kind in ds["kind"].values],
            y=share,
            error_y={"array": high - share, "arrayminus": share - low, "symmetric": False},
            name=f"{label} (n = {n})",
            marker={
                "color": LABEL_COLOURS[label],
                "pattern": {"shape": "" if label == "unfaithful" else "/"},
            },
        )
    figure.update_yaxes(title="share of samples", range=[0, 1.05])
    return Panel(
        "Failure modes",
        styled(figure).update_layout(barmode="group"),
        f"Of {int(ds['n_unfaithful'])} unfaithful samples with regions, by whether attention and token activation are on "
        f"what changed: on, if the share there is larger than on all but {ds.attrs['alpha']:.0%} of {ds.attrs['draws']} "
        "random places of the same size. Blindness: neither; dissociation: attention only; grounded: both; undecided: "
        f"activation only. The same rule on {int(ds['n_faithful'])} faithful samples shows what it says where nothing "
        f"went wrong. 95 % bootstrap intervals over samples. {remarks(ds)}".strip(),
    )


def _evidence(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    for kind in ds["kind"].values.tolist():
        mine = ds["mode"].values == kind
        if not mine.any():
            continue
        of = ds["evidence"].isel(sample=mine)
        figure.add_scatter(
            x=of.sel(name="attention_p").values,
            y=of.sel(name="activation_p").values,
            mode="markers",
            name=f"{_NAMES[kind]} ({int(mine.sum())})",
            marker={"symbol": _SYMBOLS[kind], "size": 10, "opacity": 0.8},
            text=of["sample"].values,
            customdata=of.sel(name=["attention_mass", "activation_mass"]).values,
            hovertemplate="%{text}<br>attention %{customdata[0]:.3f} on the regions, p %{x:.3f}"
            "<br>activation %{customdata[1]:.3f}, p %{y:.3f}<extra></extra>",
        )
    line = {"width": 1, "dash": "dot", "color": "#888888"}
    figure.add_vline(x=ds.attrs["alpha"], line=line).add_hline(y=ds.attrs["alpha"], line=line)
    figure.update_xaxes(title="share of random places with as much attention", range=[-0.03, 1.03])
    figure.update_yaxes(title="… with as much activation", range=[-0.03, 1.03])
    return Panel(
        "What the failure modes rest on",
        styled(figure),
        f"Each unfaithful sample (n = {int(ds['n_unfaithful'])}): the share of random places of the same size that get as "
        "much attention, and as much token activation, as the regions that changed. Dotted: the threshold.",
    )
