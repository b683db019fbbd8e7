"""Metrics of the mirage effect (arXiv:2603.21687): mirage rate, mirage score, bias, and similarity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.benchmarks.core.results import Metric, count_metric, mean_metric, share
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.stats.compare import PERMUTATIONS
from mmprobe.stats.intervals import sums_interval

NO_ANSWER = "no answer found"


def mirage_rates(labels: Sequence[ImagelessLabels | None]) -> dict[str, Metric]:
    """Return how often a model answers as if it saw an image that nobody gave it (section 7.3), as shares.

    `mirage_rate` is 1 - share of answers that notice the missing image or are unsure, as in the paper;
    `describes_rate` the share that state a visual detail; `mirage_rate_described` the share that do and do
    not notice: here, general answers and refusals do not count as mirages.

    Example:
        >>> pairs = [(False, True), (False, False), (True, False)]
        >>> labels = [ImagelessLabels(notices, describes) for notices, describes in pairs]
        >>> rates = mirage_rates(labels)
        >>> round(rates["mirage_rate"].value, 3), round(rates["mirage_rate_described"].value, 3)
        (0.667, 0.333)
    """
    mirages = [None if label is None else not label.notices for label in labels]
    descriptions = [None if label is None else label.describes for label in labels]
    described_mirages = [
        None if label is None else False if label.notices else label.describes for label in labels
    ]
    return {
        "mirage_rate": mean_metric(mirages, "lower"),
        "describes_rate": mean_metric(descriptions, "lower"),
        "mirage_rate_described": mean_metric(described_mirages, "lower"),
    }


def mirage_scores(
    without_image: Sequence[bool | None],
    with_image: Sequence[bool | None],
    options: Sequence[int | None],
) -> dict[str, Metric]:
    """Return how much of a model's accuracy remains without the images (equation 1), as a ratio.

    All values are over the questions scored both ways; None was not scored. `options` counts those of each
    question; None for an open question, which chance cannot answer. `mirage_score` is accuracy without
    divided by accuracy with: above 1 if the images do harm, undefined if the latter is 0.
    `mirage_score_above_chance`, our choice, subtracts the accuracy of random choice (mean of 1 / options) from
    both; it is undefined unless the accuracy with images is above chance. `visual_gain` is accuracy with
    minus accuracy without.

    Example:
        >>> scores = mirage_scores([True, False, True, False], [True, True, True, False], [4] * 4)
        >>> round(scores["mirage_score"].value, 3), scores["mirage_score_above_chance"].value
        (0.667, 0.5)
    """
    rows: list[tuple[float, ...] | None] = []  # right without, right with, chance, number
    for absent, present, count in zip(without_image, with_image, options, strict=True):
        chance = 1 / count if count else 0.0
        scored = absent is not None and present is not None
        rows.append((float(bool(absent)), float(bool(present)), chance, 1.0) if scored else None)

    def score_above_chance(counts: np.ndarray) -> np.ndarray:
        gain = counts[..., 1] - counts[..., 2]
        is_above = gain > 1e-9 * counts[..., 3]
        return np.where(is_above, (counts[..., 0] - counts[..., 2]) / np.where(is_above, gain, 1), np.nan)

    def score(counts: np.ndarray) -> np.ndarray:
        return np.where(counts[..., 1] > 0, counts[..., 0] / counts[..., 1], np.nan)

    return {
        "accuracy_without": count_metric(rows, share(0, 3), "neither"),
        "accuracy_with": count_metric(rows, share(1, 3), "higher"),
        "mirage_score": count_metric(rows, score, "lower", (0.0, None)),
        "mirage_score_above_chance": count_metric(rows, score_above_chance, "lower", (None, None)),
        "visual_gain": count_metric(
            rows, lambda c: (c[..., 1] - c[..., 0]) / c[..., 3], "higher", (-1.0, 1.0)
        ),
    }


def answer_shares(answers: Sequence[str | None]) -> dict[str, Metric]:
    """Return the share of each answer to a prompt, None too, most frequent first (section 7.4, figure 2).

    Example:
        >>> shares = answer_shares(["melanoma", "melanoma", "naevus", None])
        >>> [(answer, share.value) for answer, share in shares.items()]
        [('melanoma', 0.5), ('naevus', 0.25), ('no answer found', 0.25)]
    """
    texts = [NO_ANSWER if answer is None else answer for answer in answers]
    counts = sorted(Counter(texts).items(), key=lambda item: (-item[1], item[0]))
    return {answer: mean_metric([text == answer for text in texts], "neither") for answer, _ in counts}


def entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy in bits of counts [..., answer]: 0 if all answers are equal.

    Example:
        >>> float(entropy(np.array([2, 1, 1])))
        1.5
    """
    shares = counts / counts.sum(-1, keepdims=True)
    return np.abs(-(shares * np.log2(np.where(shares > 0, shares, 1))).sum(-1))


