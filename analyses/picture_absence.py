"""Change inside a model when the images of a question are taken away.

"The mirage effect" (arXiv:2603.21687), section 2.2, compares the answers. The comparison of internals is our
own addition.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.source import describe
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import QUANTITY

STREAM = "residual/post"
MASS = "attention/mass"
PICTURE = ("present", "absent")
READ_SPANS = ("first", "answer")


class _Internals(NamedTuple):
    """States [span, layer, hidden], attention [layer, group] and first token's entropy of an answer."""

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
    """Compare the states, attention and certainty of a question with its images and without them.

    A pair is a sample without images whose `metadata` has `with_picture`: the id of the sample with the
    same question and its images. `mmprobe bench mirage-effect --trace` writes such pairs.

    Args:
        run: traces with `residual/post`; `attention/mass` for the attention.

    Returns:
        A data set with dimensions `pair` (id of the sample with images), `layer`, `picture` (present,
        absent), `group`. A state is the residual stream after a layer: `first` at the query of the first
        token, `answer` the mean over the answer's steps.

        - distance_first, distance_answer (pair, layer): 1 - cosine of the states with and without images
        - norm_first, norm_answer (pair, layer): length of the state without images over the length with
          images, minus 1
        - distance_others (pair, layer): 1 - cosine of the first states of two different questions with
          images, for scale. The other question is half the run further on. NaN for a single pair
        - entropy (pair, picture): entropy of the first token's distribution, in nat
        - each of these with `_mean`, without `pair`: mean over pairs
        - mass (picture, layer, group): attention by group, mean over heads, steps and pairs; only with
          `attention/mass`
        - mass_difference (layer, group), entropy_difference: absent minus present, mean over pairs
        - n: number of pairs

        Every mean over pairs has `_low` and `_high`: 95 % intervals over sets of images
        (`stats.intervals`), NaN for a single one; attrs["sets"] is their number. Pairs with values that
        are not finite are left out: attrs["left_out"] names them and n_left_out counts them.
        attrs["unpaired"] names the samples without images whose twin is not in the run; n_unpaired counts
        them.

    Raises:
        NotApplicable: the run has no such pair, or none with finite values.
        NotCaptured: the residual stream was not captured.
        InputError: the run is empty.

    Example:
        >>> ds = picture_absence(run)                               # doctest: +SKIP
        >>> ds.distance_first_mean.values                           # doctest: +SKIP
    """
    if run.span is not None:
        raise NotApplicable("picture_absence: compares whole answers, so it cannot be limited to a span")
    if not len(run):
        raise InputError(f"{run.path}: contains no finished samples")
    pairs, unpaired = _find_pairs(run)
    answers: list[tuple[_Internals, _Internals]] = []
    names: list[str] = []
    samples: list[Sample] = []
    left_out: list[str] = []
    coordinates: dict[str, np.ndarray] = {}
    for present, absent in tqdm(pairs.items(), desc="picture_absence", unit="pair", disable=None):
        with ExitStack() as stack:
            traces = [stack.enter_context(run[name].keep_open()) for name in (present, absent)]
            if not coordinates:
                coordinates = _read_coordinates(traces[0])
            one, two = (_read_answer(trace) for trace in traces)
        if one.is_finite() and two.is_finite():
            answers.append((one, two))
            names.append(present)
            samples.append(traces[0].sample)
        else:
            left_out.append(present)
    if not answers:
        raise NotApplicable(f"{run.path}: every pair has values that are not finite in {STREAM}")
    out = xr.Dataset(coords={"pair": names, "picture": list(PICTURE), **coordinates})
    sets = image_sets(samples)
    _add_states(out, np.array([[answer.states for answer in pair] for pair in answers]), sets)
    _add_entropy(out, np.array([[answer.entropy for answer in pair] for pair in answers]), sets)
    mass = [[answer.mass for answer in pair if answer.mass is not None] for pair in answers]
    if all(len(pair) == 2 for pair in mass):
        _add_mass(out, np.array(mass), sets)
    out["n"] = ((), len(names))
    counts = {"unpaired": ", ".join(unpaired), "n_unpaired": len(unpaired)}
    out.attrs = describe("picture_absence", run, len(names), sets, left_out, of="pairs") | counts
    return out


