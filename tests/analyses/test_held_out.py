"""Folds, resamples and AUC: groups stay together, and AUC agrees with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from mmprobe.analyses.held_out import (
    assign_folds,
    image_groups,
    shuffle_within_folds,
    weighted_auc,
)
from mmprobe.errors import NotApplicable
from mmprobe.samples import Sample


def share_of_pairs_won(score: np.ndarray, unfaithful: np.ndarray) -> float:
    """Return the AUC by its definition: the share of (unfaithful, faithful) pairs in the right order."""
    won = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in score[unfaithful == 1]
        for low in score[unfaithful == 0]
    ]
    return sum(won) / len(won)


def test_a_class_over_the_same_images_is_refused():
    """All samples of class 1 share an image, so only one fold has class 1."""
    labels, groups = np.repeat([1, 0], [5, 20]), np.concatenate([np.zeros(5, int), np.arange(1, 21)])
    with pytest.raises(NotApplicable, match="share too few images"):
        assign_folds(labels, groups, 5, 0, "run")


def test_samples_that_share_an_image_are_one_group():
    """b shares one image with a and another with c. d shares a pair with e. f shares nothing."""
    samples = [
        Sample(id="a", question="?", images=["1.png"]),
        Sample(id="b", question="?", images=["1.png", "2.png"]),
        Sample(id="c", question="?", images=["2.png"]),
        Sample(id="d", question="?", pair_id="p"),
        Sample(id="e", question="?", pair_id="p", images=["3.png"]),
        Sample(id="f", question="?"),
    ]
    assert image_groups(samples).tolist() == [0, 0, 0, 1, 1, 2]


def test_samples_without_image_files_are_grouped_by_what_names_the_image():
    """MME's images have names of their own in each subtask; a question also stands without its image."""
    names = [("count", "1.png"), ("color", "1.png"), ("count", "1.png")]
    samples = [
        Sample(id=str(number), question="?", metadata={"subtask": subtask, "image": image})
        for number, (subtask, image) in enumerate(names)
    ]
    samples += [
        Sample(id="q", question="?", images=["a.png"]),
        Sample(id="r", question="?", images=["b.png"]),
    ]
    samples += [Sample(id="q--absent", question="?", metadata={"with_picture": "q"})]
    assert image_groups(samples).tolist() == [0, 1, 0, 2, 3, 2]


def test_weighted_auc_is_that_of_repeated_samples():
    rng = np.random.default_rng(4)
    score, positive = rng.integers(0, 6, 30), rng.random(30) < 0.4
    counts = rng.integers(0, 4, (20, 30))
    expected = [roc_auc_score(np.repeat(positive, n), np.repeat(score, n)) for n in counts]
    np.testing.assert_allclose(weighted_auc(score, positive, counts), expected)
    assert weighted_auc(score, positive).item() == pytest.approx(
        share_of_pairs_won(score, positive.astype(int))
    )
    assert np.isnan(weighted_auc(score, positive, np.where(positive, 0, 1)[None]).item())


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
