"""The labels of a run's answers, and the sets of images that they are about."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.samples import set_keys
from mmprobe.stats.sets import Sets


class RunAnswers:
    """The labels of a run's answers, and the number of the set of images of each sample and pair.

    Example:
        >>> RunAnswers(run).sets(dataset["sample"])                 # doctest: +SKIP
        array([0, 0, 1, 1])
    """

    def __init__(self, run: Run) -> None:
        groups, pairs = Sets(), []
        self.label_of_sample: dict[str, bool | None] = {}
        for name in run.ids:
            sample = run.sample(name)
            groups.add(name, set_keys(sample))
            pairs.append(sample.pair_id)
            self.label_of_sample[name] = run.faithful(name)
        numbers = groups.number().tolist() if pairs else []
        self.set_of_sample = dict(zip(run.ids, numbers, strict=True))
        self.set_of_pair = {pair: number for pair, number in zip(pairs, numbers, strict=True) if pair}

    def sets(self, names: xr.DataArray) -> np.ndarray:
        """Return the number of the set of images of each sample, int [sample]."""
        return np.array([self.set_of_sample[str(name)] for name in names.values], int)

    def faithful(self, names: xr.DataArray) -> np.ndarray:
        """Return 1 for faithful, 0 for unfaithful and NaN for unlabelled samples, [sample]."""
        numbers = {True: 1.0, False: 0.0, None: np.nan}
        return np.array([numbers[self.label_of_sample[str(name)]] for name in names.values])
