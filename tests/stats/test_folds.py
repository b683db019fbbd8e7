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


def test_labels_of_each_stratum_are_spread_over_the_folds():
    """Stratum c has too few samples of label 1 to be spread; they go with those of the label's largest stratum."""
    strata = np.repeat(["a", "b", "c"], [40, 20, 20])
    labels = np.concatenate([np.tile([0, 1], 30), np.repeat([1, 0], [2, 18])])
    fold = assign_folds(labels, np.arange(80), 5, 0, "run", strata)
    for names, label in (("a", 0), ("ac", 1), ("b", 0), ("b", 1), ("c", 0)):
        counts = np.bincount(fold[np.isin(strata, list(names)) & (labels == label)], minlength=5)
        assert counts.max() - counts.min() <= 1, (names, label)


def test_without_strata_of_more_than_one_kind_folds_are_the_same():
    labels, groups = np.tile([0, 1], 20), np.repeat(np.arange(20), 2)
    alone = assign_folds(labels, groups, 5, 3, "run")
    assert (assign_folds(labels, groups, 5, 3, "run", np.array(["x"] * 40)) == alone).all()
