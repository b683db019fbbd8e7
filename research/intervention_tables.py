"""Tables of a comparison of methods for docs/interventions.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from mmprobe.notebook import markdown_table
from mmprobe.stats.estimate import Estimate, read_estimate


def write_table(comparison: xr.Dataset, metrics: Sequence[str]) -> str:
    """Return a Markdown table with a row for each method.

    A cell has the value and the paired difference to plain with its interval. The difference is bold if the
    interval excludes 0.
    """
    rows = []
    for name in comparison["contender"].values:
        row = comparison.sel(contender=name)
        is_baseline = name == comparison.attrs["baseline"]
        rows.append([name, *(_write_cell(row.sel(metric=metric), is_baseline) for metric in metrics)])
    return markdown_table(["method", *(name.partition(" ")[2] for name in metrics)], rows)


def _write_cell(cell: xr.Dataset, is_baseline: bool) -> str:
    value = float(cell["value"])
    text = "undefined" if np.isnan(value) else f"{value:.3f}"
    difference = read_estimate(cell, "difference")
    if is_baseline or not np.isfinite(difference.low):
        return text
    return f"{text}<br>{write_difference(difference, 3)}"


def write_difference(difference: Estimate[float], digits: int) -> str:
    """Return a difference with its interval, bold if the interval excludes 0."""
    text = f"{difference:+.{digits}f}"
    return f"**{text}**" if difference.sign else text


def write_verdicts(comparison: xr.Dataset, metrics: Sequence[str]) -> str:
    """Return a list of the metrics that each method makes better or worse, by intervals that exclude 0."""
    lines = []
    for name in comparison["contender"].values[1:]:
        verdicts: dict[str, list[str]] = {"better": [], "worse": []}
        for metric in metrics:
            cell = comparison.sel(metric=metric, contender=name)
            sign = read_estimate(cell, "difference").sign
            if sign:
                lower_is_better = "contradiction" in metric or "chair" in metric.partition(" ")[2]
                verdicts["better" if (sign > 0) != lower_is_better else "worse"].append(f"`{metric}`")
        text = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items() if names)
        lines.append(f"- **{name}**: {text or 'no interval excludes 0'}")
    return "\n".join(lines)
