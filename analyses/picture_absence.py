"""What changes inside a model when the pictures of a question are taken away (paper 002, section 2.2, from within)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.statistics import bootstrap_mean
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable

STREAM = "residual/post"
MASS = "attention/mass"
PICTURE = ("present", "absent")
SPANS = ("first", "answer")


class _Side(NamedTuple):
    """One answer: states [span, layer, hidden], attention [layer, group] or None, entropy of the first token."""

    states: np.ndarray
    mass: np.ndarray | None
    entropy: float

    def is_finite(self) -> bool:
        mass = 0.0 if self.mass is None else self.mass
        lengths = np.linalg.norm(self.states, axis=-1)  # a state of length 0 has no direction
        return bool(
            np.isfinite(lengths).all() and lengths.all() and np.isfinite([np.sum(mass), self.entropy]).all()
        )


def picture_absence(run: Run) -> xr.Dataset:
    """How states, attention and certainty differ between a question with its pictures and without them.

    A pair is a sample without pictures whose `metadata` holds `with_picture`, the id of the sample with the same
    question and its pictures; `mmprobe bench mirage-effect --trace` writes such pairs. The paper compares answers; that
    the same is asked of what lies behind them is ours.

    Args:
        run: traces with `residual/post`; `attention/mass` for the attention.

    Returns:
        A data set with dimensions `pair` (id of the sample with pictures), `layer`, `picture` (present, absent),
        `group`. States are those after each layer: `first` at the query that gives the first token, before anything
        is said, `answer` the mean over each answer's steps.

        - distance_first, distance_answer (pair, layer): 1 - cosine of the state without pictures and that with them
        - norm_first, norm_answer (pair, layer): length of the state without pictures over that with them, less 1
        - distance_others (pair, layer): 1 - cosine of the first states of two questions that both have their pictures,
          each pair's and that of the pair half the run further on: what another question and picture change; NaN for
          a single pair
        - entropy (pair, picture): of the distribution of the first token, in nats
        - each of these again with `_mean`, without `pair`: mean over pairs
        - mass (picture, layer, group): attention by group, mean over heads, steps and pairs; only with `attention/mass`
        - mass_difference (layer, group), entropy_difference: absent minus present, mean over pairs
        - n: pairs

        Every mean over pairs has `_low` and `_high`: 95 % percentile bootstraps over pairs, NaN for a single pair.
        attrs["left_out"] names pairs with values that are not finite, attrs["unpaired"] samples without pictures whose
        twin is not in the run; n_left_out and n_unpaired count them, and nothing holds them.

    Raises:
        NotApplicable: the run has no such pair, or none with finite values.
        NotCaptured: the residual stream was not captured.
        InputError: the run is empty.

    Example:
        >>> ds = picture_absence(run)                               # doctest: +SKIP
        >>> ds.distance_first_mean.values                           # doctest: +SKIP
    """
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    pairs, unpaired = _pairs(run)
    sides: list[tuple[_Side, _Side]] = []
    names: list[str] = []
    left_out: list[str] = []
    labels: dict[str, np.ndarray] = {}
    for present, absent in tqdm(pairs.items(), desc="picture_absence", unit="pair", disable=None):
        with ExitStack() as stack:
            traces = [stack.enter_context(run[name].held_open()) for name in (present, absent)]
            if not labels:
                labels = _labels(traces[0])
            one, two = (_side(trace) for trace in traces)
        if one.is_finite() and two.is_finite():
            sides.append((one, two))
            names.append(present)
        else:
            left_out.append(present)
    if not sides:
        raise NotApplicable(f"{run.path}: every pair has values that are not finite in {STREAM}")
    out = xr.Dataset(coords={"pair": names, "picture": list(PICTURE), **labels})
    _states(out, np.array([[side.states for side in pair] for pair in sides]))
    _entropy(out, np.array([[side.entropy for side in pair] for pair in sides]))
    mass = [[side.mass for side in pair if side.mass is not None] for pair in sides]
    if all(len(pair) == 2 for pair in mass):
        _mass(out, np.array(mass))
    out["n"] = ((), len(names))
    out.attrs = {
        "analysis": "picture_absence",
        "run": str(run.path),
        "pairs": len(names),
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "unpaired": ", ".join(unpaired),
        "n_unpaired": len(unpaired),
    }
    return out


def _pairs(run: Run) -> tuple[dict[str, str], list[str]]:
    """The sample without pictures of each that has them, and those whose twin is missing."""
    found: dict[str, str] = {}
    unpaired = []
    for name in run.ids:
        sample = run.sample(name)
        other = sample.metadata.get("with_picture")
        if not isinstance(other, str) or sample.images:
            continue
        if other in run and run.sample(other).images and other not in found:
            found[other] = name
        else:
            unpaired.append(name)
    if not found:
        raise NotApplicable(
            f"{run.path}: no question with and without its pictures; a sample without pictures names the one with them "
            "in metadata as 'with_picture' (mmprobe bench mirage-effect --trace)"
        )
    return found, unpaired


def _labels(trace: Trace) -> dict[str, np.ndarray]:
    found = {"layer": trace.array(STREAM)["layer"].values}
    if MASS in trace.captured:
        found["group"] = trace.array(MASS)["group"].values
    return found


def _side(trace: Trace) -> _Side:
    """What one answer adds; its states are read a block of steps at a time."""
    stream = trace.array(STREAM)
    first, total = np.zeros(stream.shape[1:]), np.zeros(stream.shape[1:])
    for start in range(0, len(stream), BLOCK_STEPS):
        block = stream[start : start + BLOCK_STEPS].values.astype(float)
        if not start:
            first = block[0]
        total += block.sum(0)
    mass = None
    if MASS in trace.captured:
        mass = trace.array(MASS).mean(("step", "head"), dtype=np.float64).values
    entropy = trace.array("steps/entropy").values
    states = np.stack([first, total / max(len(stream), 1)])
    return _Side(states, mass, float(entropy[0]) if len(entropy) else np.nan)


def _states(out: xr.Dataset, states: np.ndarray) -> None:
    """Add what the states [pair, picture, span, layer, hidden] give."""
    present, absent = states[:, 0], states[:, 1]
    lengths = np.linalg.norm(states, axis=-1)
    distance, norm = _distance(present, absent), lengths[:, 1] / lengths[:, 0] - 1
    for place, span in enumerate(SPANS):
        _with_mean(out, f"distance_{span}", distance[:, place], ("pair", "layer"))
        _with_mean(out, f"norm_{span}", norm[:, place], ("pair", "layer"))
    first = present[:, 0]
    others = _distance(first, np.roll(first, -(len(first) // 2), axis=0))
    if len(first) < 2:
        others = np.full_like(others, np.nan)
    _with_mean(out, "distance_others", others, ("pair", "layer"))


def _distance(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """1 - cosine over the last axis."""
    return 1 - (one * two).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1))


def _entropy(out: xr.Dataset, entropy: np.ndarray) -> None:
    _with_mean(out, "entropy", entropy, ("pair", "picture"))
    _mean(out, "entropy_difference", entropy[:, 1] - entropy[:, 0], ())


def _mass(out: xr.Dataset, mass: np.ndarray) -> None:
    """Add the means of attention [pair, picture, layer, group]."""
    _mean(out, "mass", mass, ("picture", "layer", "group"))
    _mean(out, "mass_difference", mass[:, 1] - mass[:, 0], ("layer", "group"))


def _with_mean(out: xr.Dataset, name: str, values: np.ndarray, dims: tuple[str, ...]) -> None:
    out[name] = (dims, values)
    _mean(out, f"{name}_mean", values, dims[1:])


def _mean(out: xr.Dataset, name: str, values: np.ndarray, dims: tuple[str, ...]) -> None:
    """Add a mean over pairs and its interval, as NAME, and NAME_low and NAME_high."""
    low, high = bootstrap_mean(values)
    out[name] = (dims, values.mean(0))
    out[f"{name}_low"], out[f"{name}_high"] = (dims, low), (dims, high)
