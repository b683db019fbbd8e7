"""A data set of the image interchange, without a model."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.stats.estimate import estimate_mean

KINDS = ["unrelated", "blank"]


def interchange(count: int) -> xr.Dataset:
    """Return a data set of `image_interchange_run` with known losses, each sample about its own images."""
    effect = np.random.default_rng(0).normal([2.0, 1.0], 1.0, (count, 2))
    sets = np.arange(count)
    by_kind, by_step = estimate_mean(effect, sets), estimate_mean(np.ones((count, 3)), sets)
    mean = estimate_mean(effect[:, 0], sets)
    variables = {
        **by_kind.variables("mean_by_kind", "kind"),
        **by_step.variables("effect_by_step", "step"),
        "effect_by_kind": (("sample", "kind"), effect),
        "unused": ("sample", np.zeros(count)),
        "n_kind": ("kind", [count] * 2),
        "n_step": ("step", [count] * 3),
        "n_class": ("class", [count]),
        **{f"slope_{end}": 0.0 for end in ("mean", "low", "high")},
        **{"mean": mean.value, "low": mean.low, "high": mean.high, "median": 2.0, "unused_share": -1e-17},
        **dict.fromkeys(("n", "n_slope"), count),
        "n_localisation": 0,
    }
    coords = {"sample": [f"<{n}>" for n in range(count)], "kind": KINDS, "class": ["other"], "step": range(3)}
    attrs = {"analysis": "image_interchange", "kind": "unrelated", "model": "toy"}
    return xr.Dataset(variables, coords, attrs)
