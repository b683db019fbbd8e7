"""What attention and FFN do to the residual stream, layer by layer (paper 003, sections 4.3 and 5)."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_decay import StepMean
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

MEASURES = ("cos_mha", "cos_ffn", "kl")
NORMS = ("norm_mha", "norm_ffn")
_STREAMS = ("residual/pre", "residual/mid", "residual/post")


def sublayer_transitions(run: Run, minimum: int = MINIMUM) -> xr.Dataset:
    """How much each sublayer turns the residual stream, and how far attention and FFN disagree.

    With x, x' and x'' the stream before attention, after it and after the FFN (equations 1 and 2), at the
    query of each step: cos_mha = cos(x, x'), cos_ffn = cos(x', x''), and the conflict of equations 5 and 23,
    kl = KL(softmax(x' - x) || softmax(x'' - x')) over the hidden axis, in nat.

    Args:
        run: traces with `update/cos_mha`, `update/cos_ffn` and `update/kl`.
        minimum: samples that both groups of the comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer`, `step`, `label` (all, faithful, unfaithful), `measure`.

        - cos_mha, cos_ffn, kl (sample, layer): means over the steps of each answer
        - NAME_by_label (label, layer), with _low, _high: means of these over samples; n_label (label)
        - NAME_by_step (label, layer, step): means over the samples that reach a step, n_by_step (label, step)
        - norm_mha, norm_ffn (sample, layer), and _by_label: mean lengths of x' - x and x'' - x', in units of
          the residual stream; only if pre, mid and post were all captured. They are stored in half precision
          if nothing else was asked for, so an update much smaller than its stream is rounded.
        - difference, with _low, _high, effect, p, p_holm (measure, layer): unfaithful minus faithful
          (`compare_groups`; Holm over the layers of a measure); n_faithful, n_unfaithful. NaN where a group
          has fewer than `minimum` samples; attrs["note"] says so.

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples with a value
        that is not finite; n_left_out counts them, and nothing holds them.

    Raises:
        InputError: the run is empty, or no sample has finite values.
        NotCaptured: the updates were not captured.

    Example:
        >>> ds = sublayer_transitions(run)                          # doctest: +SKIP
        >>> ds.difference.sel(measure="cos_ffn").values             # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    layers = run[run.ids[0]].array("update/kl")["layer"].values
    by_step = {(label, name): StepMean() for label in LABELS for name in MEASURES}
    rows, norms, names, labels, left_out = [], [], [], [], []
    for name, trace in run.stream("sublayer_transitions"):
        faithful = run.faithful(name)
        updates = np.array([trace.array(f"update/{measure}").values for measure in MEASURES], float)
        lengths = _update_norms(trace)
        if not updates.shape[1] or not all(np.isfinite(part).all() for part in (updates, lengths)):
            left_out.append(name)
            continue
        rows.append(updates.mean(1))
        norms.append(lengths)
        names.append(name)
        labels.append(faithful)
        for label, member in zip(LABELS, (True, faithful is True, faithful is False), strict=True):
            for measure, values in zip(MEASURES, updates, strict=True) if member else ():
                by_step[label, measure].add(values)
    if not rows:
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in update/")
    members = by_label(labels)
    out = _over_steps(by_step, names, layers)
    note = _add_per_sample(out, np.array(rows), members, minimum)
    if all(len(lengths) for lengths in norms):
        _add_measures(out, NORMS, np.array(norms), members)
    out.attrs = {
        "analysis": "sublayer_transitions",
        "run": str(run.path),
        "samples": len(rows),
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    } | ({"note": note} if note else {})
    return out


def _over_steps(by_step: dict[tuple[str, str], StepMean], names: list[str], layers: np.ndarray) -> xr.Dataset:
    """The means over samples at each step, and how many samples those are."""
    steps = max(by_step["all", "kl"].lengths)
    out = xr.Dataset(
        coords={
            "sample": names,
            "layer": layers,
            "step": np.arange(steps),
            "label": list(LABELS),
            "measure": list(MEASURES),
        }
    )
    for measure in MEASURES:
        means = np.array([by_step[label, measure].mean(steps, (len(layers),)).T for label in LABELS])
        out[f"{measure}_by_step"] = (("label", "layer", "step"), means)
    reached = [by_step[label, "kl"].reached(steps) for label in LABELS]
    out["n_by_step"] = (("label", "step"), np.array(reached))
    return out


def _add_per_sample(out: xr.Dataset, values: np.ndarray, members: dict[str, np.ndarray], minimum: int) -> str:
    """Add what the values [sample, measure, layer] give, and say why groups are not compared, if so."""
    _add_measures(out, MEASURES, values, members)
    out["n_label"] = ("label", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n_label"][1])), ((), int(out["n_label"][2]))
    compared, note = unfaithful_minus_faithful(values, members, ("measure", "layer"), minimum)
    out.update(compared)
    return note


def _add_measures(
    out: xr.Dataset, names: tuple[str, ...], values: np.ndarray, members: dict[str, np.ndarray]
) -> None:
    """Add each measure of the values [sample, measure, layer], and its means by label."""
    for index, name in enumerate(names):
        out[name] = (("sample", "layer"), values[:, index])
        out.update(means_by_label(f"{name}_by_label", values[:, index], members, ("label", "layer")))


def _update_norms(trace: Trace) -> np.ndarray:
    """Mean length over steps of x' - x and x'' - x': [2, layer]; empty if a stream was not captured."""
    if not set(_STREAMS) <= set(trace.captured):
        return np.zeros(0)
    streams = [trace.array(path) for path in _STREAMS]
    steps, layers = streams[0].shape[:2]
    total = np.zeros((2, layers))
    for start in range(0, steps, BLOCK_STEPS):
        pre, mid, post = (stream[start : start + BLOCK_STEPS].values.astype(float) for stream in streams)
        with np.errstate(invalid="ignore"):  # an infinite state; the sample is then left out
            total += [np.linalg.norm(change, axis=-1).sum(0) for change in (mid - pre, post - mid)]
    return total / max(steps, 1)
