"""Similarity of the residual streams of the answers to opposite questions.

SPD-Faith Bench (arXiv:2602.07833), section 4.3 and appendix D.3.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.source import analysis_of_run, describe
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.cache import Run
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import set_keys
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel, label_masks
from mmprobe.stats.intervals import COSINE
from mmprobe.stats.sets import Sets

STREAMS = ("pre", "mid", "post")
POLARITIES = ("same", "different")
CONSISTENCY = ("consistent", "contradictory")


@analysis_of_run
def residual_drift(
    run: Run,
    stream: str = "post",
    minimum: int = MINIMUM,
    final_norm: Callable[[np.ndarray], np.ndarray] | None = None,
) -> xr.Dataset:
    """Return the cosine of the residual streams of paired answers, by layer.

    S^l = cos(mean_t h_t^l(same), mean_t h_t^l(different)), where h_t is the residual stream at the query of
    step t. A pair is two samples with the same `pair_id` and the polarities `same` and `different`.

    There are two groupings of the pairs. The paper's (figure 8a and D.3) is by contradiction: a pair is
    contradictory if both answers are yes or both are no, and consistent if one is yes and one no
    (`read_yes_no`, as for CR). Our grouping is by statements: a pair is unfaithful if either answer is unfaithful, and faithful
    if both are faithful. Pairs that a grouping cannot place count only among all.

    Released code: in the last layer it takes the state after the final norm (figure 8a): `final_norm`. By default it is the state
    before that norm, of the `stream` that you choose; the other layers agree.

    Args:
        run: traces with `residual/STREAM`.
        stream: `pre`, `mid` or `post`: before, within or after the layer; the default `post` is our choice.
        minimum: pairs that each group of the comparison needs; the default 5 is our choice.
        final_norm: the model's last norm, from states [step, hidden] to states, for the model's last layer;
            `mmprobe.probes.final_norm(model)`. None leaves it out.

    Returns:
        A data set with dimensions `pair` (pair id), `layer`, `faithful` (all, faithful, unfaithful).
        Cosines have no unit.

        - cosine (pair, layer): S^l, the authors' form, of the means over each answer's steps
        - cosine_aligned (pair, layer): cosine at the same step, mean over the steps that both answers have
        - n_steps (pair): number of these steps
        - cosine_mean, cosine_aligned_mean (faithful, layer), with _low, _high: means over pairs
        - n (faithful): number of pairs; pair_faithful (pair): 1 faithful, 0 unfaithful, NaN unknown
        - pair_contradictory (pair): 1 contradictory, 0 consistent, NaN unknown; n_consistency (consistency):
          number of pairs; cosine_by_consistency (consistency, layer), with _low, _high: means over pairs;
          n_both_yes, n_both_no: numbers of pairs
        - difference, with _low, _high, effect, p, p_holm (layer): cosine of unfaithful minus faithful pairs
          (`compare_groups`); with `_aligned` the same of cosine_aligned; n_faithful, n_unfaithful: numbers of
          pairs. They are NaN if a group has fewer than `minimum` pairs, and attrs["note"] says so.
        - difference_contradictory with _low, _high, effect_…, p_… and p_holm_contradictory (layer): cosine of
          contradictory minus consistent pairs; attrs["note_contradictory"] says if a group is too small

        Intervals are 95 %, over sets of images (`stats.intervals`); pairs that share an image are one set,
        and attrs["sets"] counts the sets. attrs["left_out"] names the samples with values that are not
        finite, attrs["unpaired"] the pairs with one answer; n_left_out and n_unpaired count them. No mean
        includes them.

    Raises:
        NotApplicable: the run has no pair, or a pair has one polarity twice.
        InputError: the run is empty, the stream is unknown, or `final_norm` is given and the last layer was not captured, or
            the stream is not `post`.
        NotCaptured: the residual stream was not captured.

    Example:
        >>> ds = residual_drift(run)                                # doctest: +SKIP
        >>> ds.cosine_mean.sel(faithful="unfaithful").values        # doctest: +SKIP
    """
    if stream not in STREAMS:
        raise InputError(f"stream {stream!r}: must be one of {', '.join(STREAMS)}")
    path = f"residual/{stream}"
    layers = run[run.ids[0]].array(path)["layer"].values
    if final_norm is not None and (stream != "post" or layers[-1] + 1 != run.config["model"]["layers"]):
        raise InputError(
            "final_norm: is of the last layer's output; take the stream post, and capture the last layer"
        )
    pairs, unpaired = _find_pairs(run)
    groups = Sets()
    rows, names, labels, both_answers, left_out = [], [], [], [], []
    for pair, ids in tqdm(pairs.items(), desc="residual_drift", unit="pair", disable=None):
        with ExitStack() as stack:
            traces = [stack.enter_context(run[name].keep_open()) for name in ids]
            first, second = (trace.array(path) for trace in traces)
            *row, bad = _measure_pair(first, second, final_norm)
            said = [read_yes_no(trace.response) for trace in traces]
            answers = [None if word is None else word == "yes" for word in said]
        left_out += [name for name, is_bad in zip(ids, bad, strict=True) if is_bad]
        if not any(bad):
            rows.append(row)
            names.append(pair)
            labels.append(_pair_faithful([run.faithful(name) for name in ids]))
            both_answers.append(answers)
            for trace in traces:
                groups.add(trace.sample.id, set_keys(trace.sample))
    if not rows:
        raise NotApplicable(f"{run.path}: every pair has values that are not finite in {path}")
    cosine, aligned = (np.array([row[index] for row in rows]) for index in (0, 1))
    out = xr.Dataset(
        {"n_steps": ("pair", [row[2] for row in rows])},
        coords={"pair": names, "layer": layers, "faithful": list(LABELS)},
    )
    sets = groups.number()[::2]
    note = _add_cosines(out, cosine, aligned, labels, minimum, sets)
    note_contradictory = _add_contradictions(out, both_answers, minimum, sets)
    out.attrs = describe(
        "residual_drift",
        run,
        len(rows),
        sets,
        left_out,
        of="pairs",
        stream=stream,
        final_norm="yes" if final_norm else "no",
    ) | {"unpaired": ", ".join(unpaired), "n_unpaired": len(unpaired)}
    notes = {"note": note, "note_contradictory": note_contradictory}
    out.attrs |= {name: text for name, text in notes.items() if text}
    return out


def _add_cosines(
    out: xr.Dataset,
    cosine: np.ndarray,
    aligned: np.ndarray,
    labels: list[bool | None],
    minimum: int,
    sets: np.ndarray,
) -> str:
    """Add the cosines [pair, layer], their means and comparison; return the note of the comparison."""
    by_label = ByLabel(label_masks(labels), sets)
    out["pair_faithful"] = ("pair", np.array([np.nan if label is None else float(label) for label in labels]))
    counts = by_label.counts()
    out["n"] = ("faithful", counts.pop("n_label")[1])
    out.update(counts)
    note = ""
    for suffix, values in (("", cosine), ("_aligned", aligned)):
        out[f"cosine{suffix}"] = (("pair", "layer"), values)
        differences, note = by_label.compare(values, minimum=minimum, suffix=suffix)
        out.update(
            by_label.means(f"cosine{suffix}_mean", values, COSINE, ("faithful", "layer")) | differences
        )
    return note


def _add_contradictions(
    out: xr.Dataset, answers: list[list[bool | None]], minimum: int, sets: np.ndarray
) -> str:
    """Add the paper's grouping of the pairs, by whether their answers contradict each other.

    Args:
        answers: for each pair whether its two answers are yes.
        sets: int [pair], the set of images of each pair.

    Returns:
        The note of the comparison.
    """
    known = np.array([None not in pair for pair in answers])
    same = np.array([pair[0] == pair[1] for pair in answers])
    masks = {"consistent": known & ~same, "contradictory": known & same}
    out.coords["consistency"] = list(CONSISTENCY)
    out["pair_contradictory"] = ("pair", np.where(known, same, np.nan))
    out["n_consistency"] = ("consistency", [int(masks[kind].sum()) for kind in CONSISTENCY])
    out["n_both_yes"] = ((), answers.count([True, True]))
    out["n_both_no"] = ((), answers.count([False, False]))
    values = out["cosine"].values
    kinds = ByLabel(masks, sets)
    differences, note = kinds.compare(
        values, minimum=minimum, suffix="_contradictory", names=(CONSISTENCY[1], CONSISTENCY[0])
    )
    out.update(kinds.means("cosine_by_consistency", values, COSINE, ("consistency", "layer")) | differences)
    return note


def _find_pairs(run: Run) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Return the sample ids (same, different) of each pair, and the pairs with one sample in the run."""
    by_pair: dict[str, dict[str, str]] = {}
    for name in run.ids:
        sample = run.sample(name)
        if sample.pair_id is None or sample.polarity is None:
            continue
        pair = by_pair.setdefault(sample.pair_id, {})
        if sample.polarity in pair:
            raise NotApplicable(
                f"{run.path}: pair {sample.pair_id} has two samples with polarity {sample.polarity!r} "
                f"({pair[sample.polarity]}, {name}); give each pair of questions its own pair_id"
            )
        pair[sample.polarity] = name
    complete = {
        pair: (ids["same"], ids["different"]) for pair, ids in by_pair.items() if len(ids) == len(POLARITIES)
    }
    if not complete:
        raise NotApplicable(
            f"{run.path}: no pairs; two samples are a pair if they have the same pair_id and the polarities "
            "'same' and 'different'"
        )
    return complete, [pair for pair in by_pair if pair not in complete]


