"""The tables of POPE, CHAIR and MME are made again alone, with the parameters that the page lists."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from write_interventions import OUTER_IMAGES, OUTER_METRICS, PAGE, SAGE_BENCHMARKS, put_outer, read_chosen


def comparison(contenders, metrics, value):
    """Return a comparison of equal values, as `compare_contenders` makes it."""
    shape = (len(metrics), len(contenders))
    names = ("value", "low", "high", "difference", "difference_low", "difference_high")
    columns = {name: (("metric", "contender"), np.full(shape, value)) for name in names}
    counts = {name: (("metric", "contender"), np.full(shape, 9.0)) for name in ("n", "n_groups", "n_paired")}
    coords = {"metric": list(metrics), "contender": contenders}
    return xr.Dataset(columns | counts, coords=coords, attrs={"baseline": "plain"})


def test_only_the_tables_of_pope_chair_and_mme_change():
    page = PAGE.read_text(encoding="utf-8")
    chosen = read_chosen(page)
    assert [each.name for each in chosen][:2] == ["plain", "agla"] and len(chosen) >= 10
    assert {each.name: each.parameters for each in chosen}["vcd"] == {"noise_step": 250}
    names = [each.name for each in chosen]
    sweeps = {
        key: comparison(["plain", "sage"], metrics, 0.625) for key, (_, metrics) in SAGE_BENCHMARKS.items()
    }
    again = put_outer(page, comparison(names, OUTER_METRICS, 0.375), sweeps)
    assert put_outer(again, comparison(names, OUTER_METRICS, 0.375), sweeps) == again
    outer = again.partition(f"## POPE, CHAIR and MME, {OUTER_IMAGES} images\n")[2].partition("\n## ")[0]
    assert outer.count("0.375") >= len(names) * len(OUTER_METRICS) and "earlier version" not in outer
    assert again.count("| sage | 0.625") == 2
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [line for line in again.splitlines() if line.startswith("#")]
    for heading in ("## SPD-Faith Bench, 150 pairs", "## Traces", "## The stages of SAGE"):
        part, new = (text.partition(heading)[2].partition("\n## ")[0] for text in (page, again))
        assert part == new
