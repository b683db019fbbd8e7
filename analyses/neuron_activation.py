"""FFN neurons that are active in an answer, and their difference between the labels.

SPD-Faith Bench (arXiv:2602.07833), appendix D.4.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel
from mmprobe.stats.intervals import FRACTION

RULES = ("sum", "tokens", "any", "mean")
THIRDS = ("early", "middle", "deep")


@analysis_of_run
def neuron_activation(
    run: Run, threshold: float = 0.5, top: int = 20, minimum: int = MINIMUM, scale: float = 1.0
) -> xr.Dataset:
    """Return the share of active FFN neurons by layer, and the difference between the labels.

    Neuron i of layer l is active in an answer if the sum of its gate SiLU(w_i h_t) over the generated tokens
    is above 0 (equation 20). The ratio r^l is the share of a layer's neurons that are active (equation 21).
    The difference is the mean of r^l over unfaithful samples minus the mean over faithful ones (equation 22).

    The sum is over the positions that produce the answer: from the last prompt token, which predicts the
    first generated token, to the last but one generated token. Equation 20 read word for word begins one
    position later, at the first generated token, and ends at the last one, which a model never reads. The
    rule `tokens` is that reading: it leaves out the last prompt token. SiLU goes down to -0.278, so a neuron
    whose gate is above 0 at some token may have a negative sum. Two other rules, `any` and `mean`, count the
    steps with a gate above 0.

    Released code: it averages over the tokens of the prompt (D.4), whose gates no capture records. The sum here is over the answer,
    by the rule of your choice (`ratio`, `ratio_tokens`, `ratio_any`, `ratio_mean`). The script of figure 22 multiplies the
    difference by 10: `scale=10`. By default it is not scaled.

    Args:
        run: traces with `ffn/gate_sum`; `ffn/gate_first` for the rule `tokens`, `ffn/active` for `any` and
            `mean`.
        threshold: a neuron is active by the rule `mean` if its gate is above 0 in more than this share of the
            steps; the default 0.5 is our choice.
        top: number of neurons to list; the default 20 is our choice.
        minimum: samples that each group of a comparison needs; the default 5 is our choice.
        scale: what differences are multiplied by, and their intervals; 10 in the script of figure 22, 1 in equation 22.

    Returns:
        A data set with dimensions `sample`, `layer`, `label` (all, faithful, unfaithful), `third`, `rank`.
        Ratios are shares of a layer's neurons, 0 to 1; attrs["neurons"] is the number of neurons.

        - ratio (sample, layer): equation 21; ratio_tokens, ratio_any, ratio_mean: by the other rules, if
          their data set was captured
        - ratio_by_label (label, layer), with _low, _high; the same for each rule; n_label (label)
        - difference (layer), with _low, _high, effect, p, p_holm: equation 22 (`compare_groups`); with
          `_tokens`, `_any` and `_mean` for the other rules; n_faithful, n_unfaithful. They are NaN if a
          group has fewer than `minimum` samples, and attrs["note"] says so.
        - ratio_third (sample, third): mean ratio over the first, second and last third of the captured
          layers; ratio_third_by_label (label, third); difference_third (third) with its interval and test.
          Only for three layers or more
        - top_layer, top_neuron (rank): the neurons with the largest difference between unfaithful and
          faithful samples, by equation 20; top_faithful, top_unfaithful: share of the samples in which they
          are active; top_difference: unfaithful minus faithful; top_h: Cohen's h (`cohens_h`). Absent if a
          group is too small. They are the largest of many, so new samples would show smaller differences.
          They carry no test.

        Intervals are 95 % intervals over sets of images (`stats.intervals`); attrs["sets"] is their
        number. Samples with a sum that is not finite are left out: attrs["left_out"] names them and
        n_left_out counts them.

    Raises:
        InputError: the run is empty, no sample has finite values, or threshold, top or scale is out of range.
        NotCaptured: the sums were not captured.

    Example:
        >>> ds = neuron_activation(run, top=5)                      # doctest: +SKIP
        >>> ds.difference.sel(layer=3).item(), ds.p_holm.sel(layer=3).item()     # doctest: +SKIP
    """
    if not 0 <= threshold < 1:
        raise InputError(f"threshold {threshold}: must be in [0, 1)")
    if top < 1:
        raise InputError(f"top {top}: must be 1 or more")
    if not 0 < scale < np.inf:
        raise InputError(f"scale {scale}: must be above 0 and finite")
    layers = run[run.ids[0]].array("ffn/gate_sum")["layer"].values
    measured = SampleRows("neuron_activation", run)
    n_active: dict[bool, np.ndarray] = {}  # samples [layer, neuron] with the neuron active, by `faithful`
    for name, trace in run.stream("neuron_activation"):
        gate_sum = trace.array("ffn/gate_sum").values
        if not np.isfinite(gate_sum).all():
            measured.left_out.append(name)
            continue
        active = {"sum": gate_sum > 0} | _apply_other_rules(trace, gate_sum, threshold)
        measured.add(trace, {rule: neurons.mean(1) for rule, neurons in active.items()})
        if (faithful := measured.faithful[-1]) is not None:
            n_active[faithful] = n_active.get(faithful, 0) + active["sum"]
    if not len(measured):
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in ffn/gate_sum")
    out = xr.Dataset(coords={"sample": measured.names, "layer": layers, "label": list(LABELS)})
    out.update(measured.labels.counts())
    note = _add_ratios(out, measured, minimum)
    for variable in (each for each in list(out) if str(each).startswith("difference")):
        out[variable] = out[variable] * scale
    if not note:
        faithful_share = n_active[True] / int(out["n_faithful"])
        unfaithful_share = n_active[False] / int(out["n_unfaithful"])
        out.update(_rank_neurons(faithful_share, unfaithful_share, layers, top))
    out.attrs = measured.describe(note, neurons=gate_sum.shape[1], threshold=threshold, scale=scale)
    return out


def _apply_other_rules(trace: Trace, gate_sum: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
    """Return the neurons that are active by the rules whose data set was captured, bool [layer, neuron]."""
    active = {}
    if "ffn/gate_first" in trace.captured:
        active["tokens"] = gate_sum - trace.array("ffn/gate_first").values > 0
    if "ffn/active" not in trace.captured:
        return active
    neurons = gate_sum.shape[1]
    packed = trace.array("ffn/active")
    n_steps = np.zeros((packed.shape[1], neurons), int)
    for start in range(0, len(packed), BLOCK_STEPS):
        block = packed[start : start + BLOCK_STEPS].values
        n_steps += np.unpackbits(block, axis=-1, count=neurons).sum(0, dtype=int)
    return active | {"any": n_steps > 0, "mean": n_steps > threshold * len(packed)}


def _add_ratios(out: xr.Dataset, measured: SampleRows, minimum: int) -> str:
    """Add the ratios of every rule that all samples have; return the note of the comparison."""
    note, labels = "", measured.labels
    for rule in (rule for rule in RULES if rule in measured.rows):
        suffix = "" if rule == "sum" else f"_{rule}"
        note = _add_ratio(out, measured.rows[rule], "layer", suffix, labels, minimum)
    if out.sizes["layer"] >= len(THIRDS):
        out.coords["third"] = list(THIRDS)
        splits = np.array_split(out["ratio"].values, len(THIRDS), axis=1)
        thirds = np.stack([split.mean(1) for split in splits], 1)
        _add_ratio(out, thirds, "third", "_third", labels, minimum)
    return note


def _add_ratio(
    out: xr.Dataset, values: np.ndarray, dim: str, suffix: str, labels: ByLabel, minimum: int
) -> str:
    """Add the ratios [sample, dim] of one rule and their comparison; return its note."""
    out[f"ratio{suffix}"] = (("sample", dim), values)
    differences, note = labels.compare(values, (dim,), minimum, suffix)
    out.update(labels.means(f"ratio{suffix}_by_label", values, FRACTION, ("label", dim)) | differences)
    return note


def _rank_neurons(
    faithful: np.ndarray, unfaithful: np.ndarray, layers: np.ndarray, top: int
) -> dict[str, tuple[str, np.ndarray]]:
    """Return the neurons whose shares [layer, neuron] differ most.

    Equal differences are ordered by Cohen's h, then by layer and neuron.
    """
    difference, h = unfaithful - faithful, cohens_h(unfaithful, faithful)
    order = np.lexsort((-np.abs(h).ravel().round(12), -np.abs(difference).ravel().round(12)))[:top]
    layer, neuron = np.unravel_index(order, faithful.shape)
    variables = {
        "rank": np.arange(len(order)) + 1,
        "top_layer": layers[layer],
        "top_neuron": neuron,
        "top_faithful": faithful[layer, neuron],
        "top_unfaithful": unfaithful[layer, neuron],
        "top_difference": difference[layer, neuron],
        "top_h": h[layer, neuron],
    }
    return {name: ("rank", values) for name, values in variables.items()}


def cohens_h(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Cohen's h of two proportions: 2 asin(sqrt(first)) - 2 asin(sqrt(second)), from -pi to pi.

    Example:
        >>> round(float(cohens_h(np.array(1.0), np.array(0.5))), 4)
        1.5708
    """
    return 2 * np.arcsin(np.sqrt(first)) - 2 * np.arcsin(np.sqrt(second))
