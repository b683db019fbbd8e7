"""Analyses: pure functions from a run to an `xarray.Dataset`."""

from collections.abc import Callable, Mapping

import xarray as xr

from mmprobe.analyses.attention_by_frame import attention_by_frame
from mmprobe.analyses.attention_decay import attention_decay
from mmprobe.analyses.attention_ratio import attention_ratio
from mmprobe.analyses.attention_vs_activation import attention_vs_activation
from mmprobe.analyses.failure_modes import failure_modes
from mmprobe.analyses.files import export
from mmprobe.analyses.findings import findings
from mmprobe.analyses.localisation import localisation
from mmprobe.analyses.neuron_activation import neuron_activation
from mmprobe.analyses.picture_absence import picture_absence
from mmprobe.analyses.pointing_game import pointing_game
from mmprobe.analyses.predict_unfaithful import predict_unfaithful
from mmprobe.analyses.residual_drift import residual_drift
from mmprobe.analyses.source import AddedAnalysis
from mmprobe.analyses.sublayer_transitions import sublayer_transitions
from mmprobe.analyses.token_activation import token_activation
from mmprobe.analyses.workers import apply_analyses
from mmprobe.cache import Run
from mmprobe.errors import NotApplicable
from mmprobe.registry import Registry

ANALYSES: Registry[Callable[..., xr.Dataset]] = Registry(
    "analysis",
    "analyses",
    {
        "attention_decay": attention_decay,
        "residual_drift": residual_drift,
        "sublayer_transitions": sublayer_transitions,
        "neuron_activation": neuron_activation,
        "token_activation": token_activation,
        "attention_vs_activation": attention_vs_activation,
        "localisation": localisation,
        "pointing_game": pointing_game,
        "attention_ratio": attention_ratio,
        "failure_modes": failure_modes,
        "picture_absence": picture_absence,
        "attention_by_frame": attention_by_frame,
        "predict_unfaithful": predict_unfaithful,
    },
    adapt=AddedAnalysis,
)
"""Every analysis that `mmprobe analyze` runs, by name; `--only` takes the names with dashes."""


def analyze_all(
    run: Run, functions: Mapping[str, Callable[..., xr.Dataset]] | None = None, workers: int = 1
) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
    """Apply every analysis that the run has the data for.

    Args:
        functions: by name; None for all analyses that can be imported. Other functions of a run, such as probes, may be among them.
        workers: number of processes, each of which takes one analysis at a time. A script that uses more than
            one needs `if __name__ == "__main__":`.

    Returns:
        The data sets by name, and for each analysis that was left out why, by name.

    Raises:
        InputError: the run is empty or a trace is damaged.

    Example:
        >>> datasets, left_out = analyze_all(run)                   # doctest: +SKIP
        >>> datasets["attention_decay"].slope                       # doctest: +SKIP
    """
    datasets, left_out = {}, {}
    for name, result in apply_analyses(
        run, dict(ANALYSES.working()) if functions is None else functions, workers
    ):
        if isinstance(result, NotApplicable):
            left_out[name] = str(result)
        else:
            datasets[name] = result
    return datasets, left_out


def __dir__() -> list[str]:
    """Show the analyses and what applies them, not the modules that they are in."""
    return __all__


__all__ = [
    "ANALYSES",
    "analyze_all",
    "attention_by_frame",
    "attention_decay",
    "attention_ratio",
    "attention_vs_activation",
    "export",
    "failure_modes",
    "findings",
    "localisation",
    "neuron_activation",
    "picture_absence",
    "pointing_game",
    "predict_unfaithful",
    "residual_drift",
    "sublayer_transitions",
    "token_activation",
]
