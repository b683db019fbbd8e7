"""Read a trace. Arrays are labelled, and nothing is read before it is used."""

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

from mmprobe.cache.checksums import checked
from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.errors import InputError, NotCaptured
from mmprobe.samples import Sample

LABELLED = {"layer", "head", "group"}  # dimensions whose values are more than plain counts


class _Array:
    """An attribute of `Trace` that reads one data set, lazily and with its coordinates."""

    def __init__(self, path: str):
        self.path = path

    def __get__(self, trace: Trace | None, owner: type) -> Any:
        return self if trace is None else trace.array(self.path)


class _Stored(BackendArray):
    """One data set on disk, read when it is indexed; damage that is found then is an InputError."""

    def __init__(self, trace: Trace, path: str, data: h5d.DatasetID):
        self.trace, self.path = trace, path.encode()
        self.shape, self.dtype = data.shape, data.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        if all(isinstance(part, slice) and part == slice(None) for part in key.tuple):
            return self._whole()
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER_1VECTOR, self._read)

    def _whole(self) -> np.ndarray:
        """What is asked for most often, at a third of the calls."""
        values = np.empty(self.shape, self.dtype)
        with self.trace._opened() as root:
            h5d.open(root.id, self.path).read(h5s.ALL, h5s.ALL, values)
            if self.dtype == object:
                values[...] = [text.decode() for text in values]
        return values

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        with self.trace._opened() as root:
            data = h5py.Dataset(h5d.open(root.id, self.path))
            return data.asstr()[key] if self.dtype == object else data[key]


