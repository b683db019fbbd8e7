"""Figures of `failure_modes`."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.viz.label_comparison import format_notes
from mmprobe.viz.panel import LABEL_COLOURS, REFERENCE_LINE, Panel, apply_layout, escape_text

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
        n = int(ds[f"n_{label}"])
        if not n:
            continue
        share, low, high = (ds[f"share{suffix}{end}"].values for end in ("", "_low", "_high"))
        figure.add_bar(
            x=[_MODE_NAMES[kind] for kind in ds["kind"].values],
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
        apply_layout(figure).update_layout(barmode="group"),
        f"Failure modes of {int(ds['n_unfaithful'])} unfaithful samples with regions. Perceptual blindness: neither "
        "attention nor token activation is on the changed regions. Dissociation: only attention is. Grounded: both "
        "are. Undecided: only activation is. A map is on the regions if its share there is larger than on "
        f"{1 - ds.attrs['alpha']:.0%} of {ds.attrs['draws']} random regions of the same size. For comparison, the same "
        f"rule is applied to {int(ds['n_faithful'])} faithful samples. 95 % bootstrap intervals over samples. "
        f"{format_notes(ds)}".strip(),
    )


def _evidence_panel(ds: xr.Dataset) -> Panel:
    figure = go.Figure()
    for kind in ds["kind"].values.tolist():
        has_kind = ds["mode"].values == kind
        if not has_kind.any():
            continue
        evidence = ds["evidence"].isel(sample=has_kind)
        figure.add_scatter(
            x=evidence.sel(name="attention_p").values,
            y=evidence.sel(name="activation_p").values,
            mode="markers",
            name=f"{_MODE_NAMES[kind]} ({int(has_kind.sum())})",
            marker={"symbol": _SYMBOLS[kind], "size": 10, "opacity": 0.8},
            text=[escape_text(name) for name in evidence["sample"].values],
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
        f"Each point is an unfaithful sample (n = {int(ds['n_unfaithful'])}). p is the share of random regions of the "
        "same size that get at least as much attention, or as much token activation, as the changed regions. Dotted: "
        "the threshold.",
    )
