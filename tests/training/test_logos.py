"""The arithmetic of Logos, compared with hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmprobe.errors import InputError
from mmprobe.training.logos import (
    clipped_loss,
    compute_advantages,
    compute_reward,
    filter_by_rewards,
    follows_format,
    select_for_stage,
)


def test_advantages_of_a_group_of_eight():
    rewards = np.array([2.0, 2, 1, 1, 0, 0, 1, 1])
    values = compute_advantages(rewards)
    spread = math.sqrt((1 + 1 + 1 + 1) / 8)
    assert values.tolist() == pytest.approx([1 / spread, 1 / spread, 0, 0, -1 / spread, -1 / spread, 0, 0])
    both = compute_advantages(np.stack([rewards, np.full(8, 0.1)]))
    assert both[0].tolist() == values.tolist() and (both[1] == 0).all()
    with pytest.raises(InputError):
        compute_advantages(np.array([1.0, np.nan]))


def test_clipped_loss_by_hand():
    ratios = [np.array([1.5, 0.5]), np.array([0.5, 1.5, 1.0])]
    # gain 1: min(1.5, 1.2), min(0.5, 0.8); gain -1: min(-0.5, -0.8), min(-1.5, -1.2), -1
    expected = -((1.2 + 0.5) / 2 + (-0.8 - 1.5 - 1.0) / 3) / 2
    assert clipped_loss(ratios, np.array([1.0, -1.0])) == pytest.approx(expected)


def test_selection_of_questions_for_logos():
    means = {"always": 1.0, "half": 0.5, "rare": 0.25, "never": 0.0}
    assert select_for_stage(means, 0) == ["always", "half", "rare"]
    assert select_for_stage(means, 1) == ["rare", "never"]
    groups = {"right": [2.0] * 8, "wrong": [0.0] * 8, "mixed": [2.0] * 7 + [1.0]}
    assert filter_by_rewards(groups) == ["mixed"]


def test_format_and_reward():
    good = "<think>\n2 + 2\n</think>\n<answer>4</answer>\n"
    assert follows_format(good)
    for bad in ("4", good + "!", good * 2, "<think></think><answer>4</answer>", good.replace("</think>", "")):
        assert not follows_format(bad)
    assert [compute_reward(f, c) for f in (False, True) for c in (False, True)] == [0, 1, 1, 2]
