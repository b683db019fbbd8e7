"""Read a trace as labelled arrays, which are read when they are used: from its own file, or from one of packed traces.

Each part of a file is checked against the schema before it is read. Checksums find damage. They do not find forgery,
since whoever changes a file can compute them again. Through HDF5 a file can lead to other files, and it can declare more
data than it contains. So links, types, shapes and stored sizes are checked here, and so is that tokens, views and images
agree with each other.

Traces that are packed into one file have an index of their offsets in it. They are read by the index, and through HDF5
where something is not in the index.
"""

from __future__ import annotations

import itertools
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import xarray as xr
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5s, h5t, h5z
from xarray.backends import BackendArray
from xarray.core.indexing import (
    CopyOnWriteArray,
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    MemoryCachedArray,
    explicit_indexing_adapter,
)

from mmprobe.cache.hdf5 import (
    CREATE_GROUPS,
    CheckedFile,
    ReservedSpace,
    append_checksums,
    check_checksums,
    create_file,
    hdf5_type,
    open_checked,
    open_with_pages,
    repeat_interrupt,
)
from mmprobe.cache.schema import (
    DIM_SIZES,
    DIMS,
    FORMAT_VERSION,
    GROUP_NAMES,
    OF_VIDEOS,
    READ_VERSIONS,
    SPANS,
    TEXT_ATTRIBUTES,
    VARIABLES,
    WHOLE_GROUPS,
)
from mmprobe.errors import InputError, NotCaptured, option
from mmprobe.files import JsonRecord, NewFile, parse_record
from mmprobe.ledger import hash_images
from mmprobe.notebook import show_fields
from mmprobe.samples import MAX_IMAGE_PIXELS, Sample
from mmprobe.thoughts import SPAN_NAMES, check_span, find_opened, find_spans

SUMS = ("ffn/gate_sum", "ffn/gate_first")  # of all steps, or of the first one
LABELLED = {"layer", "head", "group"}  # dimensions with coordinates


