"""Write docs/intervals.md: how often 95 % intervals cover the truth, by simulation.

python scripts/write_intervals.py        # half a minute
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import partial_page
from scipy.special import ndtr, ndtri

from mmprobe.stats.intervals import Interval, mean_interval

PAGE = Path(__file__).resolve().parents[1] / "docs" / "intervals.md"
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
TEXT = """# Intervals

Every number of mmprobe has a 95 % interval. All intervals are made in `stats/intervals.py`.

Questions about the same images are not independent: a model that misreads an image gets all its questions wrong.
So a *set of images* is what counts. Samples that share an image or a pair are one set, and what is drawn is a set with
all its samples. A sample that shares nothing is its own set.

- A **share** (all values are 0 or 1) gets Wilson's interval on the effective number of samples. That number is smaller
  than the number of samples if answers over the same images agree more than others. So 3 of 3 gives [0.44, 1], and 0 of
  12 gives [0, 0.24]. If all answers agree, each set counts once.
- **Everything else** (means, F1, the area under a curve, differences) gets a studentised bootstrap over sets. The
  statistic is computed again without each set. What each set changes is drawn with replacement 2000 times, and each
  draw is divided by its own standard error. This follows skewed data, which a plain percentile bootstrap does not. Each end is
  at least as far away as Student's t puts it. Its degrees of freedom are the number of sets - 1. They are fewer where few sets
  have most samples.
- If **no set differs** from the others, the interval is what so few sets cannot exclude: Wilson's upper end of 0 of so many
  sets, times the distance to the end of the metric's range. A number without a range, such as a cosine or an effect in nat,
  gets no width. An effect that is exactly 0 in all samples is such a number, and no share.
- **Ranks** jump, and get percentiles over draws of sets.
- A single set shows no spread: its interval is left out.

P values of two labels shuffle the labels of whole sets among sets of the same size, and the labels within each set.

## How often they cover the truth

Each row is {repetitions} simulated data sets. The sets of images have 1 to 3, 1 to 5 or 6 questions. The correlation
is that of two samples of a set. It is set on normal values, which are then turned into the data:

{data}

*covered* is the share of 95 % intervals that cover the truth. Its own error is below 0.01. *percentile* is the plain
bootstrap over samples that earlier versions used. {inside} of {cells} rows are between 93 and 97 %; the others are bold.

{table}

What 12 samples cannot show stays hidden. The mean of data with a long tail (lognormal 1) rests on values that most draws
of 12 samples do not include, so about one interval in ten misses it. Wilson's interval of 12 answers covers more than it
must, since 12 answers have only 13 shares. Two sets do not show how much the answers of a set agree.

Made by `scripts/write_intervals.py`. `tests/analyses/test_intervals.py` checks it.
"""


class Cell(NamedTuple):
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


def simulate(repetitions: int = REPETITIONS) -> Iterator[Cell]:
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
                    yield Cell(data, name, n, len(set(groups)), correlation, covered, before)


def write_table(cells: list[Cell]) -> str:
    """Return a Markdown table; cells outside 93 to 97 % are bold."""
    lines = [
        "| data | samples a set | samples | sets | correlation | covered | percentile |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for cell in cells:
        covered = f"{cell.covered:.3f}"
        bold = covered if 0.93 <= cell.covered <= 0.97 else f"**{covered}**"
        shape = f"{cell.sizes} | {cell.n} | {cell.sets} | {cell.correlation:g}"
        lines.append(f"| {cell.data} | {shape} | {bold} | {cell.covered_before:.3f} |")
    return "\n".join(lines)


def write_page(cells: list[Cell]) -> str:
    """Return the page."""
    outside = sum(not 0.93 <= cell.covered <= 0.97 for cell in cells)
    return TEXT.format(
        repetitions=f"{REPETITIONS:,}",
        data="\n".join(f"- {name}: {text}" for name, text in DATA.items()),
        inside=len(cells) - outside,
        cells=len(cells),
        table=write_table(cells),
    )


if __name__ == "__main__":
    only = partial_page.read_only(__doc__)
    partial_page.write_page(PAGE, write_page(list(simulate())), only)
