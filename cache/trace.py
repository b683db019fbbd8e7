"""Read a trace as labelled arrays, which are read when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5d, h5o, h5s
from xarray.backends import BackendArray
from xarray.core.indexing import (
    CopyOnWriteArray,
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    MemoryCachedArray,
    explicit_indexing_adapter,
)

from mmprobe.cache.checksums import open_checked
from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.errors import InputError, NotCaptured
from mmprobe.samples import Sample

LABELLED = {"layer", "head", "group"}  # dimensions with coordinates


class _ArrayAttribute:
    """An attribute of `Trace` that returns one data set as a lazy array."""

    def __init__(self, path: str):
        self.path = path

    def __get__(self, trace: Trace | None, owner: type) -> Any:
        return self if trace is None else trace.array(self.path)


class _StoredArray(BackendArray):
    """One data set on disk, read when it is indexed; if it is damaged, this raises InputError."""

    def __init__(self, trace: Trace, path: str, data: h5d.DatasetID):
        self.trace, self.path = trace, path.encode()
        self.shape, self.dtype = data.shape, data.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        if all(isinstance(part, slice) and part == slice(None) for part in key.tuple):
            return self._read_all()
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER_1VECTOR, self._read)

    def _read_all(self) -> np.ndarray:
        """Return all values, with a third of the calls that `_read` needs."""
        values = np.empty(self.shape, self.dtype)
        with self.trace._open() as root:
            h5d.open(root.id, self.path).read(h5s.ALL, h5s.ALL, values)
            if self.dtype == object:
                values[...] = [text.decode() for text in values]
        return values

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        with self.trace._open() as root:
            data = h5py.Dataset(h5d.open(root.id, self.path))
            return data.asstr()[key] if self.dtype == object else data[key]


class Trace:
    """What was recorded while a model answered one sample.

    Attributes:
        file: the HDF5 file.
        group: the trace's group in the file; `/` unless the run is packed.

    Example:
        >>> t = open_run("runs/demo")["0001"]                       # doctest: +SKIP
        >>> t.attention_mass.sel(group="visual").mean("head")       # doctest: +SKIP
    """

    attention_mass = _ArrayAttribute("attention/mass")
    attention_leading = _ArrayAttribute("attention/leading")
    attention_visual = _ArrayAttribute("attention/visual")
    attention_visual_head = _ArrayAttribute("attention/visual_head")
    residual_pre = _ArrayAttribute("residual/pre")
    residual_mid = _ArrayAttribute("residual/mid")
    residual_post = _ArrayAttribute("residual/post")
    update_cos_mha = _ArrayAttribute("update/cos_mha")
    update_cos_ffn = _ArrayAttribute("update/cos_ffn")
    update_kl = _ArrayAttribute("update/kl")
    ffn_gate_sum = _ArrayAttribute("ffn/gate_sum")
    tam_logit = _ArrayAttribute("tam/logit")
    tam_prompt = _ArrayAttribute("tam/prompt")

    def __init__(self, file: Path, group: str = "/"):
        self.file, self.group = file, group
        self._attributes: dict[str, Any] = {}
        self._arrays: dict[str, xr.DataArray] = {}
        self._datasets: dict[str, xr.Dataset] = {}
        self._root: h5py.Group | None = None  # while `keep_open` is active

    def __repr__(self) -> str:
        return f"<Trace {self.id}: {self.answer!r}>"

    @contextmanager
    def _open(self) -> Iterator[h5py.Group]:
        """Yield the trace's group, and close the file after the block.

        Raises:
            InputError: the trace cannot be read.
        """
        try:
            if self._root is not None:
                yield self._root
                return
            with open_checked(self.file) as file:
                root = file[self.group] if self.group != "/" else file
                version = root.attrs.get("mmprobe_format")
                if version != FORMAT_VERSION:
                    raise InputError(
                        f"{self.file}: trace format {version}, this mmprobe reads {FORMAT_VERSION}"
                    )
                yield root
        except InputError:
            raise
        except (OSError, KeyError, RuntimeError, SystemError, ValueError) as error:
            raise self.damage_error(error) from None

    @contextmanager
    def keep_open(self) -> Iterator[Trace]:
        """Within the block, keep the file open between reads. Opening it can take longer than reading.

        Example:
            >>> with run["0001"].keep_open() as trace:              # doctest: +SKIP
            ...     trace.attention_mass.values, trace.update_kl.values
        """
        opened = self._open()
        self._root = opened.__enter__()
        try:
            yield self
        finally:  # an error of the block is not passed to `_open`, which would report a damaged file
            self._root = None
            opened.__exit__(None, None, None)

    @property
    def _header(self) -> dict[str, Any]:
        """The root's attributes."""
        if not self._attributes:
            with self._open() as root:
                self._attributes = dict(root.attrs)
        return self._attributes

    def damage_error(self, error: Exception) -> InputError:
        """Return an error that says why the trace cannot be read, and what to do."""
        if not self.file.exists():
            return InputError(f"{self.file}: no such trace")
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "plugin" in reason:
            return InputError(
                f"{self.file}: is compressed; reading it needs: pip install 'mmprobe[compression]'"
            )
        return InputError(
            f"{self.file}: damaged trace ({reason}); delete it and trace again with resume=True"
        )

    def dataset(self, name: str) -> xr.Dataset:
        """Return one group of data sets: tokens, images, steps, attention, residual, update, ffn or tam."""
        if name not in self._datasets:
            with self._open() as root:
                arrays = {key: self._array(root, f"{name}/{key}") for key in root[name]}
            self._datasets[name] = xr.Dataset(arrays)
        return self._datasets[name]

    def array(self, path: str) -> xr.DataArray:
        """Return one data set by its path in the file, such as `residual/mid`.

        Raises:
            NotCaptured: the capture did not record the data set.
            InputError: the file is damaged.
        """
        if path not in self._arrays:
            with self._open() as root:
                self._array(root, path)
        return self._arrays[path]

    def _array(self, root: h5py.Group, path: str) -> xr.DataArray:
        if path not in self._arrays:
            try:
                variable, data = VARIABLES[path], h5d.open(root.id, path.encode())
            except KeyError:
                raise NotCaptured(
                    f"trace {self.id}: {path} was not captured; name it in a capture file, "
                    'or see whether capture="full" records it'
                ) from None
            attributes = {"long_name": variable.long_name, "units": variable.units}
            lazy = MemoryCachedArray(CopyOnWriteArray(LazilyIndexedArray(_StoredArray(self, path, data))))  # type: ignore[arg-type]
            self._arrays[path] = _empty_array(root, variable.dims)._replace(
                xr.Variable(variable.dims, lazy, attributes),  # type: ignore[arg-type]
                name=path.rpartition("/")[2],
            )
        return self._arrays[path]

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Paths of all data sets in the file, as `array` takes them."""
        names: list[str] = []
        with self._open() as root:
            for name in root:
                if h5o.get_info(root.id, name.encode()).type == h5o.TYPE_GROUP:  # not a dimension scale
                    names += [f"{name}/{key}" for key in root[name]]
        return tuple(names)

    @property
    def id(self) -> str:
        """The sample's id."""
        return self.sample.id

    @cached_property
    def sample(self) -> Sample:
        """The sample that the model answered."""
        try:
            return Sample.model_validate_json(self._header["sample"])
        except (KeyError, ValueError) as error:
            raise self.damage_error(error) from None

    @property
    def answer(self) -> str:
        """The generated text, without special tokens."""
        try:
            return self._header["answer"]
        except KeyError as error:
            raise self.damage_error(error) from None

    @property
    def tokens(self) -> xr.Dataset:
        """Data set over `token`: id, group, image, text."""
        return self.dataset("tokens")

    @property
    def steps(self) -> xr.Dataset:
        """Data set over `step`: id, logprob, entropy."""
        return self.dataset("steps")

    @property
    def images(self) -> xr.Dataset:
        """Data set over `image` and `axis` (height, width): grid, size."""
        return self.dataset("images")

    @property
    def ffn_active(self) -> xr.DataArray:
        """bool (step, layer, neuron): SiLU(gate) > 0. It is read at once, since it is stored as bits."""
        packed = self.array("ffn/active")
        neurons = int(self._header["neurons"])
        bits = np.unpackbits(packed.values, axis=-1, count=neurons).astype(bool)
        return xr.DataArray(bits, dims=("step", "layer", "neuron"), coords={"layer": packed["layer"]})

    def to_activation_cache(self, model: Any | None = None) -> Any:
        """Return the residual stream as a TransformerLens `ActivationCache`.

        Its positions are the steps' queries. It holds `resid_pre`, `resid_mid` and `resid_post` of the captured
        layers, each float32 [step, hidden], and their differences as `attn_out` and `mlp_out`.

        Args:
            model: a TransformerLens model or bridge; some methods of the cache need its weights.

        Raises:
            NotCaptured: no residual stream was captured.

        Example:
            >>> cache = open_run("runs/demo")["0001"].to_activation_cache()     # doctest: +SKIP
            >>> cache["resid_mid", 3].shape                                     # doctest: +SKIP
            torch.Size([45, 192])
        """
        from mmprobe.cache.activation_cache import activation_cache

        return activation_cache(self, model)

    def close(self) -> None:
        """Free everything that was read. No file stays open between reads."""
        self._arrays.clear()
        self._datasets.clear()


def _empty_array(root: h5py.Group, dims: tuple[str, ...]) -> xr.DataArray:
    """Return an array with the coordinates of these dimensions. Copying one is five times as fast."""
    coordinates = tuple((dim, _read_coordinate(root, dim)) for dim in dims if dim in LABELLED)
    return _make_empty_array(coordinates).copy(deep=False)


def _read_coordinate(root: h5py.Group, dim: str) -> tuple[Any, ...]:
    stored = h5d.open(root.id, dim.encode())
    values = np.empty(stored.shape, stored.dtype)
    stored.read(h5s.ALL, h5s.ALL, values)
    return tuple(value.decode() if dim == "group" else value for value in values.tolist())


@lru_cache(64)  # most traces of a run have the same coordinates, which take longer to make than to read
def _make_empty_array(coordinates: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.DataArray:
    arrays = {dim: np.array(values, str if dim == "group" else np.int32) for dim, values in coordinates}
    return xr.DataArray(np.zeros([len(values) for values in arrays.values()]), arrays)
