"""Figures of every analysis."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from mmprobe.errors import InputError
from mmprobe.plugins import find_added
from mmprobe.viz.figures import (
    attention_decay,
    attention_ratio,
    attention_vs_activation,
    attribution,
    chain_tests,
    circuit,
    circuit_faithfulness,
    component_effects,
    diagnosis,
    dose_response,
    early_verdict,
    failure_modes,
    image_interchange,
    knockout,
    linear_probe,
    localisation,
    logit_attribution,
    logit_lens,
    method_comparison,
    neuron_activation,
    pair_statistics,
    picture_absence,
    predict_unfaithful,
    residual_drift,
    sublayer_transitions,
    subspace,
    token_activation,
    training,
)
from mmprobe.viz.panel import Panel

_PANELS = {
    "attention_decay": attention_decay.panels,
    "residual_drift": residual_drift.panels,
    "sublayer_transitions": sublayer_transitions.panels,
    "neuron_activation": neuron_activation.panels,
    "token_activation": token_activation.panels,
    "attention_vs_activation": attention_vs_activation.panels,
    "localisation": localisation.panels,
    "attention_ratio": attention_ratio.panels,
    "failure_modes": failure_modes.panels,
    "picture_absence": picture_absence.panels,
    "predict_unfaithful": predict_unfaithful.panels,
    "linear_probe": linear_probe.panels,
    "linear_probe_by_step": linear_probe.panels,
    "logit_lens": logit_lens.panels,
    "image_interchange": image_interchange.panels,
    "attention_knockout": knockout.panels,
    "attention_routes": knockout.route_panels,
    "component_patching": component_effects.panels,
    "attribution_patching": component_effects.panels,
    "direct_logit_attribution": logit_attribution.panels,
    "circuit": circuit.panels,
    "circuit_faithfulness": circuit_faithfulness.panels,
    "circuit_check": circuit_faithfulness.check_panels,
    "edge_patching": circuit_faithfulness.edge_panels,
    "attribution": attribution.panels,
    "subspace": subspace.panels,
    "chain_tests": chain_tests.panels,
    "early_verdict": early_verdict.panels,
    "diagnosis": diagnosis.panels,
    "dose_response": dose_response.panels,
    "method_comparison": method_comparison.panels,
    "pair_statistics": pair_statistics.panels,
    "training": training.panels,
}


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
    name = dataset.attrs.get("analysis")
    if name not in _PANELS and name in find_added("figures"):
        return find_added("figures")[name](dataset)
    if name not in _PANELS and name in find_added("analyses"):
        return []  # it has numbers alone
    if name not in _PANELS:
        raise InputError(f"no figures for analysis {name!r}; known: {', '.join(_PANELS)}")
    return _PANELS[name](dataset)


def plot(dataset: xr.Dataset) -> go.Figure:
    """Return the first figure of an analysis.

    Example:
        >>> mp.viz.plot(mp.analyses.attention_decay(run)).show()         # doctest: +SKIP
    """
    return figures(dataset)[0].figure
