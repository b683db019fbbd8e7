"""Read a trace as labelled arrays, which are read when they are used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core.indexing import (
    CopyOnWriteArray,
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    MemoryCachedArray,
    explicit_indexing_adapter,
)

from mmprobe.cache.check import VIEW_PATHS, CheckedGroup, add_groups, check_views
from mmprobe.cache.checksums import open_checked, repeat_interrupt
from mmprobe.cache.packs import PackedFile, PackedTrace, TraceGroup
from mmprobe.cache.schema import GROUP_NAMES, OF_VIDEOS, SPANS, VARIABLES, WHOLE_GROUPS
from mmprobe.cache.spans import SPAN_NAMES, check_span, spans_of_answer
from mmprobe.errors import InputError, NotCaptured, option
from mmprobe.files import JsonRecord, parse_record
from mmprobe.notebook import show_fields
from mmprobe.samples import Sample

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
        texts, groups = (whole.array(f"tokens/{name}").values for name in ("text", "group"))
        return spans_of_answer(texts.tolist(), groups)

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
