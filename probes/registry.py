"""The probes of a run, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import xarray as xr

if TYPE_CHECKING:
    from mmprobe.models import Model

RUN_PROBES = (
    "linear_probe",
    "logit_lens",
    "image_interchange",
    "attention_knockout",
    "attention_routes",
    "circuit",
)
"""Probes that `mmprobe analyze` computes in addition to the analyses. All except the first need the model."""


def run_probes(model: Model | None = None, slow: bool = False) -> dict[str, Callable[..., xr.Dataset]]:
    """Return the probes of a run by name. Each is a function of the run, as in `mmprobe.analyses.ANALYSES`.

    Args:
        model: the traced model; None for probes without a model.
        slow: whether to include probes that take as long as tracing.

    Example:
        >>> list(run_probes())
        ['linear_probe']
    """
    from mmprobe.probes.linear import linear_probe

    probes: dict[str, Callable[..., xr.Dataset]] = {"linear_probe": linear_probe}
    if model is not None:
        from mmprobe.probes.logit_lens import logit_lens_run

        probes["logit_lens"] = partial(logit_lens_run, model)
    if model is not None and slow:
        from mmprobe.probes.circuits.circuit_run import circuit_run
        from mmprobe.probes.interchange.run import image_interchange_run
        from mmprobe.probes.knockout.attention_knockout import attention_knockout_run
        from mmprobe.probes.knockout.routes_run import attention_routes_run

        probes["image_interchange"] = partial(image_interchange_run, model)
        probes["attention_knockout"] = partial(attention_knockout_run, model)
        probes["attention_routes"] = partial(attention_routes_run, model)
        probes["circuit"] = partial(circuit_run, model)
    return probes
