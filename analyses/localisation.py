"""Do words light up their objects, and function words nothing? Obj-IoU, Func-IoU and F1-IoU of activation maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from mmprobe.analyses.regions import mask_of, patches_of
from mmprobe.analyses.statistics import RESAMPLES, resampled_means
from mmprobe.analyses.token_activation import activation_maps, logits_of, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Sample

FUNCTION_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "does",
        "for",
        "from",
        "has",
        "have",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "so",
        "than",
        "that",
        "the",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "was",
        "were",
        "which",
        "while",
        "with",
    ]
)
MAPS = ("tam", "raw")


def nouns_of(sample: Sample) -> set[str]:
    """What a sample's differences are of, in small letters: their `shape`, `category` or `object`.

    Example:
        >>> found = {"differences": [{"type": "color", "shape": "Star"}]}
        >>> nouns_of(Sample(id="a", question="?", metadata=found))
        {'star'}
    """
    differences = sample.metadata.get("differences")
    return {
        str(difference[key]).lower()
        for difference in (differences if isinstance(differences, list) else [])  # a number of them, perhaps
        if isinstance(difference, dict)
        for key in ("shape", "category", "object")
        if key in difference
    }


def localisation(
    run: Run,
    nouns: Callable[[Sample], set[str]] = nouns_of,
    function_words: frozenset[str] = FUNCTION_WORDS,
    seed: int = 0,
) -> xr.Dataset:
    """How well token activation maps tell objects from the rest: the metrics of TAM (Li et al., 2025).

    A generated token that is a noun should light up its object: its map, thresholded by Otsu's method, against
    the sample's regions is its Obj-IoU. A function word should light up nothing: the share of its map below the
    mean of the nouns' thresholds in the same answer is its Func-IoU. F1-IoU is the harmonic mean of the two.

    Args:
        run: traces with `tam/logit` and `tam/prompt`; samples with regions.
        nouns: the words that name what is in a sample's regions; ours, the default reads the metadata.
        function_words: ours, the default are 40 English ones.
        seed: of the bootstrap.

    Returns:
        A data set with dimensions `map` (tam, raw) and `sample`:

        - obj_iou, func_iou, f1_iou (map), each with _low, _high: means over samples of their means over tokens
        - obj_iou_sample, func_iou_sample (sample, map), NaN where a sample has no such token
        - n_obj, n_func: samples with both regions and a noun in the answer, and of those with a function word

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples with values
        that are not finite; n_left_out counts them.

    Raises:
        NotApplicable: no answer holds a noun of a region.
        NotCaptured: the logits were not captured.

    Example:
        >>> localisation(run).f1_iou.sel(map="tam").item()          # doctest: +SKIP
        0.42
    """
    names, objects, functions, left_out = [], [], [], []
    for name, trace in run.stream("localisation"):
        patches = patches_of(trace) if trace.images.sizes.get("image", 0) else []
        if not patches:
            continue
        try:
            found = _of_sample(trace, nouns(trace.sample), function_words)
        except NotApplicable:
            raise
        except InputError:
            left_out.append(name)
            continue
        if found is not None:
            names.append(name)
            objects.append(found[0])
            functions.append(found[1])
    if not names:
        raise NotApplicable(f"{run.path}: no answer names what is in its sample's `regions`")
    return _dataset(run, names, np.array(objects), np.array(functions), left_out, seed)


def otsu_threshold(values: np.ndarray, bins: int = 256) -> float:
    """The threshold that parts values into two classes with the most variance between them (Otsu, 1979).

    Over a histogram of `bins` equal bins from the least to the largest value; the value itself if all are equal.

    Example:
        >>> 0.1 < otsu_threshold(np.array([0.0, 0.1, 0.9, 1.0])) < 0.9
        True
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low
    counts, edges = np.histogram(values, bins, (low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    below, above = np.cumsum(counts)[:-1], np.cumsum(counts[::-1])[::-1][1:]
    sums = np.cumsum(counts * centres)
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    return float(edges[1:-1][np.argmax(between)])


def obj_iou(values: np.ndarray, mask: np.ndarray) -> float:
    """Intersection over union of a map above Otsu's threshold and an object's mask, both [visual].

    Example:
        >>> obj_iou(np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, False, True]))
        0.5
    """
    on = values > otsu_threshold(values)
    either = (on | mask).sum()
    return float((on & mask).sum() / either) if either else 0.0


def _of_sample(
    trace: Trace, nouns: set[str], function_words: frozenset[str]
) -> tuple[list[float], list[float]] | None:
    """Obj-IoU and Func-IoU of the full and the plain maps; None if no token is a noun."""
    texts = trace.tokens["text"].values[trace.tokens.sizes["token"] - trace.tam_logit.sizes["step"] :]
    words = [str(text).strip().lower() for text in texts]
    of_nouns = [step for step, word in enumerate(words) if word in nouns]
    of_functions = [step for step, word in enumerate(words) if word in function_words]
    if not of_nouns:
        return None
    views = visual_positions(trace)
    mask = mask_of(patches_of(trace), views.grids)
    objects, functions = [], []
    for maps in activation_maps(logits_of(trace, views.positions), views.grids):
        objects.append(float(np.mean([obj_iou(maps[step], mask) for step in of_nouns])))
        threshold = np.mean([otsu_threshold(maps[step]) for step in of_nouns])
        quiet = [(maps[step] < threshold).mean() for step in of_functions]
        functions.append(float(np.mean(quiet)) if quiet else np.nan)
    return objects, functions


def _dataset(
    run: Run,
    names: Sequence[str],
    objects: np.ndarray,
    functions: np.ndarray,
    left_out: list[str],
    seed: int,
) -> xr.Dataset:
    """Means with intervals of what was found, [sample, map] each."""
    has_function = np.isfinite(functions).all(1)
    out = xr.Dataset(coords={"sample": list(names), "map": list(MAPS)})
    out["obj_iou_sample"], out["func_iou_sample"] = (
        (("sample", "map"), values) for values in (objects, functions)
    )
    known = np.isfinite(functions)
    summed = np.stack(
        [objects, np.where(known, functions, 0), known]
    )  # Func-IoU is a ratio of the last two's means
    summed = np.moveaxis(summed, 0, -1)
    point = _means(summed.mean(0, keepdims=True))
    resampled = _means(resampled_means(summed, RESAMPLES, np.random.default_rng(seed)))
    for name, mean, values in zip(("obj_iou", "func_iou", "f1_iou"), point, resampled, strict=True):
        enough = len(names) > 1 and np.isfinite(values).any()
        ends = np.nanpercentile(values, [2.5, 97.5], axis=0) if enough else np.full((2, len(MAPS)), np.nan)
        out[name], out[f"{name}_low"], out[f"{name}_high"] = (
            ("map", part) for part in (mean[0], ends[0], ends[1])
        )
    out["n_obj"], out["n_func"] = ((), len(names)), ((), int(has_function.sum()))
    out.attrs = {
        "analysis": "localisation",
        "run": str(run.path),
        "samples": len(names),
        "model": run.config["model"]["name"],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    return out


def _means(summed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Obj-IoU, Func-IoU and F1-IoU [draw, map] of means of (Obj-IoU, Func-IoU or 0, whether there is one)."""
    of_objects, total, share = np.moveaxis(summed, -1, 0)
    of_functions = np.full(of_objects.shape, np.nan)
    np.divide(total, share, out=of_functions, where=share > 0)
    both, f1 = of_objects + of_functions, np.zeros(of_objects.shape)
    np.divide(2 * of_objects * of_functions, both, out=f1, where=both != 0)
    return of_objects, of_functions, f1
