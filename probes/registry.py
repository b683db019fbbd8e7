"""The probes of a whole run by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import xarray as xr

if TYPE_CHECKING:
    from mmprobe.models import Model

OF_A_RUN = ("linear_probe", "logit_lens", "attention_knockout")
"""Probes that `mmprobe analyze` runs beside the analyses; all but the first need the model."""


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
        from mmprobe.probes.logit_lens import logit_lens_run

        found["logit_lens"] = partial(logit_lens_run, model)
    if model is not None and slow:
        from mmprobe.probes.knockout import attention_knockout_run

        found["attention_knockout"] = partial(attention_knockout_run, model)
    return found
