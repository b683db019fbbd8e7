"""The number of questions, against simulated models: McNemar's test finds the difference in 80 of 100 draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from mmprobe.stats.power import questions_for


@pytest.mark.parametrize(("accuracy", "difference", "disagreeing"), [(0.7, 0.1, 0.2), (0.5, 0.06, 0.3)])
def test_so_many_questions_show_the_difference(accuracy, difference, disagreeing):
    rng, needed = np.random.default_rng(0), questions_for(difference, accuracy, disagreeing)
    only_second, only_first = (disagreeing + difference) / 2, (disagreeing - difference) / 2
    counts = rng.multinomial(needed.paired, [only_second, only_first, 1 - disagreeing], 4000)
    z = (counts[:, 0] - counts[:, 1]) / np.sqrt(np.maximum(counts[:, 0] + counts[:, 1], 1))
    assert np.mean(z > norm.ppf(0.975)) == pytest.approx(0.8, abs=0.03)
    first, second = (
        rng.binomial(needed.independent, share, 4000) / needed.independent
        for share in (accuracy, accuracy + difference)
    )
    error = np.sqrt((first * (1 - first) + second * (1 - second)) / needed.independent)
    assert np.mean((second - first) / error > norm.ppf(0.975)) == pytest.approx(0.8, abs=0.03)
