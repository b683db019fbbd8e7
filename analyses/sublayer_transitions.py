"""Updates of the residual stream by attention and FFN, layer by layer.

SPD-Faith Bench (arXiv:2602.07833), sections 4.3 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import xarray as xr
from scipy.special import log_softmax

from mmprobe.analyses.attention_decay import StepMean
from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel, label_masks, p_equivalent
from mmprobe.stats.intervals import COSINE, LENGTH

MEASURES = ("cos_mha", "cos_ffn", "kl")
TRANSITIONS = MEASURES[:2]
NORMS = ("norm_mha", "norm_ffn")
MARGIN = 0.01  # of cosines that count as equal; our choice
_STREAMS = ("residual/pre", "residual/mid", "residual/post")
_PROMPT_STREAMS = ("prompt/residual_pre", "prompt/residual_mid", "prompt/residual_post")


@analysis_of_run
def sublayer_transitions(
    run: Run,
    minimum: int = MINIMUM,
    margin: float = MARGIN,
    positions: Literal["generated", "prompt"] = "generated",
) -> xr.Dataset:
    """Return how much each sublayer turns the residual stream, and how far attention and FFN disagree.

    x, x' and x'' are the residual stream before attention, after attention and after the FFN (equations 1 and
    2), at the query of each step. The transitions are cos_mha = cos(x, x') and cos_ffn = cos(x', x''). The
    conflict of equations 5 and 23 is kl = KL(softmax(x' - x) || softmax(x'' - x')) over the hidden axis, in
    nat.

    Released code: it averages over the tokens of the prompt (figure 8b): `positions="prompt"`. By default means are over the
    steps of the answer. `NAME_by_step` has each step, or token of the prompt. It also gives changes of length: `norm_mha` and
    `norm_ffn` are the lengths.

    Args:
        run: traces with `update/cos_mha`, `update/cos_ffn` and `update/kl`.
        minimum: samples that each group of the comparison needs; the default 5 is our choice.
        margin: difference of cosines up to which two groups count as equal; the default 0.01 is our choice.
        positions: `generated`, or `prompt` for the tokens of the prompt, from `prompt/residual_pre`, `_mid` and `_post` (a
            capture with `positions: all`).

    Returns:
        A data set with dimensions `sample`, `layer`, `step`, `label` (all, faithful, unfaithful), `measure`.

        - cos_mha, cos_ffn, kl (sample, layer): means over the steps of each answer
        - kl_median (sample, layer): the median over the steps of each answer. The KL of a single step may be hundreds of nat,
          where a sublayer writes little but in one dimension, and then it alone is the mean
        - NAME_by_label (label, layer), with _low, _high: means of these over samples, of kl_median too; n_label (label)
        - NAME_by_step (label, layer, step): means over the samples that reach a step; n_by_step (label, step)
        - norm_mha, norm_ffn (sample, layer), and _by_label: mean lengths of x' - x and x'' - x', in units of
          the residual stream; only if pre, mid and post were all captured. By default the streams are stored
          in half precision, so an update much smaller than its stream is rounded.
        - difference, with _low, _high, effect, p, p_holm (measure, layer): unfaithful minus faithful
          (`compare_groups`; Holm over the layers of a measure); n_faithful, n_unfaithful. They are NaN if a
          group has fewer than `minimum` samples, and attrs["note"] says so.
        - p_equivalent (transition, layer): p of the two one-sided tests that cos_mha or cos_ffn of unfaithful
          and faithful samples differ by less than `margin` (`p_equivalent`). To show that all layers are
          equal, each one must be, so this p needs no correction. NaN if a group is too small.

        Intervals are 95 %, over sets of images (`stats.intervals`); attrs["sets"] counts the sets. Samples
        with values that are not finite are left out: attrs["left_out"] names them and n_left_out counts them.

    Raises:
        InputError: the run is empty, no sample has finite values, margin is not above 0, or positions is unknown.
        NotCaptured: the updates were not captured.

    Example:
        >>> ds = sublayer_transitions(run)                          # doctest: +SKIP
        >>> ds.difference.sel(measure="cos_ffn").values             # doctest: +SKIP
    """
    if not margin > 0:
        raise InputError(f"margin {margin}: must be above 0")
    if positions not in ("generated", "prompt"):
        raise InputError(f"positions {positions!r}: must be generated or prompt")
    streams = _STREAMS if positions == "generated" else _PROMPT_STREAMS
    first = "update/kl" if positions == "generated" else streams[0]
    layers = run[run.ids[0]].array(first)["layer"].values
    by_step = {(label, name): StepMean() for label in LABELS for name in MEASURES}
    measured = SampleRows("sublayer_transitions", run)
    for name, trace in run.stream("sublayer_transitions"):
        if positions == "prompt":
            updates = _measure_updates(trace)
        else:
            updates = np.array([trace.array(f"update/{measure}").values for measure in MEASURES], float)
        sample_norms = _measure_norms(trace, streams)
        if not updates.shape[1] or not (np.isfinite(updates).all() and np.isfinite(sample_norms).all()):
            measured.left_out.append(name)
            continue
        row = {"updates": updates.mean(1), "kl_median": np.median(updates[MEASURES.index("kl")], 0)}
        measured.add(trace, row | ({"norms": sample_norms} if len(sample_norms) else {}))
        for label, mask in label_masks(measured.faithful[-1:]).items():
            for measure, values in zip(MEASURES, updates, strict=True) if mask.item() else ():
                by_step[label, measure].add(values)
    if not len(measured):
        raise NotApplicable(f"{run.path}: every sample has values that are not finite in update/")
    out = _average_steps(by_step, measured.names, layers)
    rows, labels = measured.rows, measured.labels
    _add_measures(out, MEASURES, rows["updates"], labels)
    differences, note = labels.compare(rows["updates"], ("measure", "layer"), minimum)
    out.update(labels.counts() | differences)
    _add_equivalence(out, measured, minimum, margin)
    _add_measures(out, ("kl_median",), rows["kl_median"][:, None], labels)
    if "norms" in rows:
        _add_measures(out, NORMS, rows["norms"], labels)
    out.attrs = measured.describe(note, margin=margin, positions=positions)
    return out


def _average_steps(
    by_step: dict[tuple[str, str], StepMean], names: list[str], layers: np.ndarray
) -> xr.Dataset:
    """Return the means over samples at each step, and the number of samples."""
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


def _add_equivalence(out: xr.Dataset, measured: SampleRows, minimum: int, margin: float) -> None:
    """Add p of the equivalence of unfaithful and faithful samples, for each transition and layer."""
    out.coords["transition"] = list(TRANSITIONS)
    masks = measured.labels.masks
    groups = masks["unfaithful"], masks["faithful"]
    tests = [p_equivalent(out[name].values, *groups, margin, measured.sets, minimum) for name in TRANSITIONS]
    out["p_equivalent"] = (("transition", "layer"), np.array(tests))


def _add_measures(out: xr.Dataset, names: tuple[str, ...], values: np.ndarray, labels: ByLabel) -> None:
    """Add each measure of values [sample, measure, layer], and its means by label."""
    for index, name in enumerate(names):
        range = COSINE if name in TRANSITIONS else LENGTH
        out[name] = (("sample", "layer"), values[:, index])
        out.update(labels.means(f"{name}_by_label", values[:, index], range))


def _measure_updates(trace: Trace) -> np.ndarray:
    """Return cos_mha, cos_ffn and kl of each token of the prompt, [measure, token, layer], a block of tokens at a time."""
    streams = [trace.array(path) for path in _PROMPT_STREAMS]
    blocks = []
    for start in range(0, len(streams[0]), BLOCK_STEPS):
        pre, mid, post = (stream[start : start + BLOCK_STEPS].values.astype(float) for stream in streams)
        with np.errstate(invalid="ignore"):  # a sample with an infinite state is left out
            attention, ffn = log_softmax(mid - pre, axis=-1), log_softmax(post - mid, axis=-1)
            kl = (np.exp(attention) * (attention - ffn)).sum(-1)
            blocks.append([_cosine(pre, mid), _cosine(mid, post), kl])
    return np.concatenate(blocks, 1) if blocks else np.zeros((len(MEASURES), 0, streams[0].shape[1]))


def _cosine(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.asarray((one * two).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)))


def _measure_norms(trace: Trace, paths: Sequence[str]) -> np.ndarray:
    """Return the mean length over steps of x' - x and x'' - x', [2, layer].

    It is empty if a stream was not captured.
    """
    if not set(paths) <= set(trace.captured):
        return np.zeros(0)
    streams = [trace.array(path) for path in paths]
    steps, layers = streams[0].shape[:2]
    total = np.zeros((2, layers))
    for start in range(0, steps, BLOCK_STEPS):
        pre, mid, post = (stream[start : start + BLOCK_STEPS].values.astype(float) for stream in streams)
        with np.errstate(invalid="ignore"):  # a sample with an infinite state is left out
            total += [np.linalg.norm(update, axis=-1).sum(0) for update in (mid - pre, post - mid)]
    return total / max(steps, 1)
