"""The probes of a run, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
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
    "component_patching",
    "attribution_patching",
    "circuit",
)
"""Probes that `mmprobe analyze` computes in addition to the analyses. All except the first need the model."""


def run_probes(
    model: Model | None = None, slow: bool = False, finished: Path | None = None
) -> dict[str, Callable[..., xr.Dataset]]:
    """Return the probes of a run by name. Each is a function of the run, as in `mmprobe.analyses.ANALYSES`.

    Args:
        model: the traced model; None for probes without a model.
        slow: whether to include probes that take as long as tracing.
        finished: folder where such probes keep what is finished, each in a folder of its name. They do not
            measure again what is there.

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
        from mmprobe.probes.circuits.run import circuit_run
        from mmprobe.probes.components.run import attribution_patching_run, patch_components_run
        from mmprobe.probes.interchange.run import image_interchange_run
        from mmprobe.probes.knockout.attention_knockout import attention_knockout_run
        from mmprobe.probes.knockout.attention_routes import attention_routes_run

        for name, function in (
            ("image_interchange", image_interchange_run),
            ("attention_knockout", attention_knockout_run),
            ("attention_routes", attention_routes_run),
            ("component_patching", patch_components_run),
            ("attribution_patching", attribution_patching_run),
            ("circuit", circuit_run),
        ):
            probes[name] = partial(function, model, finished=finished and finished / name)
    return probes
