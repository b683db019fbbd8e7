"""Draws of groups for the bootstrap of `intervals`, in memory that does not grow with the number of groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
WEIGHTS = 500_000  # of groups or samples in memory at a time
_TOGETHER = 500  # most resamples at a time
_KEPT = 1000  # most groups whose draws are kept for the next statistic


def draw_groups(count: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each group is drawn with replacement, uint16 [resample, group], some resamples at a time.

    Example:
        >>> blocks = list(draw_groups(3, seed=0))
        >>> sum(map(len, blocks)), {int(total) for block in blocks for total in block.sum(1)}
        (2000, {3})
    """
    yield from _keep_draws(count, seed) if count <= _KEPT else _draw_anew(count, seed)


@lru_cache(maxsize=4)
def _keep_draws(count: int, seed: int) -> tuple[np.ndarray, ...]:
    return tuple(_draw_anew(count, seed))


def _draw_anew(count: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    together = max(1, min(_TOGETHER, WEIGHTS // count))
    for start in range(0, RESAMPLES, together):
        drawn = np.empty((min(together, RESAMPLES - start), count), np.uint16)
        for row in drawn:
            row[:] = np.bincount(rng.integers(count, size=count), minlength=count)
        drawn.flags.writeable = False
        yield drawn
