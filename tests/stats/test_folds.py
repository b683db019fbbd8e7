"""Folds and shuffles: sets stay together."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.errors import NotApplicable
from mmprobe.stats.folds import assign_folds, shuffle_within_folds


def test_a_class_over_the_same_images_is_refused():
    """All samples of class 1 share an image, so only one fold has class 1."""
    labels, groups = np.repeat([1, 0], [5, 20]), np.concatenate([np.zeros(5, int), np.arange(1, 21)])
    with pytest.raises(NotApplicable, match="share too few images"):
        assign_folds(labels, groups, 5, 0, "run")


def test_shuffles_keep_folds_and_blocks():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 3)
    fold = np.repeat([0, 1], 12)
    labels = np.repeat([0, 0, 1, 1, 0, 1, 1, 1], 3)
    seen = set()
    for _ in range(200):
        shuffled = shuffle_within_folds(labels, groups, fold, rng)
        assert shuffled[:12].sum() == 6
        assert shuffled[12:].sum() == 9
        assert all(len(set(shuffled[groups == group])) == 1 for group in range(8))
        seen.add(tuple(shuffled[::3]))
    assert len(seen) == 6 * 4, "every order of two of four, and of three of four"
