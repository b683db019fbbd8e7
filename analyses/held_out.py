"""Sets of images, and cross-validation for classifiers of labels: folds over images."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from mmprobe.errors import NotApplicable
from mmprobe.samples import Sample


def image_groups(samples: Iterable[Sample]) -> np.ndarray:
    """Return the number of each sample's group, int [sample].

    Samples that share an image or a `pair_id` are in one group. If a shares an image with b, and b with c,
    then all three are in one group. Where there are no image files, `metadata["image"]` names the image. A
    question without its images is in the group of the question with them (`metadata["with_picture"]`).

    Example:
        >>> pairs = [Sample(id=name, question="?", pair_id=pair) for name, pair in zip("abc", "xyx")]
        >>> image_groups(pairs).tolist()
        [0, 1, 0]
    """
    groups = ImageGroups()
    for sample in samples:
        groups.add(sample)
    return groups.number()


class ImageGroups:
    """The groups of `image_groups`, of samples that come one at a time. It keeps what they share, not the samples.

    Attributes:
        ids: of the samples, in order.

    Example:
        >>> groups = ImageGroups()
        >>> for name, pair in zip("abc", "xyx"):
        ...     groups.add(Sample(id=name, question="?", pair_id=pair))
        >>> groups.number().tolist(), groups.number([0, 2]).tolist()
        ([0, 1, 0], [0, 0])
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._names: list[str] = []  # ids; of a question without its images, that of the one with them
        self._number_of: dict[str, int] = {}  # of each key: of an image or a pair
        self._keys = array("q")  # of all samples, one behind the other
        self._ends = array("q")  # of each sample's keys

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        keys = [f"image {image}" for image in sample.images]
        if not keys and "image" in sample.metadata:
            keys = [f"image {sample.metadata.get('subtask')}/{sample.metadata['image']}"]
        if sample.pair_id is not None:
            keys.append(f"pair {sample.pair_id}")
        self.ids.append(sample.id)
        self._names.append(str(sample.metadata.get("with_picture", sample.id)))
        self._keys.extend(self._number_of.setdefault(key, len(self._number_of)) for key in keys)
        self._ends.append(len(self._keys))

    def number(self, kept: Sequence[int] | None = None) -> np.ndarray:
        """Return the number of each sample's group, int [sample]; of the samples at these places alone."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        places = np.arange(len(self.ids)) if kept is None else np.array(kept, int)
        ends, all_keys = np.array(self._ends, int), np.array(self._keys, int)
        counts = np.diff(ends, prepend=0)[places]
        samples = np.repeat(np.arange(len(places)), counts)
        keys = all_keys[np.arange(counts.sum()) + np.repeat(ends[places] - counts.cumsum(), counts)]
        number_of_name: dict[str, int] = {}
        names = [number_of_name.setdefault(self._names[place], len(number_of_name)) for place in places]
        samples = np.append(samples, np.arange(len(places)))
        keys = np.append(keys, len(self._number_of) + np.array(names, int))
        size = len(places) + len(self._number_of) + len(number_of_name)
        graph = coo_array((np.ones(len(keys)), (samples, len(places) + keys)), shape=(size, size))
        _, component = connected_components(graph, directed=False)
        return np.unique(component[: len(places)], return_inverse=True)[1]


def assign_folds(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int, where: str) -> np.ndarray:
    """Return the fold that holds out each sample, int [sample].

    A group is in one fold. The labels are spread evenly over the folds.

    Args:
        where: start of the error message, such as the path of the run.

    Raises:
        NotApplicable: there are fewer groups than folds, or all samples of a label fall into one fold.

    Example:
        >>> labels, groups = np.tile([0, 1], 6), np.repeat(np.arange(6), 2)
        >>> np.bincount(assign_folds(labels, groups, 3, 0, "run")).tolist()
        [4, 4, 4]
    """
    from sklearn.model_selection import StratifiedGroupKFold

    n_groups = len(np.unique(groups))
    if n_groups < folds:
        raise NotApplicable(
            f"{where}: the labelled samples are over {n_groups} sets of images, {folds} folds need {folds}; "
            "trace samples of other images, or give fewer folds"
        )
    fold = np.zeros(len(labels), int)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for number, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
        fold[held_out] = number
    for number in range(folds):
        if len(np.unique(labels[fold != number])) < len(np.unique(labels)):
            raise NotApplicable(
                f"{where}: all samples of a class share too few images to be divided into folds; "
                "trace samples of other images"
            )
    return fold


def shuffle_within_folds(
    labels: np.ndarray, groups: np.ndarray, fold: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the labels shuffled within each fold, mostly in blocks of a group.

    The groups of a fold are shuffled, and the samples of each group. The labels in that order are given to
    the fold's samples group by group. So groups with one label keep one label if all groups have the same
    size.

    Example:
        >>> labels, groups = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
        >>> shuffled = shuffle_within_folds(labels, groups, np.zeros(4, int), np.random.default_rng(0))
        >>> bool(shuffled[0] == shuffled[1] and shuffled[2] == shuffled[3])
        True
    """
    shuffled = labels.copy()
    for number in np.unique(fold):
        members = np.flatnonzero(fold == number)
        place = rng.permutation(groups.max() + 1)[groups[members]]
        drawn = members[np.lexsort((rng.random(len(members)), place))]
        shuffled[members[np.argsort(groups[members], kind="stable")]] = labels[drawn]
    return shuffled


def skip_checks() -> AbstractContextManager[None]:
    """Skip scikit-learn's checks of its arguments, which take as long as a small fit."""
    from sklearn import config_context

    return config_context(assume_finite=True, skip_parameter_validation=True)
