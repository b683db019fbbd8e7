"""Attributions against the regions that a sample asks about."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Sample


def compare_with_regions(maps: xr.Dataset, sample: Sample) -> xr.Dataset:
    """How much of the attribution lies on a sample's regions, against how much of the pictures they are.

    Args:
        maps: from `attribute`, by occlusion or integrated gradients.
        sample: with `regions`, the one that was explained.

    Returns:
        A data set with dimension `step`; shares from 0 to 1, over the visual tokens of all views.

        - share (step): of the positive attribution, what lies on the regions; a cell that a region covers in
          part counts in part. NaN where no attribution is positive
        - area: of all cells, what the regions cover; the share expected of a map that knows nothing
        - hit (step): whether the largest attribution is in a cell that a region covers at least half, or
          more than any other cell (the pointing game of Zhang et al., 2018)
        - hit_by_chance: share of such cells

    Raises:
        InputError: the maps are of another sample, or of groups.
        NotApplicable: the sample has no regions, or no view shows them.

    Example:
        >>> found = compare_with_regions(attribute(model, sample), sample)     # doctest: +SKIP
        >>> float(found.share.mean()), float(found.area)            # doctest: +SKIP
    """
    if "attribution" not in maps or maps.attrs.get("sample") != sample.id:
        raise InputError(f"sample {sample.id}: give its own maps, by occlusion or integrated_gradients")
    if not sample.regions:
        raise NotApplicable(f"sample {sample.id}: has no regions")
    covered = region_cover(maps, sample)
    cells = np.isfinite(covered)
    covered, values = covered[cells], maps["attribution"].values[:, cells]
    if not covered.sum():
        raise NotApplicable(f"sample {sample.id}: no view shows its regions")
    on_region = covered >= min(0.5, covered.max())
    positive = values.clip(0)
    with np.errstate(invalid="ignore"):
        share = positive @ covered / positive.sum(1)
    out = xr.Dataset(coords={"step": maps["step"].values})
    out["share"], out["hit"] = ("step", share), ("step", on_region[values.argmax(1)])
    out["area"], out["hit_by_chance"] = ((), covered.mean()), ((), on_region.mean())
    out.attrs = {"analysis": "attribution_on_regions", "sample": sample.id, "method": maps.attrs["method"]}
    return out


def region_cover(maps: xr.Dataset, sample: Sample) -> np.ndarray:
    """[image, y, x], how much of each visual token's cell the sample's regions cover, 0 to 1; NaN without a cell.

    Example:
        >>> region_cover(attribute(model, sample), sample).shape    # doctest: +SKIP
        (2, 4, 4)
    """
    found = np.full(maps["attribution"].shape[1:], np.nan)
    for view, picture in enumerate(maps["source"].values.tolist()):
        (height, width), (rows, columns) = maps["size"].values[view], maps["grid"].values[view]
        inside = np.zeros((height, width))
        for region in sample.regions:
            if region.image == picture:
                x, y, wide, high = region.box
                rows_in, columns_in = slice(max(y, 0), max(y + high, 0)), slice(max(x, 0), max(x + wide, 0))
                inside[rows_in, columns_in] = 1  # the union, where regions overlap
        left, top, across, down = maps["box"].values[view]
        tall = _overlaps(top, down, rows, height)
        broad = _overlaps(left, across, columns, width)
        found[view, :rows, :columns] = tall @ inside @ broad.T / (down / rows * across / columns)
    return found


def _overlaps(start: float, extent: float, cells: int, pixels: int) -> np.ndarray:
    """[cell, pixel], how much of each pixel each of so many equal cells covers along one axis."""
    edges = start + extent * np.arange(cells + 1) / cells
    pixel = np.arange(pixels)
    return (np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)).clip(0)
