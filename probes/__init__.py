"""Learned and causal probes of what a model holds: linear probes, attributions, patching, the logit lens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from mmprobe.models import Model
    from mmprobe.probes.attribution import attribute
    from mmprobe.probes.knockout import knock_out_attention, knock_out_run
    from mmprobe.probes.lens import logit_lens, logit_lens_run
    from mmprobe.probes.linear import linear_probe, linear_probe_by_step
    from mmprobe.probes.on_regions import compare_with_regions
    from mmprobe.probes.patching import patch_residual
    from mmprobe.probes.targets import presence_of

_HOMES = {
    "attribute": "attribution",
    "compare_with_regions": "on_regions",
    "knock_out_attention": "knockout",
    "knock_out_run": "knockout",
    "linear_probe": "linear",
    "linear_probe_by_step": "linear",
    "logit_lens": "lens",
    "logit_lens_run": "lens",
    "patch_residual": "patching",
    "presence_of": "targets",
}
OF_A_RUN = ("linear_probe", "logit_lens", "attention_knockout")
"""Probes that `mmprobe analyze` runs beside the analyses; all but the first need the model."""

__all__ = [
    "OF_A_RUN",
    "attribute",
    "compare_with_regions",
    "knock_out_attention",
    "knock_out_run",
    "linear_probe",
    "linear_probe_by_step",
    "logit_lens",
    "logit_lens_run",
    "of_run",
    "patch_residual",
    "presence_of",
]


def of_run(model: Model | None = None, slow: bool = False) -> dict[str, Callable[..., xr.Dataset]]:
    """The probes of a whole run by name, each a function of the run, as `mmprobe.analyses.ANALYSES` holds analyses.

    Args:
        model: the one that was traced; without it only probes that need none.
        slow: also those that take as long as tracing does.

    Example:
        >>> list(of_run())
        ['linear_probe']
    """
    from mmprobe.probes.linear import linear_probe

    found: dict[str, Callable[..., xr.Dataset]] = {"linear_probe": linear_probe}
    if model is not None:
        from mmprobe.probes.lens import logit_lens_run

        found["logit_lens"] = partial(logit_lens_run, model)
    if model is not None and slow:
        from mmprobe.probes.knockout import knock_out_run

        found["attention_knockout"] = partial(knock_out_run, model)
    return found


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"mmprobe.probes.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mmprobe.probes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
