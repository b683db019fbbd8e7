"""Free tokens: those of an answer that other images would change, and what these lose.

Most tokens of an answer follow from the question and from the words before them, whatever the images show: of `The shoe is
orange.` one. A mean over all tokens dilutes what the images decide, so an answer's dependence on its images is that of its
free tokens. A token's *margin* is how far its log-probability is above that of the likeliest other one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

UNUSED = 0.05  # of the usual margin: an answer whose free tokens lose less is unused, as in a diagnosis; our choice
LEAST_OTHERS = (
    2  # sets of other images without which nothing is said of an answer; one may hold what it names
)


def find_free(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return whether the model would say another token at each step with some of the images, bool [step].

    Args:
        own: margins with the answer's own images, [step], in nat.
        other: the smallest ones with other images, [step].

    Example:
        >>> find_free(np.array([9.0, 4.0]), np.array([8.0, -2.0])).tolist()
        [False, True]
    """
    return np.minimum(own, other) <= 0


def usual_margin(margins: Iterable[np.ndarray]) -> float:
    """Return the median of the margins above 0 of many answers, by which losses of different models compare; 1 without any.

    Example:
        >>> usual_margin([np.array([2.0, -1.0]), np.array([4.0, 6.0])])
        4.0
    """
    parts = [values[values > 0] for values in margins]
    positive = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.median(positive)) if len(positive) else 1.0


def mean_fall(own: np.ndarray, other: np.ndarray, free: np.ndarray) -> float:
    """Return the mean fall of the margins of the free tokens, in nat; 0 if no token is free.

    Example:
        >>> mean_fall(np.array([9.0, 4.0]), np.array([8.0, -2.0]), np.array([False, True]))
        6.0
    """
    return float((own - other)[free].mean()) if free.any() else 0.0
