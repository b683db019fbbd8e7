"""The pointing game: how often attention and token activation maps peak on the thing that a word names.

Zhang et al. (2016), "Top-down Neural Attention by Excitation Backprop", arXiv:1608.00507, section 4.1.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.regions import find_mentions, find_patches, image_sizes, mask_patches
from mmprobe.analyses.source import SampleRows, analysis_of_run
from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.contents import named_things
from mmprobe.errors import InputError, NotApplicable
from mmprobe.stats.estimate import estimate_from_sums, estimate_share
from mmprobe.stats.intervals import FRACTION

MAPS = ("raw", "tam")


@analysis_of_run
def pointing_game(run: Run) -> xr.Dataset:
    """Return how often maps of a named thing peak in its box: attention by layer and head, and token activation.

    A map hits if its largest value is in a cell of the thing's boxes. Where several cells have the largest value, the
    hit is the share of them in the boxes, so a map without a peak scores as chance. The map of a name of several
    tokens is the mean of their maps (our choice). The paper counts a pixel within 15 pixels of a thing as a hit; here
    the cells are those whose centres are in a box.

    Args:
        run: traces with any of `attention/visual`, `attention/visual_head`, and `tam/logit` with `tam/prompt`; samples
            that declare things with their places in `metadata.differences` or `metadata.objects`
            (`contents.named_things`).

    Returns:
        A data set with dimensions `sample`, `map` (raw, tam), `layer`, `head`:

        - hit_rate (map): of the raw map of equation 18 of SPD-Faith Bench, and of the full map, as in `token_activation`
        - hit_rate_layer (layer): of attention, mean over heads; hit_rate_head (layer, head): of each head
        - chance: share of the visual tokens that are in the boxes
        - hit_rate_sample (sample, map), chance_sample (sample): of each answer, means over the names in it
        - n_names: number of names that were tested

        Those without `sample` are shares of the names, as in the paper, with _low and _high: 95 % intervals over sets of images
        (`stats.intervals.share_interval`; of chance `sums_interval`); attrs["sets"] counts the sets. What was not captured is missing. Samples with values that
        are not finite are left out: attrs["left_out"] names them and n_left_out counts them. The best of many heads
        looks better than it is.

    Raises:
        NotApplicable: no answer names a thing with a place, or nothing was captured that has a map.
        InputError: the run is empty.

    Example:
        >>> ds = pointing_game(run)                                 # doctest: +SKIP
        >>> ds.hit_rate.sel(map="raw").item(), ds.chance.item()     # doctest: +SKIP
        (0.91, 0.09)
    """
    measured = SampleRows("pointing_game", run)
    for name, trace in run.stream("pointing_game"):
        masks = _find_names(trace)
        if not masks:
            continue
        try:
            row = _measure_sample(trace, masks)
        except NotApplicable:
            raise
        except InputError:
            measured.left_out.append(name)
            continue
        measured.add(trace, row)
    if not len(measured):
        raise NotApplicable(
            f"{run.path}: no answer names a thing with a place; samples declare them in `metadata.objects`"
        )
    return _make_dataset(measured)


def _find_names(trace: Trace) -> list[tuple[list[int], np.ndarray]]:
    """Return the steps of each name in an answer, and the cells of its thing, bool [visual]."""
    if not trace.images.sizes.get("image", 0):
        return []
    things = named_things(trace.sample, image_sizes(trace))
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    masks = {name: mask_patches(find_patches(trace, regions), grids) for name, regions in things.items()}
    seen = [name for name, mask in masks.items() if mask.any() and not mask.all()]
    found = find_mentions(trace, seen)
    return [(steps, masks[name]) for name, places in found.items() for steps in places]


def hits(maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return whether each map [..., visual] peaks on a mask [visual], 0 or 1; of several equal peaks the share on it.

    Example:
        >>> maps = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.1], [0.0, 0.0, 0.0]])
        >>> hits(maps, np.array([False, True, False])).round(2).tolist()
        [1.0, 0.5, 0.33]
    """
    peaks = maps == maps.max(-1, keepdims=True)
    return np.asarray(peaks[..., mask].sum(-1) / peaks.sum(-1))


def _measure_sample(trace: Trace, names: list[tuple[list[int], np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sums over the names of an answer of hits, by map, layer and head, and of the cells' share."""
    captured, maps = set(trace.captured), {}
    if {"tam/logit", "tam/prompt"} <= captured:
        views = visual_positions(trace)
        tam, raw = activation_maps(read_logits(trace, views.positions), views.grids)
        maps["hit_rate"] = np.stack([raw, tam], 1)
    for path, measure in (("attention/visual", "hit_rate_layer"), ("attention/visual_head", "hit_rate_head")):
        if path in captured:
            maps[measure] = trace.array(path).values
    if not maps:
        raise NotApplicable(f"trace {trace.id}: has neither attention on visual tokens nor tam/logit")
    if not all(np.isfinite(values).all() for values in maps.values()):
        raise InputError(f"trace {trace.id}: contains values that are not finite")
    row = {
        measure: np.sum([hits(values[steps].mean(0, dtype=float), mask) for steps, mask in names], 0)
        for measure, values in maps.items()
    }
    return row | {"chance": np.sum([mask.mean() for _, mask in names]), "names": np.array(len(names))}


def _make_dataset(measured: SampleRows) -> xr.Dataset:
    rows, sets, first = measured.rows, measured.sets, measured.run[measured.names[0]]
    out = xr.Dataset(coords={"sample": measured.names})
    dims = {"hit_rate": ("map",), "hit_rate_layer": ("layer",), "hit_rate_head": ("layer", "head")}
    names = rows["names"]
    for name, own in dims.items():
        if name in rows:
            out.update(estimate_share(rows[name], names, sets).variables(name, own))
    counts = np.stack([rows["chance"], names], -1)
    chance = estimate_from_sums(lambda sums: sums[..., 0] / sums[..., 1], counts, sets, FRACTION)
    out.update(chance.variables("chance"))
    out["chance_sample"] = ("sample", rows["chance"] / names)
    if "hit_rate" in rows:
        out["hit_rate_sample"] = (("sample", "map"), rows["hit_rate"] / names[:, None])
        out = out.assign_coords(map=list(MAPS))
    if "layer" in out.dims:
        path = "attention/visual" if "hit_rate_layer" in rows else "attention/visual_head"
        out = out.assign_coords(layer=first.array(path)["layer"].values)
    if "head" in out.dims:
        out = out.assign_coords(head=first.array("attention/visual_head")["head"].values)
    out["n_names"] = ((), int(rows["names"].sum()))
    out.attrs = measured.describe()
    return out
