"""Localisation of token activation maps: Obj-IoU, Func-IoU and F1-IoU.

TAM (Li et al., 2025, arXiv:2506.23270).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.regions import find_mentions, find_patches, image_sizes, mask_patches
from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.contents import named_things
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Region, Sample
from mmprobe.stats.estimate import estimate_from_sums

FUNCTION_WORDS = frozenset(
    """
    a an and are as at be been but by does for from has have in is it its of on or so than that the
    there these they this those to was were which while with
    """.split()  # noqa: SIM905
)
MAPS = ("tam", "raw")
Things = Mapping[str, Sequence[Region]]


@analysis_of_run
def localisation(
    run: Run,
    nouns: Callable[[Sample], Things] | None = None,
    function_words: frozenset[str] = FUNCTION_WORDS,
    seed: int = 0,
) -> xr.Dataset:
    """Return the metrics of TAM (Li et al., 2025): how well token activation maps show the objects.

    The map of a generated noun should cover its object. Its Obj-IoU is the intersection over union of the
    map, thresholded by Otsu's method, and the noun's own regions. The map of a noun of several tokens is the
    mean of their maps (our choice). The map of a function word should be dark. Its Func-IoU is the share of
    the map below the mean threshold of the answer's nouns. F1-IoU is their harmonic mean.

    Args:
        run: traces with `tam/logit` and `tam/prompt`; samples with regions or declared objects.
        nouns: function that returns the nouns of a sample, each with its object's regions. A noun without
            regions is tested against all regions of the sample. By default they are what the metadata declare
            (`contents.named_things`): the things of `differences`, else of `objects`; our choice.
        function_words: the default, 37 English words, is our choice.
        seed: of the bootstrap.

    Returns:
        A data set with dimensions `map` (tam, raw) and `sample`:

        - obj_iou, func_iou, f1_iou (map), each with _low, _high: means over samples of their means over
          mentions of a noun, or over function words
        - obj_iou_sample, func_iou_sample (sample, map), NaN where a sample has no such token
        - n_obj: samples with regions and a noun in the answer; n_own: those of them in which every mentioned
          noun has its own regions; n_func: those with a function word too

        Intervals are 95 %, over sets of images (`stats.intervals`); attrs["sets"] counts the sets. Samples
        with values that are not finite are left out: attrs["left_out"] names them and n_left_out counts them.

    Raises:
        NotApplicable: no answer contains a noun of a region.
        NotCaptured: the logits were not captured.

    Example:
        >>> localisation(run).f1_iou.sel(map="tam").item()          # doctest: +SKIP
        0.42
    """
    measured, rows = SampleRows("localisation", run), []
    for name, trace in run.stream("localisation"):
        if not trace.images.sizes.get("image", 0):
            continue
        things = named_things(trace.sample, image_sizes(trace)) if nouns is None else nouns(trace.sample)
        try:
            row = _measure_sample(trace, things, function_words)
        except NotApplicable:
            raise
        except InputError:
            measured.left_out.append(name)
            continue
        if row is not None:
            measured.add(trace)
            rows.append(row)
    if not rows:
        raise NotApplicable(
            f"{run.path}: no answer names a thing with a place; samples declare them in `regions` and `metadata`"
        )
    return _make_dataset(measured, rows, seed)


def otsu_threshold(values: np.ndarray) -> float:
    """Return the threshold with the largest variance between the two classes (Otsu, 1979).

    The values are binned into 256 equal bins. If all values are equal, that value is the threshold.

    Example:
        >>> 0.1 < otsu_threshold(np.array([0.0, 0.1, 0.9, 1.0])) < 0.9
        True
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low
    counts, edges = np.histogram(values, 256, (low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    below, above = np.cumsum(counts)[:-1], np.cumsum(counts[::-1])[::-1][1:]
    sums = np.cumsum(counts * centres)
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    return float(edges[1:-1][np.argmax(between)])


def obj_iou(values: np.ndarray, mask: np.ndarray) -> float:
    """Return the intersection over union of a map above Otsu's threshold and an object's mask, both [visual].

    Example:
        >>> obj_iou(np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, False, True]))
        0.5
    """
    foreground = values > otsu_threshold(values)
    union = (foreground | mask).sum()
    return float((foreground & mask).sum() / union) if union else 0.0


class _SampleIous(NamedTuple):
    """Obj-IoU and Func-IoU [map] of one sample, and whether all its nouns have their own regions."""

    object_ious: list[float]
    function_ious: list[float]
    own: bool


def _measure_sample(trace: Trace, nouns: Things, function_words: frozenset[str]) -> _SampleIous | None:
    """Return the measures of the full and the raw maps; None if the answer mentions no noun."""
    mentions = [
        (name, steps) for name, places in find_mentions(trace, list(nouns)).items() for steps in places
    ]
    own = {name: find_patches(trace, nouns[name]) for name, _ in mentions}
    of_sample = find_patches(trace)
    mentions = [mention for mention in mentions if own[mention[0]] or of_sample]
    if not mentions:
        return None
    function_steps = [
        step for step, text in enumerate(trace.step_texts) if text.strip().lower() in function_words
    ]
    views = visual_positions(trace)
    masks = {name: mask_patches(patches or of_sample, views.grids) for name, patches in own.items()}
    object_ious, function_ious = [], []
    for maps in activation_maps(read_logits(trace, views.positions), views.grids):
        noun_maps = [maps[steps].mean(0) for _, steps in mentions]
        ious = [obj_iou(values, masks[name]) for values, (name, _) in zip(noun_maps, mentions, strict=True)]
        object_ious.append(float(np.mean(ious)))
        threshold = np.mean([otsu_threshold(values) for values in noun_maps])
        dark = [(maps[step] < threshold).mean() for step in function_steps]
        function_ious.append(float(np.mean(dark)) if dark else np.nan)
    return _SampleIous(object_ious, function_ious, all(own[name] for name, _ in mentions))


def _make_dataset(measured: SampleRows, rows: Sequence[_SampleIous], seed: int) -> xr.Dataset:
    """Return the means of Obj-IoU and Func-IoU, with intervals."""
    object_ious = np.array([row.object_ious for row in rows])
    function_ious = np.array([row.function_ious for row in rows])
    out = xr.Dataset(coords={"sample": measured.names, "map": list(MAPS)})
    out["obj_iou_sample"] = (("sample", "map"), object_ious)
    out["func_iou_sample"] = (("sample", "map"), function_ious)
    known = np.isfinite(function_ious)
    terms = np.stack([object_ious, np.where(known, function_ious, 0), known, np.ones(known.shape)], axis=-1)
    scores = estimate_from_sums(_score, terms, measured.sets, (0.0, 1.0), seed)
    for suffix, (_, values) in scores.variables("").items():
        for index, name in enumerate(("obj_iou", "func_iou", "f1_iou")):
            out[name + suffix] = ("map", values[:, index])
    out["n_obj"] = ((), len(rows))
    out["n_own"] = ((), sum(row.own for row in rows))
    out["n_func"] = ((), int(known.all(1).sum()))
    out.attrs = measured.describe()
    return out


def _score(sums: np.ndarray) -> np.ndarray:
    """Return Obj-IoU, Func-IoU and F1-IoU, [..., 3], from sums over samples.

    Args:
        sums: [..., term]: Obj-IoU, Func-IoU (0 without a function word), the number of samples with a
            function word, and the number of samples.
    """
    object_sum, function_sum, n_function, n = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        object_iou, function_iou = object_sum / n, function_sum / n_function
    total, f1 = object_iou + function_iou, np.zeros(n.shape)
    np.divide(2 * object_iou * function_iou, total, out=f1, where=total != 0)
    return np.stack([object_iou, function_iou, f1], -1)
