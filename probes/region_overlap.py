"""Overlap of attribution maps with a sample's regions."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import Sample


def compare_with_regions(maps: xr.Dataset, sample: Sample) -> xr.Dataset:
    """Return the share of the attribution on a sample's regions, and the share of the images that they cover.

    Args:
        maps: data set of `attribute`, by occlusion or integrated gradients.
        sample: the explained sample, with `regions`.

    Returns:
        A data set with dimension `step`. Shares are over the visual tokens of all views, from 0 to 1.

        - share (step): share of the positive attribution on the regions. A partly covered cell counts in
          part. NaN if no attribution is positive
        - area: share of the cells that the regions cover; the share of a uniform map
        - hit (step): whether the largest attribution is in a region (the pointing game of Zhang et al.,
          2018). A cell counts if a region covers at least half of it, or covers it most of all cells
        - hit_by_chance: share of such cells

    Raises:
        InputError: the maps are of another sample, or of groups.
        NotApplicable: the sample has no regions, or no view shows them.

    Example:
        >>> overlap = compare_with_regions(attribute(model, sample), sample)   # doctest: +SKIP
        >>> float(overlap.share.mean()), float(overlap.area)        # doctest: +SKIP
    """
    if "attribution" not in maps or maps.attrs.get("sample") != sample.id:
        raise InputError(
            f"sample {sample.id}: maps: give maps of this sample, by occlusion or integrated_gradients"
        )
    if not sample.regions:
        raise NotApplicable(f"sample {sample.id} has no regions")
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
    """Return [image, y, x], the share of each visual token's cell that the regions cover; NaN without a cell.

    Example:
        >>> region_cover(attribute(model, sample), sample).shape    # doctest: +SKIP
        (2, 4, 4)
    """
    cover = np.full(maps["attribution"].shape[1:], np.nan)
    for view, image in enumerate(maps["source"].values.tolist()):
        (height, width), (rows, columns) = maps["size"].values[view], maps["grid"].values[view]
        inside = np.zeros((height, width))
        for region in sample.regions:
            if region.image == image:
                x, y, box_width, box_height = region.box
                inside[max(y, 0) : max(y + box_height, 0), max(x, 0) : max(x + box_width, 0)] = 1
        left, top, view_width, view_height = maps["box"].values[view]
        row_overlap = _cell_overlaps(top, view_height, rows, height)
        column_overlap = _cell_overlaps(left, view_width, columns, width)
        cell_area = view_height / rows * view_width / columns
        cover[view, :rows, :columns] = row_overlap @ inside @ column_overlap.T / cell_area
    return cover


def _cell_overlaps(start: float, extent: float, cells: int, pixels: int) -> np.ndarray:
    """Return [cell, pixel], the share of each pixel that each of the equal cells covers along one axis."""
    edges = start + extent * np.arange(cells + 1) / cells
    pixel = np.arange(pixels)
    return (np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)).clip(0)
