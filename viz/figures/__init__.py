"""Figures of every analysis."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import xarray as xr

from mmprobe.analyses import ANALYSES
from mmprobe.errors import InputError
from mmprobe.registry import Registry, tolerate_plug_ins
from mmprobe.viz.panel import Panel

FIGURES: Registry[Callable[[xr.Dataset], list[Panel]]] = Registry(
    "figures of analysis",
    "figures",
    {
        "attention_decay": "mmprobe.viz.figures.attention_decay:panels",
        "residual_drift": "mmprobe.viz.figures.residual_drift:panels",
        "sublayer_transitions": "mmprobe.viz.figures.sublayer_transitions:panels",
        "neuron_activation": "mmprobe.viz.figures.neuron_activation:panels",
        "token_activation": "mmprobe.viz.figures.token_activation:panels",
        "attention_vs_activation": "mmprobe.viz.figures.attention_vs_activation:panels",
        "localisation": "mmprobe.viz.figures.localisation:panels",
        "attention_ratio": "mmprobe.viz.figures.attention_ratio:panels",
        "failure_modes": "mmprobe.viz.figures.failure_modes:panels",
        "picture_absence": "mmprobe.viz.figures.picture_absence:panels",
        "predict_unfaithful": "mmprobe.viz.figures.predict_unfaithful:panels",
        "linear_probe": "mmprobe.viz.figures.linear_probe:panels",
        "linear_probe_by_step": "mmprobe.viz.figures.linear_probe:panels",
        "logit_lens": "mmprobe.viz.figures.logit_lens:panels",
        "image_interchange": "mmprobe.viz.figures.image_interchange:panels",
        "attention_knockout": "mmprobe.viz.figures.knockout:panels",
        "attention_routes": "mmprobe.viz.figures.knockout:route_panels",
        "component_patching": "mmprobe.viz.figures.component_effects:panels",
        "attribution_patching": "mmprobe.viz.figures.component_effects:panels",
        "direct_logit_attribution": "mmprobe.viz.figures.logit_attribution:panels",
        "visual_tokens": "mmprobe.viz.figures.visual_tokens:panels",
        "circuit": "mmprobe.viz.figures.circuit:panels",
        "circuit_faithfulness": "mmprobe.viz.figures.circuit_faithfulness:panels",
        "circuit_check": "mmprobe.viz.figures.circuit_faithfulness:check_panels",
        "edge_patching": "mmprobe.viz.figures.circuit_faithfulness:edge_panels",
        "attribution": "mmprobe.viz.figures.attribution:panels",
        "subspace": "mmprobe.viz.figures.subspace:panels",
        "chain_tests": "mmprobe.viz.figures.chain_tests:panels",
        "early_verdict": "mmprobe.viz.figures.early_verdict:panels",
        "diagnosis": "mmprobe.viz.figures.diagnosis:panels",
        "dose_response": "mmprobe.viz.figures.dose_response:panels",
        "method_comparison": "mmprobe.viz.figures.method_comparison:panels",
        "pair_statistics": "mmprobe.viz.figures.pair_statistics:panels",
        "training": "mmprobe.viz.figures.training:panels",
    },
)
"""By the name of an analysis: the function from its data set to its figures."""


def register_analysis(
    name: str,
    analysis: Callable[..., xr.Dataset],
    panels: Callable[[xr.Dataset], list[Panel]] | None = None,
) -> None:
    """Add an analysis: `mmprobe analyze` runs it, and the report has a page of it.

    A package does the same with an entry point of the group `mmprobe.analyses`, and one of the same name in
    `mmprobe.figures`.

    Args:
        name: with underscores; the `analysis` attribute of the data sets.
        analysis: a function from a run to a data set. It raises `NotApplicable` where the run lacks what it
            needs.
        panels: a function from the data set to figures. None for a page without figures.

    Raises:
        InputError: another analysis has this name.

    Example:
        >>> mp.register_analysis("answer_length", answer_length)                     # doctest: +SKIP
    """
    ANALYSES.register(name, analysis)
    if panels is not None:
        FIGURES.register(name, panels)


def figures(dataset: xr.Dataset) -> list[Panel]:
    """Return all figures of an analysis, in the order of the report.

    Raises:
        InputError: no analysis or probe returns such a data set.

    Example:
        >>> [panel.title for panel in figures(attention_decay(run))]     # doctest: +SKIP
    """
    if not isinstance(dataset, xr.Dataset):
        raise InputError(
            f"figures of a {type(dataset).__name__}: they are drawn of what an analysis returns, "
            "such as mp.analyses.attention_decay(run)"
        )
    name = str(dataset.attrs.get("analysis"))
    if name in FIGURES:
        panels: list[Panel] = []
        with tolerate_plug_ins():
            panels = FIGURES[name](dataset)
        return panels
    if name in ANALYSES:
        return []  # it has numbers alone
    raise InputError(f"no figures for analysis {name!r}; known: {', '.join(FIGURES)}")


def plot(dataset: xr.Dataset) -> go.Figure:
    """Return the first figure of an analysis.

    Example:
        >>> mp.viz.plot(mp.analyses.attention_decay(run)).show()         # doctest: +SKIP
    """
    return figures(dataset)[0].figure
