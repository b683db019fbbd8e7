"""The arithmetic of Logos (arXiv:2505.24238, section 5): the format, advantages, and the choice of questions."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from mmprobe.errors import InputError

EPSILON = 0.2  # clipping range, ours; the paper gives none

_FORMAT = re.compile(r"\s*<think>(.+?)</think>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


def follows_format(response: str) -> bool:
    """Return whether a response is exactly one `<think>` and one `<answer>` block, both non-empty.

    Example:
        >>> follows_format("<think>2 + 2</think> <answer>4</answer>"), follows_format("<answer>4</answer>")
        (True, False)
    """
    blocks = _FORMAT.fullmatch(response)
    if not blocks or not all(block.strip() for block in blocks.groups()):
        return False
    return len(re.findall(r"</?(?:think|answer)>", response)) == 4


def compute_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return the advantage of each response within its group (equation 4): (r - mean) / standard deviation.

    The standard deviation divides by G, ours; the paper does not say. Equal rewards have the advantage 0.

    Args:
        rewards: [..., G], for G responses to one question; 8 in the paper.

    Returns:
        Advantages of the same shape.

    Raises:
        InputError: a reward is not finite.

    Example:
        >>> compute_advantages(np.array([[2.0, 0.0], [1.0, 1.0]])).tolist()
        [[1.0, -1.0], [0.0, 0.0]]
    """
    rewards = np.asarray(rewards, float)
    if not np.isfinite(rewards).all():
        raise InputError("rewards: a value is not finite; advantages need finite rewards")
    centred = rewards - rewards.mean(-1, keepdims=True)
    deviation = rewards.std(-1, keepdims=True)
    all_equal = (rewards == rewards[..., :1]).all(-1, keepdims=True)
    return np.where(all_equal, 0.0, centred / np.where(all_equal, 1.0, deviation))


def select_for_stage(mean_accuracy: Mapping[str, float], stage: int, lower: float | None = None) -> list[str]:
    """Return the questions for one stage of curriculum fine-tuning (section 5.2).

    Args:
        mean_accuracy: mean accuracy of the G responses to each question before the stage, 0 to 1.
        stage: 0 is the first stage and keeps accuracies above 0. Later stages keep accuracies below 0.5.
        lower: later stages keep only accuracies above it, ours. None, as the text has it, lets in questions that are
            never answered rightly.

    Example:
        >>> means = {"easy": 1.0, "hard": 0.125, "never": 0.0}
        >>> select_for_stage(means, 0), select_for_stage(means, 1)
        (['easy', 'hard'], ['hard', 'never'])
        >>> select_for_stage(means, 1, lower=0.0)
        ['hard']
    """
    if stage == 0:
        return [name for name, mean in mean_accuracy.items() if mean > 0]
    above = -1.0 if lower is None else lower
    return [name for name, mean in mean_accuracy.items() if above < mean < 0.5]
