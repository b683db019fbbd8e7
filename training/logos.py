"""The arithmetic of Logos: rewards, advantages, what is kept for training, hints (paper 000, section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from mmprobe.errors import InputError

EPSILON = 0.2  # of the clipping, ours: the paper leaves it open


_FORMAT = re.compile(r"\s*<think>(.+?)</think>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


def follows_format(response: str) -> bool:
    """Whether a response is one `<think>` block and one `<answer>` block, neither empty, and nothing else.

    Example:
        >>> follows_format("<think>2 + 2</think> <answer>4</answer>"), follows_format("<answer>4</answer>")
        (True, False)
    """
    found = _FORMAT.fullmatch(response)
    if not found or not all(part.strip() for part in found.groups()):
        return False
    return len(re.findall(r"</?(?:think|answer)>", response)) == 4


def reward(formatted: bool, correct: bool) -> float:
    """Reward of one response: 1 for its format and 1 for its answer.

    Example:
        >>> reward(True, False)
        1.0
    """
    return float(formatted) + float(correct)


def advantages(rewards: np.ndarray) -> np.ndarray:
    """Advantage of each response within its group (equation 4): (r - mean) / standard deviation.

    The deviation divides by G, ours; the paper does not say. Equal rewards have no advantage: 0.

    Args:
        rewards: [..., G], G responses to one question, 8 in the paper.

    Raises:
        InputError: a reward is not finite.

    Example:
        >>> advantages(np.array([2.0, 0.0])).tolist(), advantages(np.array([1.0, 1.0])).tolist()
        ([1.0, -1.0], [0.0, 0.0])
    """
    rewards = np.asarray(rewards, float)
    if not np.isfinite(rewards).all():
        raise InputError("a reward is not finite; advantages cannot be made of it")
    centred = rewards - rewards.mean(-1, keepdims=True)
    spread = rewards.std(-1, keepdims=True)
    equal = (rewards == rewards[..., :1]).all(-1, keepdims=True)
    return np.where(equal, 0.0, centred / np.where(equal, 1.0, spread))


def clipped_loss(ratios: Sequence[np.ndarray], advantage: np.ndarray, epsilon: float = EPSILON) -> float:
    """Loss of one group (equation 5), without the KL term: -mean over responses of the mean over tokens.

    Args:
        ratios: of each response [token], probability under the new policy over that under the old.
        advantage: [G].
        epsilon: ratios count up to 1 - epsilon and 1 + epsilon.

    Example:
        >>> clipped_loss([np.array([1.0, 2.0])], np.array([1.0]))
        -1.1
    """
    means = []
    for ratio, gain in zip(ratios, np.asarray(advantage, float), strict=True):
        clipped = np.clip(ratio, 1 - epsilon, 1 + epsilon)
        means.append(np.minimum(ratio * gain, clipped * gain).mean())
    return -float(np.mean(means))


def kept_by_curriculum(mean_accuracy: Mapping[str, float], stage: int) -> list[str]:
    """Questions for one stage of curriculum fine-tuning (section 5.2).

    Args:
        mean_accuracy: of each question's G responses before the stage, 0 to 1.
        stage: 0 is the first, which keeps what is above 0; later ones keep what is below 0.5.

    Example:
        >>> means = {"easy": 1.0, "hard": 0.125, "never": 0.0}
        >>> kept_by_curriculum(means, 0), kept_by_curriculum(means, 1)
        (['easy', 'hard'], ['hard', 'never'])
    """
    return [name for name, mean in mean_accuracy.items() if (mean < 0.5 if stage else mean > 0)]


def kept_by_reward_filtration(rewards: Mapping[str, Sequence[float]]) -> list[str]:
    """Questions whose responses do not all have the same reward, which alone teach something (section 5.3).

    Example:
        >>> kept_by_reward_filtration({"a": [2, 2, 2], "b": [2, 0, 1]})
        ['b']
    """
    return [name for name, group in rewards.items() if len(set(group)) > 1]
