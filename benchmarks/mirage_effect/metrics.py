"""Mirage rate, mirage score, bias of made-up answers, and how little a picture changes them (paper 002)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.analyses.statistics import PERMUTATIONS
from mmprobe.benchmarks.core.results import Metric, count_metric, mean_metric
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels

NO_ANSWER = "no answer found"


def mirage_rates(labels: Sequence[ImagelessLabels | None]) -> dict[str, Metric]:
    """How often a model answers as if it saw a picture that nobody gave it (section 7.3).

    The paper prints percent; these are shares.

    Args:
        labels: of each answer to a question without its picture; None for no answer, or no verdict.

    Returns:
        - mirage_rate: 1 - share of answers that notice the missing picture or are unsure, the paper's
        - describes_rate: share that state a visual detail
        - mirage_rate_described: share that do not notice and state a detail: neither general answers nor
          refusals are mirages

    Example:
        >>> rates = mirage_rates([ImagelessLabels(False, True), ImagelessLabels(False, False), ImagelessLabels(True, False), None])
        >>> round(rates["mirage_rate"].value, 3), round(rates["mirage_rate_described"].value, 3)
        (0.667, 0.333)
    """

    def share(given: list[bool | None]) -> Metric:
        return mean_metric([None if value is None else float(value) for value in given], "lower")

    return {
        "mirage_rate": share([None if one is None else not one.notices for one in labels]),
        "describes_rate": share([None if one is None else one.describes for one in labels]),
        "mirage_rate_described": share(
            [None if one is None else one.describes and not one.notices for one in labels]
        ),
    }


def mirage_scores(
    without: Sequence[bool | None], with_image: Sequence[bool | None], options: Sequence[int | None]
) -> dict[str, Metric]:
    """What is left of a model's accuracy when the pictures are taken away (equation 1).

    All numbers are over the questions that were scored both ways. The paper prints the score in percent;
    here it is the ratio itself, which is above 1 where the pictures do harm.

    Args:
        without, with_image: whether each question was answered rightly; None if it was not scored.
        options: how many each question has; None for an open one, which nobody gets right by chance.

    Returns:
        - accuracy_without, accuracy_with
        - mirage_score: accuracy without over accuracy with; undefined if the latter is 0
        - mirage_score_above_chance, ours: the same after the accuracy of blind chance (mean of 1 / options)
          is taken off both; undefined unless the accuracy with pictures is above chance
        - visual_gain: accuracy with minus accuracy without

    Example:
        >>> scores = mirage_scores([True, False, True, False], [True, True, True, False], [4] * 4)
        >>> round(scores["mirage_score"].value, 3), scores["mirage_score_above_chance"].value
        (0.667, 0.5)
    """
    rows: list[tuple[float, ...] | None] = []
    for blind, seeing, count in zip(without, with_image, options, strict=True):
        scored = blind is not None and seeing is not None
        chance = 1 / count if count else 0.0
        rows.append((float(bool(blind)), float(bool(seeing)), chance, 1.0) if scored else None)

    def above_chance(counts: np.ndarray) -> np.ndarray:
        gained = counts[..., 1] - counts[..., 2]
        above = gained > 1e-9 * counts[..., 3]
        return np.where(above, (counts[..., 0] - counts[..., 2]) / np.where(above, gained, 1), np.nan)

    def ratio(counts: np.ndarray) -> np.ndarray:
        return np.where(counts[..., 1] > 0, counts[..., 0] / counts[..., 1], np.nan)

    return {
        "accuracy_without": count_metric(rows, lambda c: c[..., 0] / c[..., 3], "neither"),
        "accuracy_with": count_metric(rows, lambda c: c[..., 1] / c[..., 3], "higher"),
        "mirage_score": count_metric(rows, ratio, "lower", (0.0, None)),
        "mirage_score_above_chance": count_metric(rows, above_chance, "lower", (None, None)),
        "visual_gain": count_metric(
            rows, lambda c: (c[..., 1] - c[..., 0]) / c[..., 3], "higher", (-1.0, 1.0)
        ),
    }


def mean_mirage_score(scores: Sequence[float | None]) -> Metric:
    """Mean of mirage scores: of a model over benchmarks, or of a benchmark over models (section 7.6).

    Args:
        scores: None where a score is undefined; it is left out and lowers the coverage.

    Example:
        >>> mean_mirage_score([0.5, None, 0.75]).value
        0.625
    """
    return mean_metric(scores, "lower", (0.0, None))


class Bias(NamedTuple):
    """What a model makes up for one prompt over many seeds.

    Attributes:
        shares: of each answer, the most frequent first.
        flagged: share of the answers that are among those named as alarming.
        entropy: of the shares, in bits: 0 if all answers are the same.
    """

    shares: dict[str, Metric]
    flagged: Metric
    entropy: float | None


def answer_bias(answers: Sequence[str | None], flagged: Collection[str] = ()) -> Bias:
    """The distribution of answers to one prompt over seeds (section 7.4 and figure 2).

    Args:
        answers: one a seed, 200 in the paper; None where there was none, counted as `NO_ANSWER`.
        flagged: answers that would call for action at once, in red in the figure.

    Example:
        >>> bias = answer_bias(["melanoma", "melanoma", "naevus", None], {"melanoma"})
        >>> list(bias.shares), bias.flagged.value, bias.entropy
        (['melanoma', 'naevus', 'no answer found'], 0.5, 1.5)
    """
    named = [NO_ANSWER if answer is None else answer for answer in answers]
    order = sorted(Counter(named).items(), key=lambda item: (-item[1], item[0]))
    shares = {
        answer: mean_metric([float(other == answer) for other in named], "neither") for answer, _ in order
    }
    part = np.array([count for _, count in order], float) / max(len(named), 1)
    entropy = abs(float(-(part * np.log2(part)).sum())) if len(named) else None
    return Bias(shares, mean_metric([float(answer in flagged) for answer in named], "neither"), entropy)


class Similarity(NamedTuple):
    """How alike answers with and without the picture are.

    Attributes:
        similarity: of the two distributions, 1 - total variation distance: 1 if they are the same.
        by_chance: the similarity that two draws of this size from one distribution have on average; the
            similarity is to be judged against it.
        p: of no difference, by shuffling which answers had the picture.
    """

    similarity: Metric
    by_chance: float | None
    p: float | None


def answer_similarity(
    present: Sequence[str], absent: Sequence[str], permutations: int = PERMUTATIONS, seed: int = 0
) -> Similarity:
    """Do answers to one query change when the picture is taken away? Grounded ones do (section 2.2).

    Args:
        present, absent: answers with and without the picture, over seeds or pictures.
        permutations, seed: of the test; ours.

    Example:
        >>> found = answer_similarity(["cat", "dog"] * 10, ["cat"] * 20)
        >>> found.similarity.value, found.p < 0.01
        (0.5, True)
    """
    answers = sorted({*present, *absent})
    n = len(present), len(absent)
    if not min(n):
        return Similarity(Metric(None, sum(n), None, None, None, "lower", (0.0, 1.0)), None, None)
    place = {answer: index for index, answer in enumerate(answers)}
    one, two = (np.bincount([place[a] for a in group], minlength=len(answers)) for group in (present, absent))

    def alike(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        apart = np.abs(first / n[0] - second / n[1]).sum(-1) / 2
        return np.round(1 - apart, 12)  # so that nothing in common is 0

    rng = np.random.default_rng(seed)
    value = float(alike(one, two))
    shuffled = rng.multivariate_hypergeometric(one + two, n[0], size=permutations)
    by_chance = alike(shuffled, one + two - shuffled)
    p = (int((by_chance <= value + 1e-12).sum()) + 1) / (permutations + 1)
    drawn = alike(rng.multinomial(n[0], one / n[0], 2000), rng.multinomial(n[1], two / n[1], 2000))
    low, high = np.percentile(drawn, [2.5, 97.5]) if min(n) > 1 else (None, None)
    bounds = [None if end is None else float(end) for end in (low, high)]
    metric = Metric(value, sum(n), 1.0, bounds[0], bounds[1], "lower", (0.0, 1.0))
    return Similarity(metric, float(by_chance.mean()), p)


def answers_kept(present: Sequence[str | None], absent: Sequence[str | None]) -> Metric:
    """Share of questions whose answer stays the same when the picture is taken away, ours.

    Args:
        present, absent: the answer to each question with and without it; None where there is none.

    Example:
        >>> answers_kept(["A", "B", None], ["A", "C", "D"]).value
        0.5
    """
    pairs = zip(present, absent, strict=True)
    return mean_metric([None if a is None or b is None else float(a == b) for a, b in pairs], "lower")