def _find_pairs(run: Run) -> tuple[dict[str, str], list[str]]:
    """Return the pairs, from the sample with images to its twin without, and the samples without a twin."""
    pairs: dict[str, str] = {}
    unpaired = []
    for name in run.ids:
        sample = run.sample(name)
        other = sample.metadata.get("with_picture")
        if not isinstance(other, str) or sample.images:
            continue
        if other in run and run.sample(other).images and other not in pairs:
            pairs[other] = name
        else:
            unpaired.append(name)
    if not pairs:
        raise NotApplicable(
            f"{run.path}: no question with and without its images; a sample without images names the sample "
            "with images in metadata as 'with_picture' (mmprobe bench mirage-effect --trace)"
        )
    return pairs, unpaired


def _read_coordinates(trace: Trace) -> dict[str, np.ndarray]:
    """Return the layers and, if attention was captured, the groups."""
    coordinates = {"layer": trace.array(STREAM)["layer"].values}
    if MASS in trace.captured:
        coordinates["group"] = trace.array(MASS)["group"].values
    return coordinates


def _read_answer(trace: Trace) -> _Internals:
    """Read one answer, its states a block of steps at a time."""
    stream = trace.array(STREAM)
    first = np.zeros(stream.shape[1:])
    total = np.zeros(stream.shape[1:])
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
    return _Internals(states, mass, float(entropy[0]) if len(entropy) else np.nan)


def _add_states(out: xr.Dataset, states: np.ndarray, sets: np.ndarray) -> None:
    """Add the distances and norms of states [pair, picture, span, layer, hidden]."""
    present, absent = states[:, 0], states[:, 1]
    lengths = np.linalg.norm(states, axis=-1)
    distance = _distance(present, absent)
    norm = lengths[:, 1] / lengths[:, 0] - 1
    for index, span in enumerate(READ_SPANS):
        _add_with_mean(out, f"distance_{span}", distance[:, index], ("pair", "layer"), sets)
        _add_with_mean(out, f"norm_{span}", norm[:, index], ("pair", "layer"), sets)
    first = present[:, 0]
    others = _distance(first, np.roll(first, -(len(first) // 2), axis=0))
    if len(first) < 2:
        others = np.full_like(others, np.nan)
    _add_with_mean(out, "distance_others", others, ("pair", "layer"), sets)


def _distance(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return 1 - cosine over the last axis."""
    return 1 - (one * two).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1))


def _add_entropy(out: xr.Dataset, entropy: np.ndarray, sets: np.ndarray) -> None:
    """Add the entropy [pair, picture] and its difference."""
    _add_with_mean(out, "entropy", entropy, ("pair", "picture"), sets)
    out.update(estimate_mean(entropy[:, 1] - entropy[:, 0], sets, QUANTITY).variables("entropy_difference"))


def _add_mass(out: xr.Dataset, mass: np.ndarray, sets: np.ndarray) -> None:
    """Add the mean attention of mass [pair, picture, layer, group] and its difference."""
    dims = ("picture", "layer", "group")
    out.update(estimate_mean(mass, sets, QUANTITY).variables("mass", dims))
    out.update(estimate_mean(mass[:, 1] - mass[:, 0], sets, QUANTITY).variables("mass_difference", dims[1:]))


def _add_with_mean(
    out: xr.Dataset, name: str, values: np.ndarray, dims: tuple[str, ...], sets: np.ndarray
) -> None:
    """Add values by pair as NAME, and their mean over pairs as NAME_mean."""
    out[name] = (dims, values)
    out.update(estimate_mean(values, sets, QUANTITY).variables(f"{name}_mean", dims[1:]))
