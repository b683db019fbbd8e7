"""Write one trace as an HDF5 file that appears only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np

from mmprobe.cache.schema import BLOCK_STEPS, FORMAT_VERSION, VARIABLES
from mmprobe.cache.seal import SEAL_BYTES, seal

_TEXT = h5py.string_dtype()
_FREE = {"step", "token"}  # dimensions whose length is known only when the answer has ended


class TraceWriter:
    """Writes `<path>.part` step by step; leaving the `with` block makes it durable and names it `path`.

    Nothing is left behind when the block is left by an exception.

    Args:
        path: the trace to write.
        coordinates: for each dimension its values (`layer` the captured layers, `group` their names, …);
            `step` and `token` are not among them.
        attributes: texts about the whole trace (sample, model, answer …).
        half: store the data sets that the format has in float16 so; False makes them float32.

    Example:
        >>> import tempfile
        >>> with TraceWriter(Path(tempfile.mkdtemp()) / "a.h5", {"layer": np.arange(2)}) as writer:
        ...     writer.append("update/kl", np.zeros((3, 2), np.float32))
    """

    def __init__(
        self,
        path: Path,
        coordinates: Mapping[str, np.ndarray],
        attributes: Mapping[str, str] = {},
        half: bool = True,
    ):
        self.path, self.half = path, half
        self.part = path.with_name(path.name + ".part")
        self.file = h5py.File(self.part, "w", libver=("v110", "v110"), userblock_size=SEAL_BYTES)
        self.file.attrs["mmprobe_format"] = FORMAT_VERSION
        self.scales: dict[str, h5py.Dataset] = {}
        for name, values in coordinates.items():
            self._scale(name, np.asarray(values))
        self.set_attributes(attributes)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            self.file.close()
            self.part.unlink(missing_ok=True)

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        self.file.attrs.update(attributes)

    def append(self, name: str, block: np.ndarray) -> None:
        """Add a block of steps to a data set whose first dimension is `step`.

        For `tam/logit`, whose rows grow with the answer, what lies beyond a row's end is NaN.
        """
        if name not in self.file:
            self._create(name, (0, *block.shape[1:]))
        data = self._widened(name, block)
        start = data.shape[0]
        wanted = [start + len(block), *data.shape[1:]]
        if "token" in VARIABLES[name].dims:
            wanted[1] = max(wanted[1], block.shape[1])
        data.resize(wanted)
        data[(slice(start, None), *map(slice, block.shape[1:]))] = block

    def write(self, name: str, values: np.ndarray) -> None:
        """Write a whole data set at once."""
        if VARIABLES[name].dtype == "str":
            self._create(name, np.shape(values))[...] = np.asarray(values, object)
        else:
            self._create(name, np.shape(values))
            self._widened(name, values)[...] = values

    def _widened(self, name: str, values: np.ndarray) -> h5py.Dataset:
        """The data set, made float32 if it is float16 and a finite value would overflow it."""
        data = self.file[name]
        if data.dtype != np.float16 or values.dtype == np.float16:
            return data
        if not (np.abs(values[np.isfinite(values)]) > np.finfo(np.float16).max).any():
            return data
        old = data[...]
        del self.file[name]
        data = self._create(name, old.shape, dtype="f4")
        data[...] = old
        return data

    def _create(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> h5py.Dataset:
        variable = VARIABLES[name]
        text = variable.dtype == "str"
        free = [dim in _FREE for dim in variable.dims]
        chunks = tuple(
            max(1, BLOCK_STEPS if dim == "step" else min(size, 4096) if not loose else 256)
            for dim, size, loose in zip(variable.dims, shape, free, strict=True)
        )
        single = variable.dtype == "f2" and not self.half
        stored = _TEXT if text else np.dtype(dtype or ("f4" if single else variable.dtype))
        data = self.file.create_dataset(
            name,
            shape,
            stored,
            chunks=None if text else chunks,
            # HDF5 wants chunks of 1 at least, and no larger than a dimension that cannot grow: not even one of 0.
            maxshape=None
            if text
            else tuple(None if loose or not n else n for loose, n in zip(free, shape, strict=True)),
            fletcher32=not text,
            fillvalue=np.nan if stored.kind == "f" else None,
        )
        data.attrs["long_name"] = variable.long_name
        data.attrs["units"] = variable.units
        return data

    def _scale(self, name: str, values: np.ndarray) -> None:
        stored = values.astype(object) if values.dtype.kind in "UO" else values.astype("i4")
        scale = self.file.create_dataset(name, data=stored, dtype=_TEXT if stored.dtype == object else None)
        scale.make_scale(name)
        self.scales[name] = scale

    def _commit(self) -> None:
        lengths: dict[str, int] = {}
        for name, variable in VARIABLES.items():
            if name in self.file:
                for dim, size in zip(variable.dims, self.file[name].shape, strict=True):
                    lengths[dim] = max(size, lengths.get(dim, 0))
        for dim, size in lengths.items():
            if dim not in self.scales:
                self._scale(dim, np.arange(size))
        for name, variable in VARIABLES.items():
            if name not in self.file:
                continue
            data = self.file[name]
            wanted = tuple(len(self.scales[dim]) for dim in variable.dims)
            if variable.dims == (
                "step",
                "token",
            ):  # rows grow with the answer, whose last token is never a query
                data.resize(wanted[1], axis=1)
            if data.shape != wanted:
                raise ValueError(f"{name} has shape {data.shape}, its dimensions say {wanted}")
            for axis, dim in enumerate(variable.dims):
                data.dims[axis].attach_scale(self.scales[dim])
        self.file.close()
        with open(self.part, "r+b") as written:
            seal(written)
            os.fsync(written.fileno())
        os.replace(self.part, self.path)