class Similarity(NamedTuple):
    """The similarity of answers with and without the image: 1 - total variation distance, 1 if equal.

    `by_chance` is the mean similarity of two samples of this size from one distribution, to compare it with.
    `p` is the p value of no difference, by shuffling which answers had the image.
    """

    similarity: Metric
    by_chance: float | None
    p: float | None


def answer_similarity(
    present: Sequence[str], absent: Sequence[str], permutations: int = PERMUTATIONS, seed: int = 0
) -> Similarity:
    """Return how similar the answers with and without the image are (section 2.2). Grounded answers differ.

    Example:
        >>> result = answer_similarity(["cat", "dog"] * 10, ["cat"] * 20)
        >>> result.similarity.value, result.p < 0.01
        (0.5, True)
    """
    answers = sorted({*present, *absent})
    n = len(present), len(absent)
    if not min(n):
        nothing = Metric(None, None, None, sum(n), coverage=None, direction="lower", range=(0.0, 1.0))
        return Similarity(nothing, None, None)
    index = {answer: i for i, answer in enumerate(answers)}
    present_counts = np.bincount([index[answer] for answer in present], minlength=len(answers))
    absent_counts = np.bincount([index[answer] for answer in absent], minlength=len(answers))

    def similarity(counts: np.ndarray) -> np.ndarray:
        first, second = np.split(counts, 2, axis=-1)
        shares = first / first.sum(-1, keepdims=True) - second / second.sum(-1, keepdims=True)
        return np.round(1 - np.abs(shares).sum(-1) / 2, 12)  # so that disjoint answers give exactly 0

    rng = np.random.default_rng(seed)
    value = float(similarity(np.concatenate([present_counts, absent_counts])))
    total_counts = present_counts + absent_counts
    shuffled = rng.multivariate_hypergeometric(total_counts, n[0], size=permutations)
    by_chance = similarity(np.concatenate([shuffled, total_counts - shuffled], axis=1))
    p = (int((by_chance <= value + 1e-12).sum()) + 1) / (permutations + 1)
    rows = np.eye(2 * len(answers))
    places = [index[answer] for answer in present] + [len(answers) + index[answer] for answer in absent]
    low, high = (float(end) for end in sums_interval(similarity, rows[places], None, (0.0, 1.0)))
    known = math.isfinite(low)
    metric = Metric(
        value,
        low if known else None,
        high if known else None,
        sum(n),
        coverage=1.0,
        direction="lower",
        range=(0.0, 1.0),
    )
    return Similarity(metric, float(by_chance.mean()), p)


def answers_kept(present: Sequence[str | None], absent: Sequence[str | None]) -> Metric:
    """Return the share of questions with the same answer with and without the image, our choice.

    Example:
        >>> answers_kept(["A", "B", None], ["A", "C", "D"]).value
        0.5
    """
    pairs = zip(present, absent, strict=True)
    return mean_metric([None if a is None or b is None else a == b for a, b in pairs], "lower")