class Trace:
    """What was recorded while a model answered one sample.

    Example:
        >>> t = open_run("runs/demo")["0001"]                       # doctest: +SKIP
        >>> t.attention_mass.sel(group="visual").mean("head")       # doctest: +SKIP
    """

    attention_mass = _Array("attention/mass")
    attention_leading = _Array("attention/leading")
    attention_visual = _Array("attention/visual")
    attention_visual_head = _Array("attention/visual_head")
    residual_pre = _Array("residual/pre")
    residual_mid = _Array("residual/mid")
    residual_post = _Array("residual/post")
    update_cos_mha = _Array("update/cos_mha")
    update_cos_ffn = _Array("update/cos_ffn")
    update_kl = _Array("update/kl")
    ffn_gate_sum = _Array("ffn/gate_sum")
    tam_logit = _Array("tam/logit")
    tam_prompt = _Array("tam/prompt")

    def __init__(self, file: Path, root: str = "/"):
        self._file, self._root = file, root
        self._attributes: dict[str, Any] = {}
        self._arrays: dict[str, xr.DataArray] = {}
        self._groups: dict[str, xr.Dataset] = {}
        self._held: h5py.Group | None = None

    def __repr__(self) -> str:
        return f"<Trace {self.id}: {self.answer!r}>"

    @contextmanager
    def _opened(self) -> Iterator[h5py.Group]:
        """Where the trace is in its file, which is closed after the block; what cannot be read is an InputError."""
        try:
            if self._held is not None:
                yield self._held
                return
            with checked(self._file) as file:
                root = file[self._root] if self._root != "/" else file
                version = root.attrs.get("mmprobe_format")
                if version != FORMAT_VERSION:
                    raise InputError(
                        f"{self._file}: trace format {version}, this mmprobe reads {FORMAT_VERSION}"
                    )
                yield root
        except InputError:
            raise
        except (OSError, KeyError, RuntimeError, SystemError, ValueError) as error:
            raise self._damaged(error) from None

    @contextmanager
    def held_open(self) -> Iterator[Trace]:
        """Within the block the file stays open between reads, whose opening takes longer than many a read.

        Example:
            >>> with run["0001"].held_open() as trace:              # doctest: +SKIP
            ...     trace.attention_mass.values, trace.update_kl.values
        """
        opened = self._opened()
        self._held = opened.__enter__()
        try:
            yield self
        finally:  # what goes wrong within the block is no damage of the file
            self._held = None
            opened.__exit__(None, None, None)

    @property
    def _header(self) -> dict[str, Any]:
        """Texts about the whole trace."""
        if not self._attributes:
            with self._opened() as root:
                self._attributes = dict(root.attrs)
        return self._attributes

    def _damaged(self, error: Exception) -> InputError:
        if not self._file.exists():
            return InputError(f"{self._file}: no such trace")
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "plugin" in reason:
            return InputError(
                f"{self._file}: is compressed; reading it needs: pip install 'mmprobe[compression]'"
            )
        return InputError(f"{self._file}: damaged trace ({reason}); delete it and trace again with --resume")

    def dataset(self, name: str) -> xr.Dataset:
        """One group of data sets: tokens, images, steps, attention, residual, update, ffn or tam."""
        if name not in self._groups:
            with self._opened() as root:
                found = {key: self._array(root, f"{name}/{key}") for key in root[name]}
            self._groups[name] = xr.Dataset(found)
        return self._groups[name]

    def array(self, path: str) -> xr.DataArray:
        """One data set by its path in the file.

        Raises:
            NotCaptured: the capture did not record it.
            InputError: the file is damaged.
        """
        if path not in self._arrays:
            with self._opened() as root:
                self._array(root, path)
        return self._arrays[path]

    def _array(self, root: h5py.Group, path: str) -> xr.DataArray:
        if path not in self._arrays:
            try:
                variable, data = VARIABLES[path], h5d.open(root.id, path.encode())
            except KeyError:
                raise NotCaptured(
                    f"trace {self.id}: {path} was not captured; name it in a capture file, or see whether --capture full has it"
                ) from None
            about = {"long_name": variable.long_name, "units": variable.units}
            lazy = MemoryCachedArray(CopyOnWriteArray(LazilyIndexedArray(_Stored(self, path, data))))  # type: ignore[arg-type]
            self._arrays[path] = _bare(root, variable.dims)._replace(
                xr.Variable(variable.dims, lazy, about),  # type: ignore[arg-type]
                name=path.rpartition("/")[2],
            )
        return self._arrays[path]

    @property
    def captured(self) -> tuple[str, ...]:
        """Paths of all data sets in the file, as `array` takes them."""
        return self._captured

    @cached_property
    def _captured(self) -> tuple[str, ...]:
        names: list[str] = []
        with self._opened() as root:
            for name in root:
                if h5o.get_info(root.id, name.encode()).type == h5o.TYPE_GROUP:  # the others are scales
                    names += [f"{name}/{key}" for key in root[name]]
        return tuple(names)

    @property
    def id(self) -> str:
        return self.sample.id

    @cached_property
    def sample(self) -> Sample:
        try:
            return Sample.model_validate_json(self._header["sample"])
        except (KeyError, ValueError) as error:
            raise self._damaged(error) from None

    @property
    def answer(self) -> str:
        """The generated text, without special tokens."""
        try:
            return self._header["answer"]
        except KeyError as error:
            raise self._damaged(error) from None

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
        """bool (step, layer, neuron): SiLU(gate) > 0; read at once, being stored as bits."""
        packed = self.array("ffn/active")
        neurons = int(self._header["neurons"])
        bits = np.unpackbits(packed.values, axis=-1, count=neurons).astype(bool)
        return xr.DataArray(bits, dims=("step", "layer", "neuron"), coords={"layer": packed["layer"]})

    def to_activation_cache(self, model: Any | None = None) -> Any:
        """The residual streams as a TransformerLens `ActivationCache`, whose positions are the steps' queries.

        It holds `resid_pre`, `resid_mid`, `resid_post` of the captured layers, each [step, hidden], and their
        differences as `attn_out` and `mlp_out`, in single precision.

        Args:
            model: a TransformerLens model or bridge, for methods of the cache that need weights.

        Raises:
            NotCaptured: no residual stream was captured.

        Example:
            >>> cache = open_run("runs/demo")["0001"].to_activation_cache()     # doctest: +SKIP
            >>> cache["resid_mid", 3].shape                                     # doctest: +SKIP
            torch.Size([45, 192])
        """
        from mmprobe.probes.activation_cache import activation_cache

        return activation_cache(self, model)

    def close(self) -> None:
        """Let go of everything that was read; no file stays open between reads."""
        self._arrays.clear()
        self._groups.clear()


def _bare(root: h5py.Group, dims: tuple[str, ...]) -> xr.DataArray:
    """An array with the coordinates of these dimensions; to copy one takes a fifth of making it."""
    labels = tuple((dim, _labels(root, dim)) for dim in dims if dim in LABELLED)
    return _labelled(labels).copy(deep=False)


def _labels(root: h5py.Group, dim: str) -> tuple[Any, ...]:
    stored = h5d.open(root.id, dim.encode())
    values = np.empty(stored.shape, stored.dtype)
    stored.read(h5s.ALL, h5s.ALL, values)
    return tuple(value.decode() if dim == "group" else value for value in values.tolist())


@lru_cache(64)  # nearly all traces of a run have the same, which take longer to make than to read
def _labelled(labels: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.DataArray:
    found = {dim: np.array(values, str if dim == "group" else np.int32) for dim, values in labels}
    return xr.DataArray(np.zeros([len(values) for values in found.values()]), found)
