"""How far the residual streams of opposite questions' answers part (paper 003, section 4.3, appendix D.3)."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    by_label,
    means_by_label,
    unfaithful_minus_faithful,
)
from mmprobe.cache import Run
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable

STREAMS = ("pre", "mid", "post")
POLARITIES = ("same", "different")


def residual_drift(run: Run, stream: str = "post", minimum: int = MINIMUM) -> xr.Dataset:
    """Cosine of the residual streams of paired answers, by layer.

    S^l = cos(mean_t h_t^l(same), mean_t h_t^l(different)), h_t the stream at the query of step t. A pair is
    two samples with the same `pair_id` and the polarities `same` and `different`. It is unfaithful if either
    answer is, faithful if both are, and else only among all.

    Args:
        run: traces with `residual/STREAM`.
        stream: `pre`, `mid` or `post`: before, within or after the layer; ours, the default is `post`.
        minimum: pairs that both groups of the comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `pair` (pair id), `layer`, `faithful` (all, faithful, unfaithful).
        Cosines have no unit.

        - cosine (pair, layer): S^l, the authors' form, of the means over each answer's steps
        - cosine_aligned (pair, layer): mean of the cosine at the same step over the steps that both answers
          have, whose number is n_steps (pair)
        - cosine_mean, cosine_aligned_mean (faithful, layer), with _low, _high: means over pairs
        - n (faithful): pairs; pair_faithful (pair): 1 faithful, 0 unfaithful, NaN unknown
        - difference, with _low, _high, effect, p, p_holm (layer): unfaithful minus faithful pairs' cosine
          (`compare_groups`), and the same of cosine_aligned with `_aligned`; n_faithful, n_unfaithful: pairs.
          NaN where a group has fewer than `minimum` pairs; attrs["note"] says so.

        Intervals are 95 % percentile bootstraps over pairs. attrs["left_out"] names samples whose values are
        not finite, attrs["unpaired"] pairs with one answer; n_left_out and n_unpaired count them, and no mean
        holds them.

    Raises:
        NotApplicable: the run has no pair, or a pair has one polarity twice.
        InputError: the run is empty, or no such stream.
        NotCaptured: the residual stream was not captured.

    Example:
        >>> ds = residual_drift(run)                                # doctest: +SKIP
        >>> ds.cosine_mean.sel(faithful="unfaithful").values        # doctest: +SKIP
    """
    if stream not in STREAMS:
        raise InputError(f"no stream {stream!r}; known: {', '.join(STREAMS)}")
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    path = f"residual/{stream}"
    layers = run[run.ids[0]].array(path)["layer"].values
    pairs, unpaired = _pairs(run)
    rows, names, labels, left_out = [], [], [], []
    for pair, ids in tqdm(pairs.items(), desc="residual_drift", unit="pair", disable=None):
        with ExitStack() as stack:
            traces = [stack.enter_context(run[name].held_open()) for name in ids]
            *row, bad = _of_pair(*(trace.array(path) for trace in traces))
        left_out += [name for name, is_bad in zip(ids, bad, strict=True) if is_bad]
        if not any(bad):
            rows.append(row)
            names.append(pair)
            labels.append(_pair_faithful([run.faithful(name) for name in ids]))
    if not rows:
        raise NotApplicable(f"{run.path}: every pair has values that are not finite in {path}")
    whole, aligned = (np.array([row[kind] for row in rows]) for kind in (0, 1))
    out = xr.Dataset(
        {"n_steps": ("pair", [row[2] for row in rows])},
        coords={"pair": names, "layer": layers, "faithful": list(LABELS)},
    )
    note = _add(out, whole, aligned, labels, minimum)
    out.attrs = {
        "analysis": "residual_drift",
        "run": str(run.path),
        "pairs": len(rows),
        "stream": stream,
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "unpaired": ", ".join(unpaired),
        "n_unpaired": len(unpaired),
    } | ({"note": note} if note else {})
    return out


def _add(
    out: xr.Dataset, whole: np.ndarray, aligned: np.ndarray, labels: list[bool | None], minimum: int
) -> str:
    """Add what the cosines [pair, layer] give, and say why groups are not compared, if so."""
    members = by_label(labels)
    out["pair_faithful"] = ("pair", np.array([np.nan if is_ is None else float(is_) for is_ in labels]))
    out["n"] = ("faithful", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n"][1])), ((), int(out["n"][2]))
    note = ""
    for suffix, values in (("", whole), ("_aligned", aligned)):
        out[f"cosine{suffix}"] = (("pair", "layer"), values)
        out.update(means_by_label(f"cosine{suffix}_mean", values, members, ("faithful", "layer")))
        compared, note = unfaithful_minus_faithful(values, members, ("layer",), minimum, suffix)
        out.update(compared)
    return note


def _pairs(run: Run) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Samples of each pair, same before different, and the pairs of which only one is in the run."""
    found: dict[str, dict[str, str]] = {}
    for name in run.ids:
        sample = run.sample(name)
        if sample.pair_id is None or sample.polarity is None:
            continue
        pair = found.setdefault(sample.pair_id, {})
        if sample.polarity in pair:
            raise NotApplicable(
                f"{run.path}: pair {sample.pair_id} has two samples with polarity {sample.polarity!r} "
                f"({pair[sample.polarity]}, {name}); give each couple of questions its own pair_id"
            )
        pair[sample.polarity] = name
    whole = {
        pair: (ids["same"], ids["different"]) for pair, ids in found.items() if len(ids) == len(POLARITIES)
    }
    if not whole:
        raise NotApplicable(
            f"{run.path}: no pairs; two samples make one if they have the same pair_id and the polarities "
            "'same' and 'different'"
        )
    return whole, [pair for pair in found if pair not in whole]


def _of_pair(
    same: xr.DataArray, different: xr.DataArray
) -> tuple[np.ndarray, np.ndarray, int, tuple[bool, bool]]:
    """Cosine of the mean states and mean cosine at the same step, [layer]; steps of both; who is bad.

    Args:
        same, different: residual streams [step, layer, hidden], read a block of steps at a time.
    """
    streams = (same, different)
    total, bad = np.zeros((2, *same.shape[1:])), [False, False]
    aligned, steps = np.zeros(same.shape[1]), min(len(same), len(different))
    for start in range(0, max(len(same), len(different)), BLOCK_STEPS):
        blocks = [stream[start : start + BLOCK_STEPS].values.astype(float) for stream in streams]
        for index, block in enumerate(blocks):
            bad[index] |= not np.isfinite(block).all()
        if any(bad):
            continue
        total += [block.sum(0) for block in blocks]
        shared = min(map(len, blocks))
        aligned += _cosine(blocks[0][:shared], blocks[1][:shared]).sum(0)
    with np.errstate(invalid="ignore"):
        whole, aligned = _cosine(*total), np.divide(aligned, steps)
    if not any(bad) and not np.isfinite([whole, aligned]).all():
        bad = [True, True]  # a state of length 0 has no direction
    return whole, aligned, steps, (bad[0], bad[1])


def _cosine(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Cosine over the last axis; NaN where a vector has no length."""
    with np.errstate(invalid="ignore"):
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        return (one * two).sum(-1) / lengths


def _pair_faithful(answers: list[bool | None]) -> bool | None:
    """False if either answer is unfaithful, True if both are faithful, None if that is not known."""
    if False in answers:
        return False
    return None if None in answers else True
