"""Time several ways to do the same thing in turn, each against the first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

TIMED = ("s", "ratio", "middle half", "rounds")  # the names of `Paired.cells` in a table


class Paired(NamedTuple):
    """Times of a way over all rounds.

    Attributes:
        seconds: median.
        ratio: median of the ratios to the first way in the same round.
        low, high: quartiles of these ratios.
        rounds: number of rounds.
    """

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Seconds, ratio, its middle half, and rounds, as a table shows them."""
        return f"{self.seconds:.3f}", f"{self.ratio:.2f}", f"{self.low:.2f}-{self.high:.2f}", str(self.rounds)


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    least: int,
    seconds: float = 0,
    before: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Paired]:
    """Time all ways in rounds, each round in another order. The first round warms up and does not count.

    Args:
        least: least number of rounds. There are more until all rounds together have taken `seconds`.
        before: called before each way, outside its time.
        clock: returns seconds; `time.process_time` for those of the processor, which a busy machine changes less.
    """
    names, times = list(ways), {way: [] for way in ways}
    round_ = -1
    while round_ < least or sum(map(sum, times.values())) < seconds:
        for way in names[round_ % len(names) :] + names[: round_ % len(names)]:
            if before is not None:
                before()
            began = clock()
            ways[way]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if round_ >= 0:
                times[way].append(clock() - began)
        round_ += 1
    first = times[names[0]]
    return {way: _paired(times[way], first) for way in names}


def _paired(times: list[float], first: list[float]) -> Paired:
    ratios = [seconds / reference for seconds, reference in zip(times, first, strict=True)]
    low, high = np.percentile(ratios, [25, 75])
    return Paired(statistics.median(times), statistics.median(ratios), float(low), float(high), len(times))
