"""What answers lose with other images: a line of the overview, and data of the explorer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from markupsafe import Markup

from mmprobe.analyses.regions import find_patches, mask_patches
from mmprobe.cache import Run, Trace
from mmprobe.samples import Region
from mmprobe.viz.report.elements import pack_array, render

HOW = "mmprobe analyze RUN --only image-interchange --model MODEL"
_OTHERS = {
    "unrelated": "unrelated images",
    "minimal": "images that differ in little",
    "mean": "the mean image",
    "blank": "blank images",
}


def find_interchange(datasets: Iterable[xr.Dataset]) -> xr.Dataset | None:
    """Return the data set of `image_interchange_run`, or None."""
    named = (ds for ds in datasets if ds.attrs.get("analysis") == "image_interchange")
    return next((ds for ds in named if "sample" in ds.dims and "effect" in ds), None)


def dependence_line(run: Run, ds: xr.Dataset | None) -> Markup:
    """Return one line on how much the answers depend on their images; nothing for a run without images.

    Example:
        >>> dependence_line(run, image_interchange_run(model, run))          # doctest: +SKIP
        Markup("<p class='dependence'>With unrelated images in place of their own, the median answer loses …</p>")
    """
    if ds is None:
        if not any(run.sample(name).images for name in run.ids):
            return Markup()
        return render("dependence.html", how=HOW)
    median, low, high = (f"{float(ds[f'median{end}']):.2f}" for end in ("", "_low", "_high"))
    share, least, most = (f"{float(ds[f'unused_share{end}']):.0%}" for end in ("", "_low", "_high"))
    numbers = {"median": median, "low": low, "high": high, "share": share, "least": least, "most": most}
    others = _OTHERS[ds.attrs["kind"]]
    return render("dependence.html", how="", others=others, n=int(ds["n"]), count=len(run), **numbers)


def cause_data(trace: Trace, ds: xr.Dataset | None) -> dict[str, Any] | None:
    """Return the explorer's data on what one answer loses with other images, or None if it was not measured.

    Returns:
        - steps: float32 [step], nat that a token loses with all images exchanged, packed
        - losses: float32 [region, step], with one region exchanged, packed; all images if there is no region
        - cells: for each region the numbers of the visual tokens that were exchanged
        - visual: number of visual tokens
        - regions: whether there are regions
    """
    steps = trace.steps.sizes["step"]
    if ds is None or trace.id not in ds["sample"].values:
        return None
    row = ds.sel(sample=trace.id)
    effect = row["effect"].values
    if np.isfinite(effect).sum() != steps or not np.isfinite(effect[:steps]).all():
        return None  # of another answer to the same question
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    visual = sum(height * width for height, width in grids)
    cells, losses = [], []
    for number, (image, box) in enumerate(
        zip(row["region_image"].values.tolist(), row["region_box"].values.tolist(), strict=True)
    ):
        if image >= 0:
            patches = find_patches(trace, [Region(image=image, box=box)])
            cells.append(np.flatnonzero(mask_patches(patches, grids)).tolist())
            losses.append(row["effect_by_region_step"].values[number, :steps])
    has_regions = bool(cells)
    if not has_regions:
        cells, losses = [list(range(visual))], [effect[:steps]]
    return {
        "steps": pack_array(effect[:steps], "<f4"),
        "losses": pack_array(np.array(losses), "<f4"),
        "cells": cells,
        "visual": visual,
        "regions": has_regions,
    }
