"""Sets of samples that share something, such as an image: what intervals draw and folds hold out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np


def number_sets(keys: Iterable[Iterable[str]]) -> np.ndarray:
    """Return the number of each sample's set, int [sample], in the order of each set's first sample.

    Samples that have a key in common are one set. If a shares a key with b, and b another with c, then all three
    are one set.

    Args:
        keys: of each sample, what it may share with others.

    Example:
        >>> number_sets([["image 1"], ["image 2"], ["image 1", "pair a"]]).tolist()
        [0, 1, 0]
    """
    sets = Sets()
    for number, own in enumerate(keys):
        sets.add(str(number), own)
    return sets.number()


class Sets:
    """The sets of `number_sets`, of samples that come one at a time. It keeps their keys' numbers, not the samples.

    Attributes:
        names: of the samples, in order.

    Example:
        >>> sets = Sets()
        >>> for name, pair in zip("abc", "xyx"):
        ...     sets.add(name, [f"pair {pair}"])
        >>> sets.number().tolist(), sets.number([0, 2]).tolist()
        ([0, 1, 0], [0, 0])
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number_of: dict[str, int] = {}  # of each key
        self._keys = array("q")  # of all samples, one sample's after the other's
        self._ends = array("q")  # of each sample's keys

    def add(self, name: str, keys: Iterable[str]) -> None:
        """Add the next sample."""
        self.names.append(name)
        self._keys.extend(self._number_of.setdefault(key, len(self._number_of)) for key in keys)
        self._ends.append(len(self._keys))

    def number(self, kept: Sequence[int] | None = None) -> np.ndarray:
        """Return the number of each sample's set, int [sample]; of the samples at these places alone."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        places = np.arange(len(self.names)) if kept is None else np.array(kept, int)
        ends, all_keys = np.array(self._ends, int), np.array(self._keys, int)
        counts = np.diff(ends, prepend=0)[places]
        samples = np.repeat(np.arange(len(places)), counts)
        keys = all_keys[np.arange(counts.sum()) + np.repeat(ends[places] - counts.cumsum(), counts)]
        size = len(places) + len(self._number_of)
        graph = coo_array((np.ones(len(keys)), (samples, len(places) + keys)), shape=(size, size))
        _, component = connected_components(graph, directed=False)
        return np.unique(component[: len(places)], return_inverse=True)[1]
