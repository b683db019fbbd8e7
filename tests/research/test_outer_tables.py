"""The tables of POPE, CHAIR and MME are made again alone, with the parameters that the page lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from page import RECORDS, ROOT, fill
from write_interventions import OUTER_METRICS, PAGE, SAGE_BENCHMARKS, outer_parts, read_chosen


def comparison(contenders, metrics, value):
    """Return a comparison of equal values, as `compare_contenders` makes it."""
    shape = (len(metrics), len(contenders))
    names = ("value", "low", "high", "difference", "difference_low", "difference_high")
    columns = {name: (("metric", "contender"), np.full(shape, value)) for name in names}
    counts = {name: (("metric", "contender"), np.full(shape, 9.0)) for name in ("n", "n_groups", "n_paired")}
    coords = {"metric": list(metrics), "contender": contenders}
    return xr.Dataset(columns | counts, coords=coords, attrs={"baseline": "plain"})


def test_the_tables_of_pope_chair_and_mme_are_filled_alone():
    chosen = read_chosen((ROOT / PAGE).read_text(encoding="utf-8"))
    page = (RECORDS / Path(PAGE).name).read_text(encoding="utf-8")
    assert [each.name for each in chosen][:2] == ["plain", "agla"] and len(chosen) >= 10
    assert {each.name: each.parameters for each in chosen}["vcd"] == {"noise_step": 250}
    names = [each.name for each in chosen]
    sweeps = {
        key: comparison(["plain", "sage"], metrics, 0.625) for key, (_, metrics) in SAGE_BENCHMARKS.items()
    }
    again = fill(page, outer_parts(comparison(names, OUTER_METRICS, 0.375), sweeps))
    outer = again.partition("## POPE, CHAIR and MME")[2].partition("\n## ")[0]
    assert outer.count("0.375") >= len(names) * len(OUTER_METRICS)
    assert again.count("| sage | 0.625") == 2
    for heading in ("## SPD-Faith Bench, ", "## Traces", "## The stages of SAGE"):
        part, new = (text.partition(heading)[2].partition("\n## ")[0] for text in (page, again))
        assert part and part == new
