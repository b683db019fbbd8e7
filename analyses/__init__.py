"""Analyses: pure functions from a run to an `xarray.Dataset`, by name."""

from collections.abc import Callable

import xarray as xr

from mmprobe.analyses.attention_decay import attention_decay
from mmprobe.analyses.export import export

ANALYSES: dict[str, Callable[..., xr.Dataset]] = {"attention_decay": attention_decay}
"""Every analysis that `mmprobe analyze` runs; `--only` takes the names with dashes."""

__all__ = ["ANALYSES", "attention_decay", "export"]
