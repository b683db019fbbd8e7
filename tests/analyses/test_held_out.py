"""Folds and shuffles: groups stay together."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.analyses.held_out import (
    assign_folds,
    image_groups,
    shuffle_within_folds,
)
from mmprobe.errors import NotApplicable
from mmprobe.samples import Sample


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