def _measure_pair(
    same: xr.DataArray,
    different: xr.DataArray,
    final_norm: Callable[[np.ndarray], np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray, int, tuple[bool, bool]]:
    """Compare the residual streams of two answers.

    Args:
        same, different: residual streams [step, layer, hidden], read a block of steps at a time.
        final_norm: of the last layer; or None.

    Returns:
        The cosine of the mean states [layer], the mean cosine at the same step [layer], the number of steps
        that both have, and for each answer whether a value is not finite.
    """
    streams = (same, different)
    total = np.zeros((2, *same.shape[1:]))
    aligned = np.zeros(same.shape[1])
    steps = min(len(same), len(different))
    bad = [False, False]
    for start in range(0, max(len(same), len(different)), BLOCK_STEPS):
        blocks = [stream[start : start + BLOCK_STEPS].values.astype(float) for stream in streams]
        for index, block in enumerate(blocks):
            bad[index] |= not np.isfinite(block).all()
            if final_norm is not None:
                block[:, -1] = final_norm(block[:, -1])
        if any(bad):
            continue
        total += [block.sum(0) for block in blocks]
        shared = min(map(len, blocks))
        aligned += _cosine(blocks[0][:shared], blocks[1][:shared]).sum(0)
    with np.errstate(invalid="ignore"):
        cosine, aligned = _cosine(*total), np.divide(aligned, steps)
    if not any(bad) and not np.isfinite([cosine, aligned]).all():
        bad = [True, True]  # a state of length 0 has no direction
    return cosine, aligned, steps, (bad[0], bad[1])


def _cosine(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return the cosine over the last axis; NaN where a vector has length 0."""
    with np.errstate(invalid="ignore"):
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        return (one * two).sum(-1) / lengths


def _pair_faithful(answers: list[bool | None]) -> bool | None:
    """Return False if either answer is unfaithful, True if both are faithful, else None."""
    if False in answers:
        return False
    return None if None in answers else True
