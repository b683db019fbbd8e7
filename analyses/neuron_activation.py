"""Which FFN neurons take part in writing an answer, and where the labels differ (paper 003, appendix D.4)."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    by_label,
    means_by_label,
    unfaithful_minus_faithful,
)
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable

RULES = ("sum", "any", "mean")
THIRDS = ("early", "middle", "deep")


def neuron_activation(run: Run, threshold: float = 0.5, top: int = 20, minimum: int = MINIMUM) -> xr.Dataset:
    """Share of active FFN neurons by layer, its difference between labels, and the neurons that differ most.

    A neuron i of layer l is active in an answer if the sum over generated tokens of its gate, SiLU(w_i h_t),
    is above 0 (equation 20); the ratio r^l is the share of active neurons of a layer (21); the
    difference is the mean of r^l over unfaithful samples minus that over faithful ones (22). SiLU is negative
    down to -0.278, so the sum is not `fires at some token`: two other rules for `active` are given beside it.

    Args:
        run: traces with `ffn/gate_sum`; `ffn/active` for the rules `any` and `mean`.
        threshold: a neuron is active by `mean` if its gate is above 0 in more than this share of the steps;
            ours, the default is 0.5.
        top: neurons to list; ours, the default is 20.
        minimum: samples that both groups of a comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer`, `label` (all, faithful, unfaithful), `third`, `rank`.
        Ratios are shares of a layer's neurons, 0 to 1; attrs["neurons"] is their number.

        - ratio (sample, layer): equation 21; ratio_any, ratio_mean: by the other rules, if `ffn/active` was
          captured
        - ratio_by_label (label, layer), with _low, _high, and so for each rule; n_label (label)
        - difference (layer), with _low, _high, effect, p, p_holm: equation 22 (`compare_groups`), and with
          `_any` and `_mean` by the other rules; n_faithful, n_unfaithful. NaN where a group has fewer than
          `minimum` samples; attrs["note"] says so.
        - ratio_third (sample, third): mean ratio over the first, second and last third of the captured
          layers, ratio_third_by_label (label, third), and difference_third (third) and the rest of its
          comparison; only for three layers or more
        - top_layer, top_neuron (rank): the neurons by equation 20 whose shares of samples that activate them
          differ most, top_faithful, top_unfaithful those shares, top_difference unfaithful minus faithful,
          top_h Cohen's h, 2 asin(sqrt(unfaithful)) - 2 asin(sqrt(faithful)). Absent where a group is too
          small. Being the largest of many, these differences are larger than new samples would show; they
          carry no test.

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples with a sum that
        is not finite; n_left_out counts them, and nothing holds them.

    Raises:
        InputError: the run is empty, no sample has finite values, or threshold or top is out of range.
        NotCaptured: the sums were not captured.

    Example:
        >>> ds = neuron_activation(run, top=5)                      # doctest: +SKIP
        >>> ds.difference.sel(layer=3).item(), ds.p_holm.sel(layer=3).item()     # doctest: +SKIP
    """
    if not 0 <= threshold < 1 or top < 1:
        raise InputError(f"threshold {threshold} must be in [0, 1) and top {top} 1 or more")
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    layers = run[run.ids[0]].array("ffn/gate_sum")["layer"].values
    rows, names, labels, left_out = [], [], [], []
    shares: dict[bool, np.ndarray] = {}  # by faithful, the number of samples that activate each neuron
    for name, trace in run.stream("neuron_activation"):
        faithful = run.faithful(name)
        gate_sum = trace.array("ffn/gate_sum").values
        if not np.isfinite(gate_sum).all():
            left_out.append(name)
            continue
        active = {"sum": gate_sum > 0} | _by_fires(trace, gate_sum.shape[1], threshold)
        rows.append({rule: of_rule.mean(1) for rule, of_rule in active.items()})
        names.append(name)
        labels.append(faithful)
        if faithful is not None:
            shares[faithful] = shares.get(faithful, 0) + active["sum"]
    if not rows:
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in ffn/gate_sum")
    out = xr.Dataset(coords={"sample": names, "layer": layers, "label": list(LABELS)})
    members = by_label(labels)
    out["n_label"] = ("label", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n_label"][1])), ((), int(out["n_label"][2]))
    note = _add_ratios(out, rows, members, minimum)
    if not note:
        of_faithful = shares[True] / int(out["n_faithful"])
        of_unfaithful = shares[False] / int(out["n_unfaithful"])
        out.update(_most_different(of_faithful, of_unfaithful, layers, top))
    out.attrs = {
        "analysis": "neuron_activation",
        "run": str(run.path),
        "samples": len(rows),
        "model": run.config["model"]["name"],
        "neurons": gate_sum.shape[1],
        "threshold": threshold,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    } | ({"note": note} if note else {})
    return out


def _by_fires(trace: Trace, neurons: int, threshold: float) -> dict[str, np.ndarray]:
    """Neurons that are active by the rules `any` and `mean`, bool [layer, neuron]; none if not captured."""
    if "ffn/active" not in trace.captured:
        return {}
    packed = trace.array("ffn/active")
    fires = np.zeros((packed.shape[1], neurons), int)
    for start in range(0, len(packed), BLOCK_STEPS):
        block = packed[start : start + BLOCK_STEPS].values
        fires += np.unpackbits(block, axis=-1, count=neurons).sum(0, dtype=int)
    return {"any": fires > 0, "mean": fires > threshold * len(packed)}


def _add_ratios(
    out: xr.Dataset, rows: list[dict[str, np.ndarray]], members: dict[str, np.ndarray], minimum: int
) -> str:
    """Add the ratios of every rule that all samples have, and say why groups are not compared, if so."""
    note = ""
    for rule in RULES:
        if not all(rule in row for row in rows):
            continue
        suffix = "" if rule == "sum" else f"_{rule}"
        note = _add_ratio(out, np.array([row[rule] for row in rows]), "layer", suffix, members, minimum)
    if out.sizes["layer"] >= len(THIRDS):
        out.coords["third"] = list(THIRDS)
        parts = np.array_split(out["ratio"].values, len(THIRDS), axis=1)
        thirds = np.stack([part.mean(1) for part in parts], 1)
        _add_ratio(out, thirds, "third", "_third", members, minimum)
    return note


def _add_ratio(
    out: xr.Dataset,
    values: np.ndarray,
    dim: str,
    suffix: str,
    members: dict[str, np.ndarray],
    minimum: int,
) -> str:
    out[f"ratio{suffix}"] = (("sample", dim), values)
    out.update(means_by_label(f"ratio{suffix}_by_label", values, members, ("label", dim)))
    compared, note = unfaithful_minus_faithful(values, members, (dim,), minimum, suffix)
    out.update(compared)
    return note


def _most_different(
    faithful: np.ndarray, unfaithful: np.ndarray, layers: np.ndarray, top: int
) -> dict[str, tuple[str, np.ndarray]]:
    """The neurons whose shares [layer, neuron] differ most; of equal ones by h, then the first."""
    difference, h = unfaithful - faithful, cohens_h(unfaithful, faithful)
    order = np.lexsort((-np.abs(h).ravel().round(12), -np.abs(difference).ravel().round(12)))[:top]
    layer, neuron = np.unravel_index(order, faithful.shape)
    found = {
        "top_layer": layers[layer],
        "top_neuron": neuron,
        "top_faithful": faithful[layer, neuron],
        "top_unfaithful": unfaithful[layer, neuron],
        "top_difference": difference[layer, neuron],
        "top_h": h[layer, neuron],
    }
    found["rank"] = np.arange(len(order)) + 1
    return {name: ("rank", values) for name, values in found.items()}


def cohens_h(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Effect size of two proportions: 2 asin(sqrt(first)) - 2 asin(sqrt(second)), from -pi to pi.

    Example:
        >>> round(float(cohens_h(np.array(1.0), np.array(0.5))), 4)
        1.5708
    """
    return 2 * np.arcsin(np.sqrt(first)) - 2 * np.arcsin(np.sqrt(second))
