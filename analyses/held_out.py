"""What predictions of labels share: samples held out by their pictures, intervals over pictures, AUC."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.errors import NotApplicable
from mmprobe.samples import Sample

_BLOCK = 100  # resamples in memory at a time


def picture_groups(samples: Sequence[Sample]) -> np.ndarray:
    """int [sample]: one number for samples that share a picture or a pair_id, be it by way of others.

    Example:
        >>> pairs = [Sample(id=name, question="?", pair_id=pair) for name, pair in zip("abc", "xyx")]
        >>> picture_groups(pairs).tolist()
        [0, 1, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    shared: dict[tuple[str, str], int] = {}
    ends = [(number, number) for number in range(len(samples))]
    for number, sample in enumerate(samples):
        keys = {("image", str(image)) for image in sample.images}
        keys |= {("pair", sample.pair_id)} if sample.pair_id is not None else set()
        ends += [(number, len(samples) + shared.setdefault(key, len(shared))) for key in keys]
    size = len(samples) + len(shared)
    links = coo_array((np.ones(len(ends)), tuple(np.array(ends).T)), shape=(size, size))
    _, component = connected_components(links, directed=False)
    return np.unique(component[: len(samples)], return_inverse=True)[1]


def assign_folds(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int, where: str) -> np.ndarray:
    """int [sample], the fold that holds a sample out: a group is in one fold, labels are spread evenly.

    Raises:
        NotApplicable: there are fewer groups than folds, or all samples of a label fall into one fold;
            `where` begins the message.

    Example:
        >>> labels, groups = np.tile([0, 1], 6), np.repeat(np.arange(6), 2)
        >>> np.bincount(assign_folds(labels, groups, 3, 0, "run")).tolist()
        [4, 4, 4]
    """
    from sklearn.model_selection import StratifiedGroupKFold

    found = len(np.unique(groups))
    if found < folds:
        raise NotApplicable(
            f"{where}: the labelled samples are over {found} sets of pictures, {folds} folds need {folds}; "
            "trace samples of other pictures, or give fewer folds"
        )
    fold = np.zeros(len(labels), int)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for number, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
        fold[held_out] = number
    for number in range(folds):
        if len(np.unique(labels[fold != number])) < len(np.unique(labels)):
            raise NotApplicable(
                f"{where}: all samples of a class share too few pictures to be divided into folds; "
                "trace samples of other pictures"
            )
    return fold


def shuffle_within_folds(
    labels: np.ndarray, groups: np.ndarray, fold: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The labels in another order: in each fold groups, and the samples of a group, are drawn at random.

    The drawn labels are laid over the fold's samples group by group, so that labels that go together with
    groups still do: with groups of one size they move as a whole.

    Example:
        >>> labels, groups = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
        >>> found = shuffle_within_folds(labels, groups, np.zeros(4, int), np.random.default_rng(0))
        >>> bool(found[0] == found[1] and found[2] == found[3])
        True
    """
    shuffled = labels.copy()
    for number in np.unique(fold):
        mine = np.flatnonzero(fold == number)
        place = rng.permutation(groups.max() + 1)[groups[mine]]
        drawn = mine[np.lexsort((rng.random(len(mine)), place))]
        shuffled[mine[np.argsort(groups[mine], kind="stable")]] = labels[drawn]
    return shuffled


def draw_groups(groups: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each resample of a bootstrap over groups holds each: int [resample, group]."""
    count = int(groups.max()) + 1
    rng, even = np.random.default_rng(seed), np.full(count, 1 / count)
    drawn = np.empty((resamples, count), np.uint16)
    for start in range(0, resamples, _BLOCK):
        block = drawn[start : start + _BLOCK]
        block[:] = rng.multinomial(count, even, size=len(block))
    return drawn


def interval(
    statistic: Callable[[np.ndarray], np.ndarray], drawn: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """Percentile interval [end, ...] of a statistic: weights [resample, sample] -> [..., resample].

    Resamples for which it is NaN, such as those without a class, are left out.
    """
    blocks = np.array_split(drawn, max(1, len(drawn) // _BLOCK))
    found = np.concatenate([statistic(block[:, groups].astype(float)) for block in blocks], -1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        return np.nanpercentile(found, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)], axis=-1)


def weighted_auc(score: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Area under the ROC curve for several weightings of the samples; ties count half.

    Args:
        score: [sample].
        positive: bool [sample].
        weights: [resample, sample], how often each sample counts; None for one resample of all samples once.

    Returns:
        [resample]; NaN where a class has no weight.

    Example:
        >>> weighted_auc(np.array([1, 2, 2, 3]), np.array([False, True, False, True])).tolist()
        [0.875]
    """
    weights = np.ones((1, len(score))) if weights is None else weights
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf) > 0)
    above, below = (
        np.add.reduceat(np.where(mine, weights, 0)[:, order], starts, axis=1, dtype=float)
        for mine in (positive, ~positive)
    )
    with np.errstate(invalid="ignore"):
        won = (above * (below.cumsum(1) - below / 2)).sum(1)
        return won / (above.sum(1) * below.sum(1))


def quick() -> AbstractContextManager[None]:
    """scikit-learn without the checks of its arguments, which take as long as a small fit."""
    from sklearn import config_context

    return config_context(assume_finite=True, skip_parameter_validation=True)