class StoredArray(BackendArray):
    """One data set on disk, read when it is indexed; if it is damaged, this raises InputError.

    Args:
        file: path of the file, for messages.
        open_root: opens the trace.
        path: path of the data set in the trace.
        shape, dtype: of the data set.
        has_groups: whether the last dimension is that of the token groups, of which an older trace has fewer.
    """

    def __init__(
        self,
        file: Path,
        open_root: Callable[[], AbstractContextManager[TraceGroup]],
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        has_groups: bool = False,
    ):
        self.file, self.open_root, self.path = file, open_root, path
        self.stored, self.dtype, self.has_groups = shape, dtype, has_groups
        self.shape = (*shape[:-1], len(GROUP_NAMES)) if has_groups else shape

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        if all(isinstance(part, slice) and part == slice(None) for part in key.tuple):
            return self._read()
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER_1VECTOR, self._read)

    def _read(self, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values, or a part. HDF5 would write past an array's end if the shape had changed."""
        with self.open_root() as root:
            if root.describe(self.path) != (self.stored, self.dtype):
                raise InputError(f"{self.file}: was changed while {self.path} was in use; open it again")
            if self.stored == self.shape:
                return root.read(self.path, key)
            if key is None:
                return add_groups(root.read(self.path))
            return add_groups(root.read(self.path, (*key[:-1], slice(None))))[..., key[-1]]


def empty_array(root: TraceGroup, dims: tuple[str, ...]) -> xr.DataArray:
    """Return an array with the coordinates of these dimensions. Copying one is five times as fast."""
    coordinates = tuple((dim, tuple(root.coordinate(dim))) for dim in dims if dim in LABELLED)
    return _make_array(coordinates).copy(deep=False)


@lru_cache(64)  # most traces of a run have the same coordinates, which take longer to make than to read
def _make_array(coordinates: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.DataArray:
    arrays = {dim: label_array(dim, values) for dim, values in coordinates}
    return xr.DataArray(np.zeros([len(values) for values in arrays.values()]), arrays)


def label_array(dim: str, labels: tuple[Any, ...]) -> np.ndarray:
    """Return the coordinate of a dimension from its labels."""
    return np.array(labels, str if dim == "group" else np.int32)


class _ArrayAttribute:
    """An attribute of `Trace` that returns one data set as a lazy array."""

    def __init__(self, path: str):
        self.path = path

    def __get__(self, trace: Trace | None, owner: type) -> Any:
        return self if trace is None else trace.array(self.path)


class Trace:
    """What was recorded while a model answered one sample.

    Attributes:
        file: the HDF5 file.
        group: the trace's group in the file; `/` unless the run is packed.
        span: the span of the answer whose steps alone it shows; None for all.

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

    def __init__(self, file: Path, group: str = "/", span: str | None = None):
        self.file, self.group, self.span = file, group, span
        self._attributes: dict[str, str] = {}
        self._arrays: dict[str, xr.DataArray] = {}
        self._datasets: dict[str, xr.Dataset] = {}
        self._root: TraceGroup | None = None  # while `keep_open` is active

    def __repr__(self) -> str:
        return f"<Trace {self.id}: {self.answer!r}>"

    @contextmanager
    def _open(self, opened: PackedFile | None = None) -> Iterator[TraceGroup]:
        """Yield the trace's group, and close the file after the block, unless it was opened before.

        Raises:
            InputError: the trace cannot be read, or belongs to another sample.
        """
        try:
            if self._root is not None:
                yield self._root
                return
            if opened is not None:
                yield PackedTrace(opened, self.group, self._sample_id)
                return
            with open_checked(self.file) as file:
                yield CheckedGroup(self.file, file, self.group, self._sample_id)
        except InputError:
            raise
        except (OSError, KeyError, RuntimeError, SystemError, ValueError) as error:
            raise self.damage_error(error) from None

    @property
    def _sample_id(self) -> str:
        """The sample's id, from the name of the file or of the group."""
        return self.file.name.removesuffix(".h5") if self.group == "/" else self.group.rpartition("/")[2]

    @contextmanager
    def keep_open(self, opened: PackedFile | None = None) -> Iterator[Trace]:
        """Within the block, keep the file open between reads. Opening it can take longer than reading.

        Args:
            opened: the packed file that the trace is in, where it is open already and stays so.

        Example:
            >>> with run["0001"].keep_open() as trace:              # doctest: +SKIP
            ...     trace.attention_mass.values, trace.update_kl.values
        """
        group = self._open(opened)
        self._root = group.__enter__()
        try:
            yield self
        finally:  # an error of the block is not passed to `_open`, which would report a damaged file
            self._root = None
            group.__exit__(None, None, None)

    def _text(self, name: str) -> str:
        """Return a text attribute of the trace."""
        if name not in self._attributes:
            with self._open() as root:
                text = root.text(name)
            if text is None:
                raise self.damage_error(KeyError(f"it has no {name}"))
            self._attributes[name] = text
        return self._attributes[name]

    def check(self) -> None:
        """Check the whole trace against the trace format, without reading its numbers.

        Raises:
            InputError: something differs from the format, or the trace belongs to another sample.

        Example:
            >>> open_run("runs/demo")["0001"].check()               # doctest: +SKIP
        """
        with self._open() as root:
            root.check_all()
            check_views(root)
        if "ffn/active" in self.captured:
            self._count_neurons()
        self.sample, self.answer  # noqa: B018  # raise if they are missing

    def damage_error(self, error: Exception) -> InputError:
        """Return an error that says why the trace cannot be read, and what to do."""
        repeat_interrupt(error)
        if not self.file.exists():
            return InputError(f"{self.file}: no such trace")
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "plugin" in reason:
            return InputError(
                f"{self.file}: is compressed; reading it needs: pip install 'mmprobe[compression]'"
            )
        return InputError(
            f"{self.file}: damaged trace ({reason}); delete it and trace again with {option('resume')}"
        )

    def dataset(self, name: str) -> xr.Dataset:
        """Return one group of data sets: tokens, images, steps, attention, residual, update, ffn or tam."""
        if name not in self._datasets:
            with self._open() as root:
                paths = [path for path in root.paths() if path.startswith(f"{name}/")]
                paths = [path for path in paths if self.span is None or path not in SUMS]
                arrays = {path.rpartition("/")[2]: self._array(root, path) for path in paths}
            if not arrays:
                raise NotCaptured(f"trace {self.id}: nothing of {name} was captured")
            self._datasets[name] = xr.Dataset(arrays)
        return self._datasets[name]

    def array(self, path: str) -> xr.DataArray:
        """Return one data set by its path in the file, such as `residual/mid`.

        Raises:
            NotCaptured: the capture did not record the data set, or it cannot be limited to the trace's span.
            InputError: the file is damaged.
        """
        if path not in self._arrays:
            with self._open() as root:
                self._array(root, path)
        return self._arrays[path]

    def within(self, span: str) -> Trace:
        """Return the trace with the steps of one span of the answer alone, `thinking` or `answer`.

        Every data set of steps has these steps only. Sums over all steps (`ffn/gate_sum`) cannot be limited; tokens,
        images and `Trace.answer` stay those of the whole answer.

        Raises:
            InputError: the span is unknown.

        Example:
            >>> open_run("runs/demo")["0001"].within("answer").steps.sizes["step"]    # doctest: +SKIP
            12
        """
        check_span(span)
        limited = Trace(self.file, self.group, span)
        limited._root = self._root
        return limited

    @property
    def whole(self) -> Trace:
        """The trace with all steps."""
        if self.span is None:
            return self
        whole = Trace(self.file, self.group)
        whole._root = self._root
        return whole

    @cached_property
    def spans(self) -> np.ndarray:
        """The span of each step of the whole answer, as numbers of `SPAN_NAMES`, uint8 [step].

        Traces of earlier versions do not have it; it is then read from the texts of their tokens.
        """
        whole = self.whole
        if SPANS in whole.captured:
            return whole.array(SPANS).values
        return find_spans(*whole._split_answer())

    def _split_answer(self) -> tuple[list[str], str]:
        """Return the texts of the whole answer's tokens, and what the template put before them."""
        texts, groups = (self.whole.array(f"tokens/{name}").values for name in ("text", "group"))
        return split_answer(texts.tolist(), groups)

    @property
    def opened(self) -> str:
        """The mark of a thought that the prompt opened and the answer did not close; empty if there is none."""
        return find_opened(self.answer, self._split_answer()[1])

    @property
    def response(self) -> str:
        """The answer as readers of answers take it: a thought that was cut off has its mark, though the prompt opened it."""
        return self.opened + self.answer

    @cached_property
    def kept_steps(self) -> np.ndarray | None:
        """The steps of the whole answer that the trace shows, int64 [step]; None if it shows all."""
        return None if self.span is None else np.flatnonzero(self.spans == SPAN_NAMES.index(self.span))

    def _array(self, root: TraceGroup, path: str) -> xr.DataArray:
        if path not in self._arrays:
            stored = root.describe(path) if path in VARIABLES else None
            if stored is None and path in OF_VIDEOS:
                raise NotCaptured(f"trace {self.id}: {path} is there for samples with videos alone")
            if stored is None and path.partition("/")[0] in WHOLE_GROUPS and path != SPANS:
                raise self.damage_error(ValueError(f"{path} is missing"))
            if stored is None:
                raise NotCaptured(
                    f"trace {self.id}: {path} was not captured; name it in a capture file, "
                    'or see whether capture="full" records it'
                )
            if self.span is not None and path in SUMS:
                raise NotCaptured(
                    f"trace {self.id}: {path} is of the whole answer, so it cannot be limited to {self.span!r}"
                )
            if path in VIEW_PATHS:
                check_views(root)
            variable = VARIABLES[path]
            attributes = {"long_name": variable.long_name, "units": variable.units}
            has_groups = "group" in variable.dims
            source = LazilyIndexedArray(StoredArray(self.file, self._open, path, *stored, has_groups))
            lazy = MemoryCachedArray(CopyOnWriteArray(source))  # type: ignore[arg-type]
            self._arrays[path] = empty_array(root, variable.dims)._replace(
                xr.Variable(variable.dims, lazy, attributes),  # type: ignore[arg-type]
                name=path.rpartition("/")[2],
            )
            if self.span is not None and "step" in variable.dims:
                self._arrays[path] = self._arrays[path].isel(step=self.kept_steps)
        return self._arrays[path]

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Paths of all data sets in the file, as `array` takes them."""
        with self._open() as root:
            paths = [path for path in root.paths() if path in VARIABLES]
        return tuple(path for path in paths if self.span is None or path not in SUMS)

    @property
    def id(self) -> str:
        """The sample's id."""
        return self.sample.id

    @cached_property
    def sample(self) -> Sample:
        """The sample that the model answered."""
        try:
            sample = Sample.model_validate_json(self._text("sample"))
            if sample.id != self._sample_id:
                raise ValueError(f"its sample is {sample.id!r}, not {self._sample_id!r}")
        except InputError:
            raise
        except ValueError as error:
            raise self.damage_error(error) from None
        return sample

    @property
    def run_hash(self) -> str | None:
        """`hash_config` of the run that it was traced in; None in traces of earlier versions."""
        with self._open() as root:
            return root.text("run_hash")

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of the parts of the model that it was traced with; empty in traces of earlier versions."""
        with self._open() as root:
            text = root.text("fingerprint")
        return (
            {} if text is None else parse_record(text, JsonRecord, f"{self.file}, fingerprint").model_dump()
        )

    @property
    def image_hash(self) -> str | None:
        """`mmprobe.ledger.hash_images` of what the model saw; None without images and in older traces."""
        with self._open() as root:
            return root.text("image_hash")

    @property
    def images_changed(self) -> bool:
        """Whether the images differ from those that the model saw; False if that is not known."""
        seen = self.image_hash
        return bool(seen and (now := hash_images(self.sample)) and now != seen)

    @property
    def answer(self) -> str:
        """The generated text, without special tokens."""
        return self._text("answer")

    @property
    def prompt_positions(self) -> np.ndarray:
        """The positions of the prompt's tokens that data sets under `prompt/` have, in ascending order.

        Example:
            >>> open_run("runs/demo")["0001"].prompt_positions[:3]                             # doctest: +SKIP
            array([0, 1, 2])
        """
        with self._open() as root:
            text = root.text("prompt_groups")
        group = self.tokens["group"].values
        of_prompt = group[: len(group) - self.steps.sizes["step"]]
        if text is None:
            return np.arange(len(of_prompt))
        names = text.split(", ")
        if not set(names) <= set(GROUP_NAMES):
            raise self.damage_error(ValueError(f"prompt_groups: {text!r} are not groups of tokens"))
        return np.flatnonzero(np.isin(of_prompt, [GROUP_NAMES.index(name) for name in names]))

    @property
    def reading(self) -> dict[str, float] | None:
        """How far the reading that was traced is from the decoding of the same answer. None if there was no reading.

        `difference` is the largest difference of a token's log-probability, in nat, `agreeing` the number of steps whose
        most likely token is the same, and `steps` the number of steps.

        Example:
            >>> open_run("runs/demo")["0001"].reading                                          # doctest: +SKIP
            {'difference': 7.2e-07, 'agreeing': 31, 'steps': 31}
        """
        with self._open() as root:
            text = root.text("reading")
        if text is None:
            return None
        try:
            gap = json.loads(text)
            return {name: gap[name] + 0 for name in ("difference", "agreeing", "steps")}
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise self.damage_error(error) from None

    @cached_property
    def method_reports(self) -> dict[str, Any]:
        """What each decoding-time method at work reports, by its name. Empty without methods.

        Example:
            >>> open_run("runs/sage")["0001"].method_reports["sage"]["suppressed_layers"]      # doctest: +SKIP
            [[], [4], [3, 4]]
        """
        if "methods/report" not in self.captured:
            return {}
        try:
            texts = self.array("methods/report").values
            return {each["method"]: each["report"] for each in map(json.loads, texts)}
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise self.damage_error(error) from None

    @property
    def step_texts(self) -> list[str]:
        """The text of each step's token."""
        generated = self.array("tokens/group").values == GROUP_NAMES.index("generated")
        texts = self.array("tokens/text").values[generated].tolist()
        return texts if self.kept_steps is None else [texts[step] for step in self.kept_steps]

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
        bits = np.unpackbits(packed.values, axis=-1, count=self._count_neurons()).astype(bool)
        return xr.DataArray(bits, dims=("step", "layer", "neuron"), coords={"layer": packed["layer"]})

    def _count_neurons(self) -> int:
        """Return the number of neurons, which the bytes of `ffn/active` do not tell exactly."""
        n_bytes, neurons = self.array("ffn/active").shape[-1], self._text("neurons")
        if not neurons.isdecimal() or not n_bytes - 1 < int(neurons[:20]) / 8 <= n_bytes:
            raise self.damage_error(ValueError(f"{n_bytes} bytes for {neurons[:20]!r} neurons"))
        return int(neurons)

    def to_activation_cache(self, model: Any | None = None) -> Any:
        """Return the residual stream as a TransformerLens `ActivationCache`.

        Its positions are the steps' queries. It contains `resid_pre`, `resid_mid` and `resid_post` of the captured
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

    def _repr_html_(self) -> str:
        sample = self.sample
        fields: dict[str, object] = {"id": sample.id, "system": sample.system, "question": sample.question}
        fields |= {"answer": self.answer, "truth": sample.answer, "steps": self.steps.sizes["step"]}
        return show_fields(fields | {"captured": ", ".join(self.captured)}, sample.images)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.captured)

    def __getitem__(self, path: str) -> xr.DataArray:
        """Return one data set by its path in the file, as `array` does."""
        return self.array(path)

    def close(self) -> None:
        """Free everything that was read. No file stays open between reads."""
        self._arrays.clear()
        self._datasets.clear()


_GROUPS = {name.partition("/")[0] for name in VARIABLES}
_COORDINATE = np.dtype("i4")
_NO_COMPRESSION = {h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE}
_MAX_CHUNK_BYTES = 2**24  # of a compressed chunk, once it is read
_MAX_RATIO = 1000  # of compressed numbers
_UNWRITTEN_RATIO = 4  # rows grow, so up to half of the chunks are empty
_SPARE_BYTES = 2**16


class CheckedGroup:
    """The open group of a trace. Each method checks what it returns.

    Args:
        file: path of the file, for messages.
        root: the open file.
        group: path of the trace's group; `/` unless the run is packed.
        sample_id: id of the sample that the trace must belong to.

    Raises:
        InputError: the trace has another format or belongs to another sample.
    """

    def __init__(self, file: Path, root: h5py.File, group: str, sample_id: str):
        self.file, self.root = file, root.id
        self.file_bytes = root.id.get_filesize()
        try:
            for name in group.split("/")[1:] if group != "/" else ():
                self.root = open_group(self.root, name)
        except ValueError as error:
            raise self.error(group, str(error)) from None
        self.links = self.root.links
        self.datasets: dict[str, tuple[h5d.DatasetID, np.dtype]] = {}
        self.scales: dict[str, h5d.DatasetID] = {}
        self.sizes: dict[str, int] = {dim: sizes[-1] for dim, sizes in DIM_SIZES.items()}
        self.attributes: dict[str, str] = {}
        self.sizes["group"] = READ_VERSIONS[self._check_version()]
        self._check_id(sample_id)

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names the file, an entry and its problem."""
        remedy = f"mmprobe did not write this, so delete it and trace again with {option('resume')}"
        return InputError(f"{self.file}: {name} {problem}; {remedy}")

    def _check_version(self) -> int:
        """Return the version of the format."""
        version, known = np.zeros((), "i8"), " and ".join(map(str, READ_VERSIONS))
        if not h5a.exists(self.root, b"mmprobe_format"):
            raise InputError(f"{self.file}: trace format None, this mmprobe reads {known}")
        attribute = h5a.open(self.root, b"mmprobe_format")
        if not isinstance(attribute.get_type(), h5t.TypeIntegerID) or attribute.shape != ():
            raise self.error("attribute mmprobe_format", "is not an integer")
        attribute.read(version)
        if int(version) not in READ_VERSIONS:
            raise InputError(f"{self.file}: trace format {version}, this mmprobe reads {known}")
        return int(version)

    def _check_id(self, expected: str) -> None:
        stored = self.text("id")
        if stored is None:  # the file is older than this attribute
            try:
                stored = json.loads(self.text("sample") or "")["id"]
            except (KeyError, RecursionError, TypeError, ValueError):
                return  # `Trace.sample` raises an error that says what is wrong
        if stored != expected:
            raise InputError(
                f"{self.file}: contains the trace of sample {stored!r}, not of {expected!r}; "
                f"delete it and trace again with {option('resume')}"
            )

    def text(self, name: str) -> str | None:
        """Return a text attribute of the trace; None if it is missing."""
        if name not in self.attributes:
            if not h5a.exists(self.root, name.encode()):
                return None
            try:
                self.attributes[name] = read_text_attribute(self.root, name)
            except ValueError as error:
                raise self.error(f"attribute {name}", f"is not text ({error})") from None
        return self.attributes[name]

    def dataset(self, path: str) -> tuple[h5d.DatasetID, np.dtype] | None:
        """Return a data set of the schema and its numpy type; None if the trace does not have it."""
        if path not in self.datasets:
            if not self._has_link(path.partition("/")[0]) or not self._has_link(path):
                return None
            data = self._open(path)
            variable = VARIABLES[path]
            dtypes = ["f2", "f4"] if variable.dtype == "f2" else [variable.dtype]
            dtype = self._check_type(path, data, [np.dtype(object if t == "str" else t) for t in dtypes])
            self._check_shape(path, data, variable.dims)
            self._check_storage(path, data, dtype)
            self.datasets[path] = data, dtype
        return self.datasets[path]

    def describe(self, path: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """Return the shape and the numpy type of a data set of the schema; None if the trace does not have it."""
        stored = self.dataset(path)
        return None if stored is None else (stored[0].shape, stored[1])

    def read(self, path: str, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values of a data set that the trace has, or a part of them."""
        stored = self.dataset(path)
        assert stored is not None
        data, dtype = stored
        if key is not None:
            part = h5py.Dataset(data)
            return part.asstr()[key] if dtype.kind == "O" else part[key]
        values = np.empty(data.shape, dtype)
        data.read(h5s.ALL, h5s.ALL, values)  # takes a third of the calls of h5py's upper layer
        if dtype.kind == "O":
            values[...] = [text.decode() for text in values]
        return values

    def coordinate(self, dim: str) -> list[int] | list[str]:
        """Return the values of a dimension, such as the captured layers; all groups, also those of later versions."""
        data = self._scale(dim)
        if data is None:
            raise self.error(dim, "is missing")
        dtype = self._check_type(dim, data, [np.dtype(object) if dim == "group" else _COORDINATE])
        self._check_shape(dim, data, (dim,))
        self._check_storage(dim, data, dtype)
        stored = np.empty(data.shape, dtype)
        data.read(h5s.ALL, h5s.ALL, stored)
        values = [text.decode(errors="replace") for text in stored] if dim == "group" else stored.tolist()
        names = list(GROUP_NAMES[: self.sizes["group"]])
        if dim == "group" and values != names or len(set(values)) < len(values):
            raise self.error(dim, "has wrong or repeated values")
        return list(GROUP_NAMES) if dim == "group" else values

    def size(self, dim: str) -> int | None:
        """Return the size of a dimension; None if the trace does not have it."""
        scale = self._scale(dim)
        return None if scale is None or len(scale.shape or ()) != 1 else scale.shape[0]

    def check_all(self) -> None:
        """Check every attribute and every data set.

        Raises:
            InputError: something is not in the schema, or differs from it.
        """
        for name in TEXT_ATTRIBUTES:
            self.text(name)
        for path in self.paths():
            if path not in VARIABLES:
                raise self.error(path, "is not in the trace format")
            self.dataset(path)
            for dim in VARIABLES[path].dims:
                if self._scale(dim) is None:
                    raise self.error(dim, "is missing")
        for name in list_names(self.root):
            if name in DIMS:
                self.coordinate(name)
            elif name not in _GROUPS:
                raise self.error(name, "is not in the trace format")

    def paths(self) -> list[str]:
        """Return the paths of all entries in the groups of the schema."""
        paths = []
        for group in list_names(self.root):
            if group in _GROUPS:
                try:
                    paths += [f"{group}/{name}" for name in list_names(open_group(self.root, group))]
                except ValueError as error:
                    raise self.error(group, str(error)) from None
        return paths

    def _has_link(self, name: str) -> bool:
        """Return whether a link exists. Soft and external links are refused, since they can leave the file."""
        try:
            return _has_hard_link(self.links, name)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def _open(self, name: str) -> h5d.DatasetID:
        try:
            return h5d.open(self.root, name.encode())
        except (KeyError, ValueError) as error:  # it is a group or a type
            raise self.error(name, f"is not a readable data set ({error})") from None

    def _scale(self, dim: str) -> h5d.DatasetID | None:
        """Return the dimension scale, which contains the values of a dimension; None if it is missing."""
        if dim not in self.scales and self._has_link(dim):
            self.scales[dim] = self._open(dim)
        return self.scales.get(dim)

    def _check_type(self, name: str, data: h5d.DatasetID, dtypes: list[np.dtype]) -> np.dtype:
        stored = data.get_type()
        for dtype in dtypes:
            if dtype.kind == "O":
                if isinstance(stored, h5t.TypeStringID) and stored.is_variable_str():
                    return dtype
            elif stored.equal(hdf5_type(dtype)):
                return dtype
        raise self.error(name, f"has another type than {' or '.join(map(str, dtypes))}")

    def _check_shape(self, name: str, data: h5d.DatasetID, dims: tuple[str, ...]) -> None:
        """Compare the shape with the dimension scales, or with other data sets if a scale is missing."""
        shape = data.shape
        if shape is None or len(shape) != len(dims):
            raise self.error(name, f"has not the dimensions {', '.join(dims)}")
        for dim, size in zip(dims, shape, strict=True):
            if dim not in self.sizes and (scale := self._scale(dim)) is not None:
                self.sizes[dim] = scale.shape[0] if scale.shape and scale.rank == 1 else -1
            if self.sizes.setdefault(dim, size) != size:
                raise self.error(name, f"has {size} along {dim}, not {self.sizes[dim]}")

    def _check_storage(self, name: str, data: h5d.DatasetID, dtype: np.dtype) -> None:
        """Raise InputError if the data set extends past the end of the file, or declares more than is stored."""
        itemsize = 16 if dtype.kind == "O" else dtype.itemsize  # HDF5 stores a text's address in 16 bytes
        declared, stored = math.prod(data.shape) * itemsize, data.get_storage_size()
        if data.get_offset() is not None and declared == stored:
            return  # in one piece, in this file
        layout = data.get_create_plist()
        possible = stored * _UNWRITTEN_RATIO + _SPARE_BYTES
        if layout.get_layout() == h5d.CHUNKED:
            filters = {layout.get_filter(index)[0] for index in range(layout.get_nfilters())}
            if filters - _NO_COMPRESSION:
                possible = stored * _MAX_RATIO + _SPARE_BYTES
                if math.prod(layout.get_chunk()) * itemsize > _MAX_CHUNK_BYTES:
                    raise self.error(name, "has chunks that are too large")
        elif layout.get_layout() not in (h5d.COMPACT, h5d.CONTIGUOUS) or layout.get_external_count():
            raise self.error(name, "is stored in another file")
        if declared > possible or stored > self.file_bytes:
            raise self.error(name, f"declares {declared:,} bytes and stores {stored:,}")


def open_group(parent: h5g.GroupID, name: str) -> h5g.GroupID:
    """Open a group in a group.

    Raises:
        ValueError: the group is missing, or is a link to another place.
    """
    if not _has_hard_link(parent.links, name):
        raise ValueError(f"{name} is missing")
    if h5o.get_info(parent, name.encode()).type != h5o.TYPE_GROUP:
        raise ValueError(f"{name} is not a group")
    return h5g.open(parent, name.encode())


def open_hard_link(parent: h5g.GroupID, name: str) -> h5d.DatasetID:
    """Open a data set in a group.

    Raises:
        ValueError: the data set is missing, or is a link to another place.
    """
    if not _has_hard_link(parent.links, name):
        raise ValueError(f"{name} is missing")
    try:
        return h5d.open(parent, name.encode())
    except KeyError as error:  # it is a group or a type
        raise ValueError(f"is not a readable data set ({error})") from None


def list_names(group: h5g.GroupID) -> list[str]:
    """Return the names in a group."""
    return [name.decode(errors="replace") for name in group]


def read_text_attribute(root: h5g.GroupID, name: str) -> str:
    """Return a text attribute.

    Raises:
        ValueError: it is missing, or is not a single text in UTF-8.
    """
    if not h5a.exists(root, name.encode()):
        raise ValueError(f"attribute {name} is missing")
    attribute = h5a.open(root, name.encode())
    stored_type = attribute.get_type()
    if not isinstance(stored_type, h5t.TypeStringID) or not stored_type.is_variable_str():
        raise ValueError(f"attribute {name} has another type")
    if attribute.shape != ():
        raise ValueError(f"attribute {name} is not a scalar")
    stored = np.empty((), object)
    attribute.read(stored)
    return bytes(stored[()] or b"").decode()


def _has_hard_link(links: h5l.LinkProxy, name: str) -> bool:
    """Return whether a link exists.

    Raises:
        ValueError: it is a soft or an external link.
    """
    if not links.exists(name.encode()):
        return False
    if links.get_info(name.encode()).type != h5l.TYPE_HARD:
        raise ValueError("is a link to another place")
    return True


def add_groups(values: np.ndarray) -> np.ndarray:
    """Return attention by token group [..., group] with the groups that later versions added, on which it is 0."""
    missing = len(GROUP_NAMES) - values.shape[-1]
    return values if not missing else np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


VIEW_PATHS = (
    "images/grid",
    "images/source",
    "images/box",
    "images/video",
    "images/frames",
    "tokens/image",
    "tokens/group",
)
_MAX_BOX = 1.5 * MAX_IMAGE_PIXELS  # a part may reach over its image, where a family pads it


def check_views(root: TraceGroup) -> None:
    """Check the groups of the tokens, and what `images` and `tokens/image` say about the same visual tokens.

    The visual tokens of a prompt show the cells of all views, view by view. Tokens that end a row or a tile show
    no cell. In families with cross-attention no token does, and `visual` still counts the cells of all views.

    Raises:
        InputError: they contradict each other.
    """
    grid, shown = _read(root, "images/grid"), _read(root, "tokens/image")
    if grid is not None:
        if (grid < 1).any():
            raise root.error("images/grid", "contains a view without visual tokens")
        cells = grid.astype("f8").prod(1)  # integers could overflow
        size = root.size("visual")
        if size not in (None, cells.sum()):
            raise root.error("images/grid", f"has {cells.sum():,.0f} cells for {size:,} visual tokens")
        visual = shown[shown != -1] if shown is not None else ()
        if len(visual) and not (
            len(visual) == cells.sum()
            and np.array_equal(visual, np.repeat(np.arange(len(cells)), cells.astype("i8")))
        ):
            raise root.error("tokens/image", "does not count the cells of images/grid")
    group = _read(root, "tokens/group")
    if group is not None and (group >= len(GROUP_NAMES)).any():
        raise root.error("tokens/group", f"contains a number over {len(GROUP_NAMES) - 1}")
    if group is not None:
        users, size = int((group == GROUP_NAMES.index("user")).sum()), root.size("user_token")
        if size not in (None, users):
            raise root.error("tam/prompt", f"has {size:,} tokens of the user, and tokens/group {users:,}")
    box = _read(root, "images/box")
    if box is not None and not (
        np.isfinite(box).all()
        and (box[:, 2:] > 0).all()
        and (box[:, 2:].astype("f8").prod(1) <= _MAX_BOX).all()
    ):
        raise root.error("images/box", "contains a part that no image can have")
    source = _read(root, "images/source")
    if source is not None and source.size:
        n_images, n_videos = _count_pictures(root)
        if source.min() < 0 or (n_images is not None and source.max() >= n_images):
            raise root.error("images/source", f"names an image that is not among the sample's {n_images}")
        video, frames = _read(root, "images/video"), _read(root, "images/frames")
        if video is not None and (video.min() < -1 or (n_videos is not None and video.max() >= n_videos)):
            raise root.error("images/video", f"names a video that is not among the sample's {n_videos}")
        if frames is not None and ((frames < -1).any() or (frames[:, 0] > frames[:, 1]).any()):
            raise root.error("images/frames", "contains a frame that no video has")


def _read(root: TraceGroup, path: str) -> np.ndarray | None:
    stored = root.dataset(path)
    if stored is None:
        return None
    data, dtype = stored
    values = np.empty(data.shape, dtype)
    data.read(h5s.ALL, h5s.ALL, values)
    return values


def _count_pictures(root: TraceGroup) -> tuple[int | None, int | None]:
    """Return the numbers of the sample's images with listed frames, and of its videos.

    None if the sample cannot be read, which `Trace.sample` says; or if a video is a file, of which the model chose frames.
    """
    with suppress(AttributeError, RecursionError, TypeError, ValueError, KeyError):
        sample = json.loads(root.text("sample") or "")
        videos = sample.get("videos", [])
        listed = [each.get("frames") if isinstance(each, dict) else each for each in videos]
        frames = [len(each) for each in listed if isinstance(each, list)]
        return len(sample["images"]) + sum(frames) if len(frames) == len(videos) else None, len(videos)
    return None, None


PACKS = "packs"  # the folder of a run's traces that are joined already
INDEX = "index"  # the group of the offsets
INDEXED_DIMS = ("layer", "head")  # dimensions whose values are in the index, too
INDEXED = (*INDEXED_DIMS, *(name for name, variable in VARIABLES.items() if variable.dtype != "str"))
_NO_PLACE = -1  # the offset of numbers that are not in one piece
_UNREADABLE = (OSError, KeyError, RuntimeError, SystemError, ValueError)


def _dims(name: str) -> tuple[str, ...]:
    return (name,) if name in INDEXED_DIMS else VARIABLES[name].dims


class IndexWriter:
    """Collects the offsets of each trace's numbers, and writes them into the file."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, array]] = {}  # by data set and trace

    def note(self, trace_id: str, name: str, data: h5d.DatasetID) -> None:
        """Note the offset of a data set, if it is stored in one piece."""
        offset = data.get_offset()
        if offset is not None:
            row = array("q", [offset, data.dtype.itemsize, *data.shape])
            self.rows.setdefault(name, {})[trace_id] = row

    @property
    def n_bytes(self) -> int:
        """The bytes that the index takes, at most."""
        n_traces = max(map(len, self.rows.values()), default=0)
        return sum(2**10 + 8 * (2 + len(_dims(name))) * n_traces for name in self.rows)

    def write(self, file: h5py.File) -> None:
        """Write a table for each data set, with a row for each trace, in the sorted order of their ids."""
        ids = sorted(list_names(open_group(file.id, "samples")))
        for name, rows in self.rows.items():
            missing = array("q", [_NO_PLACE] * (2 + len(_dims(name))))
            file[f"{INDEX}/{name}"] = np.array([rows.get(trace_id, missing) for trace_id in ids], "i8")


class PackedNames(NamedTuple):
    """The ids of the traces in a packed file.

    Attributes:
        names: the ids, in the order of the file.
        content: what tells the file from one that took its place since; None if nothing does.
    """

    names: list[str]
    content: int | None


class PackedFile:
    """An open file of packed traces.

    Args:
        path: its path.
        file: the open file.
        pages: the same file; what is read there is compared with the checksums.
        known: its names, if they have been read before. They are read again if the file is another one now.

    Raises:
        ValueError: the file has no traces.
    """

    def __init__(self, path: Path, file: h5py.File, pages: CheckedFile, known: PackedNames | None = None):
        self.path, self.file, self.pages = path, file, pages
        if known is not None and known.content is not None and known.content == pages.content:
            self.names = known.names
        else:
            self.names = list_names(open_group(file.id, "samples"))
        self.sizes: dict[str, np.ndarray] = {}  # of each dimension, by trace; 0 where it is not known yet
        self.tables: dict[str, np.ndarray | None] = {}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each trace in the index."""
        return {name: number for number, name in enumerate(sorted(self.names))}

    def table(self, name: str) -> np.ndarray | None:
        """Return where a data set is stored: for each trace the offset, the bytes of a number, the shape.

        None if the file does not say: it is older, or was changed since it was packed.

        Raises:
            InputError: the table contradicts the file or other tables.
        """
        if name not in self.tables:
            readable = name in INDEXED and self.pages.checksums
            self.tables[name] = table = self._read_table(name) if readable else None
            if table is not None:
                self._check_table(name, table)
        return self.tables[name]

    def _read_table(self, name: str) -> np.ndarray | None:
        parent = self.file.id
        *groups, leaf = (INDEX, *name.split("/"))
        try:
            for group in groups:
                if group.encode() not in parent:
                    return None
                parent = open_group(parent, group)
            if leaf.encode() not in parent:
                return None
            data = open_hard_link(parent, leaf)
        except ValueError as error:
            raise self.error(name, str(error)) from None
        shape = (len(self.names), 2 + len(_dims(name)))
        if data.shape != shape or not data.get_type().equal(hdf5_type(np.dtype("i8"))):
            raise self.error(name, "has another shape or type")
        if data.get_offset() is None or data.get_storage_size() != 8 * math.prod(shape):
            raise self.error(name, "is not in one piece")
        table = np.empty(shape, "i8")
        data.read(h5s.ALL, h5s.ALL, table)
        return table

    def _check_table(self, name: str, table: np.ndarray) -> None:
        present = table[:, 0] != _NO_PLACE
        offset, itemsize, *shape = table.T.astype("f8")  # integers could overflow
        n_bytes = itemsize * np.prod(shape, axis=0)
        dtypes = {self._dtype(name, wide).itemsize for wide in (False, True)}
        inside = (offset >= 0) & (table[:, 2:] >= 0).all(1) & (offset + n_bytes <= self.pages.size)
        if not (inside & np.isin(itemsize, list(dtypes)))[present].all():
            raise self.error(name, "names places that are not in the file")
        for dim, size in zip(_dims(name), table[:, 2:].T, strict=True):
            if dim in DIM_SIZES and not np.isin(size, DIM_SIZES[dim])[present].all():
                raise self.error(name, f"has a wrong size along {dim}")
            known = self.sizes.setdefault(dim, np.full(len(table), _NO_PLACE))
            if ((known != size) & present & (known != _NO_PLACE)).any():
                raise self.error(name, f"has another size along {dim} than other data sets")
            known[present] = size[present]

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names an entry of the index and its problem."""
        return InputError(f"{self.path}: {INDEX}/{name} {problem}; {self.remedy}")

    @property
    def remedy(self) -> str:
        """What to do about a damaged file, in words."""
        return _remedy(self.path)

    def damage_error(self, error: Exception) -> InputError:
        """Return an error that says why the file cannot be read, and what to do."""
        return _damage_error(self.path, error)

    def _dtype(self, name: str, wide: bool) -> np.dtype:
        stored = "i4" if name in INDEXED_DIMS else VARIABLES[name].dtype
        return np.dtype("f4" if stored == "f2" and wide else stored)

    def find(self, trace_id: str, name: str) -> tuple[int, tuple[int, ...], np.dtype] | None:
        """Return the offset, the shape and the type of a trace's data set; None if the index does not have it."""
        table = self.table(name)
        if table is None:
            return None
        offset, itemsize, *shape = table[self.numbers[trace_id]].tolist()
        return None if offset == _NO_PLACE else (offset, tuple(shape), self._dtype(name, itemsize == 4))

    def read(self, trace_id: str, name: str) -> np.ndarray:
        """Return the values of a data set that `find` finds.

        Raises:
            OSError: they are damaged.
        """
        found = self.find(trace_id, name)
        assert found is not None
        offset, shape, dtype = found
        values = np.empty(shape, dtype)
        self._fill(values, offset)
        return values

    def _fill(self, values: np.ndarray, offset: int) -> None:
        self.pages.seek(offset)
        self.pages.readinto(values.reshape(-1).view("u1").data)

    def _rows(self, ids: Sequence[str], name: str) -> np.ndarray | None:
        """Return the rows of traces in a table; None if a trace is not in it."""
        table = self.table(name)
        if table is None or not self.numbers.keys() >= set(ids):
            return None
        rows = table[[self.numbers[trace_id] for trace_id in ids]]
        return None if (rows[:, 0] == _NO_PLACE).any() else rows

    def shapes(self, ids: Sequence[str], name: str) -> np.ndarray | None:
        """Return the shapes [trace, dim] of a data set; None if the index lacks some of them, or of their labels."""
        labelled = [dim for dim in _dims(name) if dim in INDEXED_DIMS]
        rows = [self._rows(ids, each) for each in (name, *labelled)]
        return None if rows[0] is None or any(each is None for each in rows) else rows[0][:, 2:]

    def read_many(self, ids: Sequence[str], name: str) -> np.ndarray | list[np.ndarray]:
        """Return the values of a data set of many traces, which have `shapes`: in one array if the shapes are equal.

        Values that are adjacent in the file are read together.

        Raises:
            OSError: they are damaged.
        """
        rows = self._rows(ids, name)
        assert rows is not None
        offsets, n_bytes = rows[:, 0], rows[:, 1:].prod(1)
        places = np.cumsum([0, *n_bytes])
        memory = np.empty(places[-1], "u1")
        limits = np.flatnonzero(np.diff(offsets) != n_bytes[:-1]) + 1
        for first, last in itertools.pairwise([0, *limits, len(rows)]):
            self._fill(memory[places[first] : places[last]], int(offsets[first]))
        if (rows[:, 1:] == rows[0, 1:]).all():
            return memory.view(self._dtype(name, rows[0, 1] == 4)).reshape(len(rows), *rows[0, 2:])
        return [
            memory[place : place + size].view(self._dtype(name, row[1] == 4)).reshape(row[2:])
            for place, size, row in zip(places[:-1], n_bytes, rows, strict=True)
        ]

    def common_coordinates(self, ids: Sequence[str], name: str) -> dict[str, tuple[Any, ...]]:
        """Return the labels of a data set's dimensions, without those that differ between the traces."""
        common: dict[str, tuple[Any, ...]] = {"group": GROUP_NAMES} if "group" in _dims(name) else {}
        for dim in _dims(name):
            if dim in INDEXED_DIMS:
                labels = self.read_many(ids, dim)
                if isinstance(labels, np.ndarray) and (labels == labels[0]).all():
                    common[dim] = tuple(labels[0].tolist())
        return common

    def contradictions(self) -> dict[str, str]:
        """Return the traces whose rows of the index differ from their data sets, and the first of these."""
        found: dict[str, str] = {}
        indexed = [name for name in INDEXED if self.table(name) is not None]
        samples = open_group(self.file.id, "samples")
        for trace_id in self.names:
            places = {name: place for name in indexed if (place := self.find(trace_id, name)) is not None}
            stored = _stored_places(samples, trace_id, places)
            wrong = [name for name, place in places.items() if stored.get(name) != place]
            if wrong:
                found[trace_id] = wrong[0]
        return found


def _stored_places(samples: h5g.GroupID, trace_id: str, names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return offset, shape and dtype of a trace's data sets as HDF5 has them; skip links and groups."""
    places: dict[str, tuple[Any, ...]] = {}
    with suppress(ValueError):  # a link, or not a group
        groups = {"": open_group(samples, trace_id)}
        for name in names:
            group, _, leaf = name.rpartition("/")
            with suppress(ValueError, TypeError):  # a link, a group, or a type that numpy lacks
                if group not in groups:
                    groups[group] = open_group(groups[""], group)
                data = open_hard_link(groups[group], leaf)
                places[name] = data.get_offset(), data.shape, data.dtype
    return places


@contextmanager
def open_packed(path: Path, known: PackedNames | None = None) -> Iterator[PackedFile]:
    """Open a packed file; if it cannot be opened, this raises InputError."""
    with ExitStack() as stack:
        try:
            packed = PackedFile(path, *stack.enter_context(open_with_pages(path)), known)
        except InputError:
            raise
        except _UNREADABLE as error:
            raise _damage_error(path, error) from None
        yield packed


def packed_names(path: Path) -> PackedNames:
    """Return the ids of the traces in a packed file.

    Raises:
        InputError: it cannot be read.
    """
    with open_packed(path) as packed:
        return PackedNames(packed.names, packed.pages.content)


def _damage_error(path: Path, error: Exception) -> InputError:
    repeat_interrupt(error)
    return InputError(f"{path}: damaged ({str(error).splitlines()[0]}); {_remedy(path)}")


def _remedy(path: Path) -> str:
    return f"trace again with {option('resume')}" if path.parent.name == PACKS else "pack it again"


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


_TOGETHER = 1000  # traces whose data sets of one name are adjacent
SMALL_BYTES = 2**24  # of a data set that is stored in one piece
_METADATA_BYTES = 2**18  # headers are kept together, so that they do not separate the numbers
_IN_ONE_PIECE = h5p.create(h5p.DATASET_CREATE)
_IN_ONE_PIECE.set_alloc_time(h5d.ALLOC_TIME_EARLY)
_IN_ONE_PIECE.set_fill_time(h5d.FILL_TIME_NEVER)
_TRACE_BYTES = 2**14  # a trace's headers can be larger in the packed file
_TEXT_BYTES = 2**18  # headers and texts of a trace that is packed already


def write_pack(traces: Iterable[Trace], out: Path, texts: Mapping[str, Any] = {}) -> None:
    """Copy traces into one file, which appears, or replaces an earlier one, with its checksums when it is whole.

    Args:
        texts: about the traces, by name, as a packed run has them.

    Raises:
        InputError: a trace is damaged.
        OSError: the disk is full.

    Example:
        >>> write_pack(open_run("runs/demo"), Path("runs/demo/packs/000001.h5"))      # doctest: +SKIP
    """
    with NewFile(out) as new:
        new.remove_left()
        _write_traces(traces, texts, new)
        append_checksums(new.stream)
        new.sync()
        new.place()


def _write_traces(traces: Iterable[Trace], texts: Mapping[str, Any], new: NewFile) -> None:
    file, space = create_file(new, _METADATA_BYTES)
    with file:
        samples, index, left = file.create_group("samples"), IndexWriter(), iter(traces)
        while together := list(islice(left, _TOGETHER)):
            _copy_traces(together, samples, index, space)
        space.reserve(index.n_bytes)
        index.write(file)
        file.attrs["mmprobe_format"] = FORMAT_VERSION
        for name, content in texts.items():
            text = json.dumps(content)
            space.reserve(len(text))
            file.attrs[name] = text


def _copy_traces(traces: list[Trace], samples: h5py.Group, index: IndexWriter, space: ReservedSpace) -> None:
    """Copy traces, and put the small data sets of one name beside each other, so that they are read in one go."""
    small = {}
    for trace in traces:
        if trace.group == "/":
            check_checksums(trace.file)
        with trace.keep_open():
            trace.check()
            space.reserve(_most_bytes(trace))
        with _open_source(trace) as source:
            small[trace.id] = _small_datasets(source)
        samples.create_group(trace.id)
    for name in INDEXED:
        for trace_id, datasets in small.items():
            if name in datasets:
                shape, dtype = datasets[name]
                path = f"{trace_id}/{name}".encode()
                h5d.create(
                    samples.id, path, hdf5_type(dtype), h5s.create_simple(shape), _IN_ONE_PIECE, CREATE_GROUPS
                )
    for trace in traces:
        with _open_source(trace) as source:
            _copy_trace(source, samples[trace.id], small[trace.id])
        for name in INDEXED:
            if (data := samples.get(f"{trace.id}/{name}")) is not None:
                index.note(trace.id, name, data.id)


@contextmanager
def _open_source(trace: Trace) -> Iterator[h5py.Group]:
    """Open the group of a trace; errors within the block name its file."""
    try:
        with open_checked(trace.file) as file:
            yield file[trace.group]
    except (OSError, RuntimeError, SystemError) as error:
        raise trace.damage_error(error) from None


def _most_bytes(trace: Trace) -> int:
    """Return an upper limit of the bytes that a trace takes in a packed file."""
    if trace.group == "/":
        return trace.file.stat().st_size + _TRACE_BYTES
    return (
        2 * sum(trace.array(path).nbytes for path in trace.captured) + _TEXT_BYTES
    )  # chunks are filled in part


def _small_datasets(source: h5py.Group) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and the type of the data sets that are stored in one piece: small ones, as they are."""
    small = {}
    for name in INDEXED:
        data = source.get(name)
        if data is None or data.id.get_create_plist().get_nfilters():
            continue
        if 0 < data.nbytes <= min(SMALL_BYTES, data.id.get_storage_size()):
            small[name] = data.shape, data.dtype
    return small


def _copy_trace(source: h5py.Group, target: h5py.Group, small: Iterable[str]) -> None:
    """Copy a trace, and attach its dimension scales again: HDF5 does not copy references to another file.

    Args:
        small: data sets that the target has already, without values.
    """
    for name in ("mmprobe_format", *TEXT_ATTRIBUTES):
        if name in source.attrs:
            target.attrs[name] = source.attrs[name]
    present: set[str] = set()
    source.visit(present.add)
    for name in (*DIMS, *VARIABLES):
        if name in small:
            target[name].id.write(h5s.ALL, h5s.ALL, source[name][...])
        elif name in present:
            source.copy(name, target, name=name, without_attrs=True)
    scales = {dim: target[dim] for dim in DIMS if dim in present}
    for dim, scale in scales.items():
        scale.make_scale(dim)
    for name, variable in VARIABLES.items():
        if name in present:
            data = target[name]
            data.attrs.update({"long_name": variable.long_name, "units": variable.units})
            for axis, dim in enumerate(variable.dims):
                data.dims[axis].attach_scale(scales[dim])


def split_answer(texts: Sequence[str], groups: np.ndarray) -> tuple[list[str], str]:
    """Return the texts of an answer's tokens, and what the template put before them, after the conversation's last text.

    Args:
        texts: of all tokens of a prompt and its answer.
        groups: uint8 [token].

    Example:
        >>> split_answer(["Is it red?", "<think>", "Hm"], np.array([3, 0, 4]))
        (['Hm'], '<think>')
    """
    first = len(texts) - int((groups == GROUP_NAMES.index("generated")).sum())
    own = np.flatnonzero(groups[:first])  # all but those of the template
    return list(texts[first:]), "".join(texts[int(own[-1]) + 1 if len(own) else 0 : first])
