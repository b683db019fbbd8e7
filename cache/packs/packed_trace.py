"""A trace in a packed file: its numbers by the file's index, everything else through HDF5."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from mmprobe.cache.check import CheckedGroup
from mmprobe.cache.packs.packed_file import INDEXED_DIMS, PackedFile
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError


class PackedTrace:
    """What `CheckedGroup` is to a trace's own file. HDF5's group is opened when something is not in the index.

    Args:
        packed: the open file.
        group: path of the trace's group in it.
        sample_id: id of the sample that the trace must belong to.
    """

    def __init__(self, packed: PackedFile, group: str, sample_id: str):
        self.packed, self.group, self.sample_id = packed, group, sample_id

    @cached_property
    def checked(self) -> CheckedGroup:
        """The group as HDF5 reads it."""
        return CheckedGroup(self.packed.path, self.packed.file, self.group, self.sample_id)

    def describe(self, path: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """Return the shape and the numpy type of a data set; None if the trace does not have it."""
        found = self.packed.find(self.sample_id, path)
        return self.checked.describe(path) if found is None else found[1:]

    def read(self, path: str, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values of a data set that the trace has, or a part of them."""
        if self.packed.find(self.sample_id, path) is None:
            return self.checked.read(path, key)
        values = self.packed.read(self.sample_id, path)
        return values if key is None else values[key]

    def coordinate(self, dim: str) -> list[int] | list[str]:
        """Return the values of a dimension, such as the captured layers."""
        if dim == "group":
            return list(GROUP_NAMES)
        if dim not in INDEXED_DIMS or self.packed.find(self.sample_id, dim) is None:
            return self.checked.coordinate(dim)
        return self.packed.read(self.sample_id, dim).tolist()

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names the file, an entry and its problem."""
        return self.checked.error(name, problem)

    def __getattr__(self, name: str) -> Any:  # what the index does not know
        return getattr(self.checked, name)


TraceGroup = CheckedGroup | PackedTrace
