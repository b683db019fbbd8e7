"""Figures of `failure_modes`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import (
    LABEL_COLOURS,
    REFERENCE_LINE,
    Panel,
    apply_layout,
    error_bars,
    escape_text,
    format_notes,
)

_MODE_NAMES = {
    "perceptual_blindness": "perceptual blindness",
    "dissociation": "perception-reasoning dissociation",
    "grounded": "grounded",
    "undecided": "undecided",
}
_SYMBOLS = {
    "perceptual_blindness": "x",
    "dissociation": "diamond",
    "grounded": "circle",
    "undecided": "square-open",
}


def panels(ds: xr.Dataset) -> list[Panel]:
    return [_share_panel(ds), _evidence_panel(ds)]


def _share_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    for suffix, label in (("", "unfaithful"), ("_faithful", "faithful")):
        n = int(ds[f"n_claims_{label}"])
        if not n:
            continue
        share = read_estimate(ds, f"share{suffix}")
        figure.add_bar(
            x=_count_names(ds),
            y=share.value,
            error_y=error_bars(share, symmetric=False),
            name=f"claims of {label} answers (n = {n})",
            marker={
                "color": LABEL_COLOURS[label],
                "pattern": {"shape": "" if label == "unfaithful" else "/"},
            },
        )
    figure.update_yaxes(title="share of claims", range=[0, 1.05])
    return Panel(
        "Failure modes",
        apply_layout(figure).update_layout(barmode="group", margin={"b": 72}),
        f"Failure modes of the {int(ds['n_claims_unfaithful'])} changed things that {int(ds['n_unfaithful'])} unfaithful "
        "answers name. Each is tested at the tokens of its name, on its own regions. Perceptual blindness: neither "
        "attention nor token activation is on the regions. Dissociation: only attention is. Grounded: both are. "
        "Undecided: only activation is. A map is on the regions if its share there is larger than on "
        f"{format_number(1 - ds.attrs['alpha'], '.0%')} of {ds.attrs['draws']} random regions of the same size "
        f"(attention of layers: {ds.attrs['layers']}). {ds.attrs['false_alarms']} 95 % intervals over sets of images. "
        f"{_silent(ds)}{format_notes(ds)}".strip(),
    )


def _count_names(ds: xr.Dataset) -> list[str]:
    """Return each mode's name with its count, and beside it the share of false alarms."""
    names = []
    for kind in ds["kind"].values:
        of_kind = ds.sel(kind=kind)
        alarms = (
            ""
            if not int(ds["n_claims_faithful"])
            else f", faithful: {format_number(float(of_kind['share_faithful']), '.0%')}"
        )
        names.append(f"{_MODE_NAMES[kind]}<br>{int(of_kind['count'])} unfaithful{alarms}")
    return names


def _silent(ds: xr.Dataset) -> str:
    n = int(ds["n_without_claims"])
    return f"{n} unfaithful answers name none of their changed things. " if n else ""


def _evidence_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    for kind in ds["kind"].values.tolist():
        has_kind = ds["mode"].values == kind
        if not has_kind.any():
            continue
        evidence = ds["evidence"].isel(claim=has_kind)
        figure.add_scatter(
            x=evidence.sel(name="attention_p").values,
            y=evidence.sel(name="activation_p").values,
            mode="markers",
            name=f"{_MODE_NAMES[kind]} ({int(has_kind.sum())})",
            marker={"symbol": _SYMBOLS[kind], "size": 10, "opacity": 0.8},
            text=[escape_text(name) for name in evidence["claim"].values],
            customdata=evidence.sel(name=["attention_mass", "activation_mass"]).values,
            hovertemplate="%{text}<br>attention %{customdata[0]:.3f} on the regions, p %{x:.3f}"
            "<br>activation %{customdata[1]:.3f}, p %{y:.3f}<extra></extra>",
        )
    alpha = ds.attrs["alpha"]
    figure.add_vline(x=alpha, line=REFERENCE_LINE).add_hline(y=alpha, line=REFERENCE_LINE)
    figure.update_xaxes(title="p of attention on the regions", range=[-0.03, 1.03])
    figure.update_yaxes(title="p of activation on the regions", range=[-0.03, 1.03])
    return Panel(
        "Evidence for the failure modes",
        apply_layout(figure),
        f"Each point is a changed thing that an unfaithful answer names (n = {int(ds['n_claims_unfaithful'])}). p is the "
        "share of random regions of the same size that get at least as much attention, or as much token activation, as "
        f"the thing's own regions. Dotted: the threshold. {ds.attrs['false_alarms']}",
    )
