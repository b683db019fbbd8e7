"""Write docs/intervals.md: how often 95 % intervals cover the truth, by simulation.

python research/write_intervals.py        # half a minute
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from page import PageParts, fill_pages
from scipy.special import ndtr, ndtri

from mmprobe.notebook import markdown_table
from mmprobe.stats.intervals import Interval, mean_interval

REPETITIONS = 4000
SAMPLES = (12, 60, 600)
SIZES = {"1 to 3": (1, 2, 3, 2, 1, 3), "1 to 5": (1, 1, 2, 3, 5), "6": (6,)}  # questions over the same images
CORRELATIONS = (0.0, 0.4)
DATA = {
    "share": "answers that are right or wrong; the true share is drawn between 0.1 and 0.9",
    "normal": "normal",
    "lognormal 0.5": "lognormal with sigma 0.5, skewness 1.75",
    "exponential": "exponential, skewness 2",
    "lognormal 1": "lognormal with sigma 1, skewness 6.2",
}


class CoverageCell(NamedTuple):
    """One row of the table."""

    data: str
    sizes: str
    n: int
    sets: int
    correlation: float
    covered: float
    covered_before: float


def make_groups(n: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the set of each of n samples, int [sample]; the sizes of the sets repeat.

    Example:
        >>> make_groups(7, (1, 2)).tolist()
        [0, 1, 1, 2, 3, 3, 4]
    """
    repeated = np.tile(sizes, n)
    return np.repeat(np.arange(len(repeated)), repeated)[:n]


def draw_values(
    data: str, groups: np.ndarray, correlation: float, repetitions: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return values [sample, repetition] that are correlated within groups, and their true means [repetition]."""
    common = rng.standard_normal((groups.max() + 1, repetitions))[groups]
    own = rng.standard_normal((len(groups), repetitions))
    normal = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    if data == "share":
        share = rng.uniform(0.1, 0.9, repetitions)
        return (normal < ndtri(share)).astype(float), share
    if data == "exponential":
        return -np.log(ndtr(-normal)), np.ones(repetitions)
    if data == "normal":
        return normal, np.zeros(repetitions)
    sigma = float(data.split()[1])
    return np.exp(sigma * normal), np.full(repetitions, np.exp(sigma**2 / 2))


def share_covered(interval: Interval, truth: np.ndarray) -> float:
    """Return the share of intervals [repetition] that cover the truth."""
    return float(((interval[0] <= truth) & (truth <= interval[1])).mean())


def percentile_bootstrap(values: np.ndarray) -> Interval:
    """Return the plain percentile bootstrap over samples, which is what it is compared with."""
    rng, n = np.random.default_rng(0), len(values)
    means = rng.multinomial(n, np.full(n, 1 / n), size=1000).astype(np.float32) @ (values / n).astype(
        np.float32
    )
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return low, high


def simulate(repetitions: int = REPETITIONS) -> Iterator[CoverageCell]:
    """Yield the cells of the table."""
    for data in DATA:
        for name, sizes in SIZES.items():
            for n in SAMPLES:
                groups = make_groups(n, sizes)
                for correlation in CORRELATIONS:
                    rng = np.random.default_rng(0)
                    values, truth = draw_values(data, groups, correlation, repetitions, rng)
                    covered = share_covered(mean_interval(values, groups), truth)
                    before = share_covered(percentile_bootstrap(values), truth)
                    yield CoverageCell(data, name, n, len(set(groups)), correlation, covered, before)


def write_table(cells: list[CoverageCell]) -> str:
    """Return a Markdown table; cells outside 93 to 97 % are bold."""
    columns = ("data", "samples a set", "samples", "sets", "correlation", "covered", "percentile")
    rows: list[tuple[object, ...]] = []
    for cell in cells:
        covered = f"{cell.covered:.3f}"
        bold = covered if 0.93 <= cell.covered <= 0.97 else f"**{covered}**"
        shape = cell.data, cell.sizes, cell.n, cell.sets, f"{cell.correlation:g}"
        rows.append((*shape, bold, f"{cell.covered_before:.3f}"))
    return markdown_table(columns, rows)


def page_parts(cells: list[CoverageCell]) -> PageParts:
    """Return the parts of the page."""
    outside = sum(not 0.93 <= cell.covered <= 0.97 for cell in cells)
    return {
        "repetitions": f"{REPETITIONS:,}",
        "data": "\n".join(f"- {name}: {text}" for name, text in DATA.items()),
        "inside": f"{len(cells) - outside} of {len(cells)}",
        "table": write_table(cells),
    }


if __name__ == "__main__":
    fill_pages({"docs/intervals.md": page_parts(list(simulate()))})
