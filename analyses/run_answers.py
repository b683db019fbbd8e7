"""The labels of a run's answers, and the sets of images that they are about."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.held_out import image_groups
from mmprobe.cache import Run


class RunAnswers:
    """The labels of a run's answers, and the number of the set of images of each sample and pair.

    Example:
        >>> RunAnswers(run).sets(dataset["sample"])                 # doctest: +SKIP
        array([0, 0, 1, 1])
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        samples = [run.sample(name) for name in run.ids]
        numbers = image_groups(samples).tolist() if samples else []
        self.set_of_sample = dict(zip(run.ids, numbers, strict=True))
        self.set_of_pair = {
            sample.pair_id: number for sample, number in zip(samples, numbers, strict=True) if sample.pair_id
        }

    def sets(self, names: xr.DataArray) -> np.ndarray:
        """Return the number of the set of images of each sample, int [sample]."""
        return np.array([self.set_of_sample[str(name)] for name in names.values], int)

    def faithful(self, names: xr.DataArray) -> np.ndarray:
        """Return 1 for faithful, 0 for unfaithful and NaN for unlabelled samples, [sample]."""
        numbers = {True: 1.0, False: 0.0, None: np.nan}
        return np.array([numbers[self.run.faithful(str(name))] for name in names.values])
