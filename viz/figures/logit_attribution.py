"""Figure of `direct_logit_attribution`: the largest components of each token's logit."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.viz.panel import Panel, describe_answer, draw_signed_steps

_SHOWN = 24  # components with the largest shares


def panels(ds: xr.Dataset) -> list[Panel]:
    size = np.abs(ds["share"].values).max(1)
    order = np.sort(np.argsort(-size, kind="stable")[:_SHOWN])
    shown = ds.isel(component=order)
    names = shown["component"].values.tolist()
    figure = draw_signed_steps(ds["token"].values.tolist(), names, shown["share"].values, "logit")
    contrast = f" minus that of {ds.attrs['contrast']!r}" if ds.attrs["contrast"] else ""
    return [
        Panel(
            f"What components add to the answer's logits, sample {ds.attrs['sample']}",
            figure,
            f"Direct logit attribution: each component's part of the logit of each token{contrast}, with the scale of the "
            f"final norm kept as it is. All {ds.attrs['n']} components sum to the logit; the {len(order)} largest are "
            f"shown. What a component does for later components is not part of it; {describe_answer(ds)}.",
        )
    ]
