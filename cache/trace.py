"""Read a trace as labelled arrays, which are read when they are used: from its own file, or from one of packed traces.

Reading is plain h5py. Damage is found by `verify`, `--resume`, `merge` and `pack`, which compare a file with its digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing  # its names below are those that xarray documents for backends

from mmprobe.cache.hdf5 import append_digest, check_digest, check_space, create_file
from mmprobe.cache.schema import (
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
from mmprobe.files import JsonRecord, NewFile, check_readable, parse_record
from mmprobe.ledger import hash_images
from mmprobe.notebook import show_fields
from mmprobe.samples import Sample
from mmprobe.thoughts import SPAN_NAMES, check_span, find_opened, find_spans

SUMS = ("ffn/gate_sum", "ffn/gate_first")  # of all steps, or of the first one
LABELLED = {"layer", "head", "group"}  # dimensions with coordinates
UNREADABLE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises for a damaged file


class StoredArray(BackendArray):
    """One data set of a trace, read when it is indexed, and kept once the whole was read.

    Args:
        trace: the trace.
        path: path of the data set in the trace.
        data: the data set, of an open file.
    """

    def __init__(self, trace: Trace, path: str, data: h5py.Dataset):
        self.trace, self.path, self.stored = trace, path, data.shape
        self.is_text = h5py.check_string_dtype(data.dtype) is not None
        self.dtype = np.dtype(object) if self.is_text else data.dtype
        self.has_groups = "group" in VARIABLES[path].dims  # of which an older trace has fewer
        self.shape = (*data.shape[:-1], len(GROUP_NAMES)) if self.has_groups else data.shape
        self.whole: np.ndarray | None = None

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> Any:
        if self.whole is None and all(isinstance(part, slice) and part == slice(None) for part in key):
            self.whole = self._load(key)
        if self.whole is not None:
            values = self.whole
            for axis, part in reversed(list(enumerate(key))):
                values = values[(slice(None),) * axis + (part,)]
            return values
        return self._load((*key[:-1], slice(None)))[..., key[-1]] if self.has_groups else self._load(key)

    def _load(self, key: tuple[Any, ...]) -> Any:
        with self.trace._open() as root:
            data = root[self.path]
            if data.shape != self.stored:
                raise InputError(
                    f"{self.trace.file}: was changed while {self.path} was in use; open it again"
                )
            values = data.asstr()[key] if self.is_text else data[key]
        return add_groups(values) if self.has_groups else values


@lru_cache(
    64
)  # most traces of a run have the same, and their indices take longer to make than numbers to read
def _coordinates(labels: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.Coordinates:
    return xr.Coordinates(
        {dim: np.array(values, str if dim == "group" else np.int32) for dim, values in labels}
    )


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
        memory: the file's content, of a trace that is in memory alone; None otherwise.

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

    def __init__(
        self, file: Path, group: str = "/", span: str | None = None, memory: h5py.File | None = None
    ):
        self.file, self.group, self.span, self.memory = file, group, span, memory
        self._arrays: dict[str, xr.DataArray] = {}
        self._datasets: dict[str, xr.Dataset] = {}
        self._root: h5py.Group | None = None  # while `keep_open` is active

    def __repr__(self) -> str:
        return f"<Trace {self.id}: {self.answer!r}>"

    @contextmanager
    def _open(self, opened: h5py.File | None = None) -> Iterator[h5py.Group]:
        """Yield the trace's group, and close the file after the block, unless it was opened before.

        Raises:
            InputError: the trace cannot be read, or belongs to another sample.
        """
        try:
            if self._root is not None:
                yield self._root
                return
            opened = self.memory if self.memory is not None else opened
            with nullcontext(opened) if opened is not None else open_file(self.file) as file:
                root = file[self.group]
                self._check_identity(root)
                yield root
        except InputError:
            raise
        except UNREADABLE as error:
            raise self.damage_error(error) from None

    def _check_identity(self, root: h5py.Group) -> None:
        """Check the version of the format, and that the trace is the one that its name says."""
        version = root.attrs.get("mmprobe_format")
        if version not in READ_VERSIONS:
            known = " and ".join(map(str, READ_VERSIONS))
            raise InputError(f"{self.file}: trace format {version}, this mmprobe reads {known}")
        stored = root.attrs.get("id", self._sample_id)  # older traces have it in their sample alone
        if stored != self._sample_id:
            raise InputError(
                f"{self.file}: contains the trace of sample {stored!r}, not of {self._sample_id!r}; "
                f"delete it and trace again with {option('resume')}"
            )

    @property
    def _sample_id(self) -> str:
        """The sample's id, from the name of the file or of the group."""
        return self.file.name.removesuffix(".h5") if self.group == "/" else self.group.rpartition("/")[2]

    @contextmanager
    def keep_open(self, opened: h5py.File | None = None) -> Iterator[Trace]:
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

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The text attributes of the trace."""
        with self._open() as root:
            return {name: root.attrs[name] for name in TEXT_ATTRIBUTES if name in root.attrs}

    def _text(self, name: str) -> str:
        """Return a text attribute of the trace."""
        text = self._texts.get(name)
        if not isinstance(text, str):
            raise self.damage_error(ValueError(f"it has no text {name}"))
        return text

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
            f"{self.file}: damaged trace ({reason}); delete it and trace again with {option('resume')}"
        )

    def dataset(self, name: str) -> xr.Dataset:
        """Return one group of data sets: tokens, images, steps, attention, residual, update, ffn or tam."""
        if name not in self._datasets:
            with self._open() as root:
                paths = [path for path in _list_paths(root) if path.startswith(f"{name}/")]
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
        limited = Trace(self.file, self.group, span, self.memory)
        limited._root = self._root
        return limited

    @property
    def whole(self) -> Trace:
        """The trace with all steps."""
        if self.span is None:
            return self
        whole = Trace(self.file, self.group, memory=self.memory)
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

    def _array(self, root: h5py.Group, path: str) -> xr.DataArray:
        if path not in self._arrays:
            missing = path not in VARIABLES or path not in root
            if missing and path in OF_VIDEOS:
                raise NotCaptured(f"trace {self.id}: {path} is there for samples with videos alone")
            if missing and path.partition("/")[0] in WHOLE_GROUPS and path != SPANS:
                raise self.damage_error(ValueError(f"{path} is missing"))
            if missing:
                raise NotCaptured(
                    f"trace {self.id}: {path} was not captured; name it in a capture file, "
                    'or see whether capture="full" records it'
                )
            if self.span is not None and path in SUMS:
                raise NotCaptured(
                    f"trace {self.id}: {path} is of the whole answer, so it cannot be limited to {self.span!r}"
                )
            variable = VARIABLES[path]
            source = indexing.LazilyIndexedArray(StoredArray(self, path, root[path]))
            attributes = {"long_name": variable.long_name, "units": variable.units}
            self._arrays[path] = xr.DataArray(
                xr.Variable(variable.dims, source, attributes),
                _coordinates(
                    tuple((dim, self._labels(root, dim)) for dim in variable.dims if dim in LABELLED)
                ),
                name=path.rpartition("/")[2],
            )
            if self.span is not None and "step" in variable.dims:
                self._arrays[path] = self._arrays[path].isel(step=self.kept_steps)
        return self._arrays[path]

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Paths of all data sets in the file, as `array` takes them."""
        with self._open() as root:
            return tuple(path for path in _list_paths(root) if self.span is None or path not in SUMS)

    def _labels(self, root: h5py.Group, dim: str) -> tuple[Any, ...]:
        """Return the values of a dimension: the captured layers or heads; all groups, also those of later versions."""
        return GROUP_NAMES if dim == "group" else tuple(root[dim][...].tolist())

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
        return self._texts.get("run_hash")

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of the parts of the model that it was traced with; empty in traces of earlier versions."""
        text = self._texts.get("fingerprint", "{}")
        return parse_record(text, JsonRecord, f"{self.file}, fingerprint").model_dump()

    @property
    def image_hash(self) -> str | None:
        """`mmprobe.ledger.hash_images` of what the model saw; None without images and in older traces."""
        return self._texts.get("image_hash")

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
        text = self._texts.get("prompt_groups")
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
        text = self._texts.get("reading")
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
        bits = np.unpackbits(packed.values, axis=-1, count=self.count_neurons()).astype(bool)
        return xr.DataArray(bits, dims=("step", "layer", "neuron"), coords={"layer": packed["layer"]})

    def count_neurons(self) -> int:
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

    def __contains__(self, path: object) -> bool:
        with self._open() as root:
            return path in root

    def __getitem__(self, path: str) -> xr.DataArray:
        """Return one data set by its path in the file, as `array` does."""
        return self.array(path)

    def close(self) -> None:
        """Free everything that was read. No file stays open between reads."""
        self._arrays.clear()
        self._datasets.clear()


def open_file(path: Path) -> h5py.File:
    """Open a file of traces for reading."""
    return h5py.File(check_readable(path), "r")


def _list_paths(root: h5py.Group) -> list[str]:
    """Return the paths of the data sets of the format in a trace's group, in the order of their names."""
    groups = {name.partition("/")[0] for name in VARIABLES}
    paths = [f"{group}/{name}" for group in root if group in groups for name in root[group]]
    return [path for path in paths if path in VARIABLES]


def add_groups(values: np.ndarray) -> np.ndarray:
    """Return attention by token group [..., group] with the groups that later versions added, on which it is 0."""
    missing = len(GROUP_NAMES) - values.shape[-1]
    return values if not missing else np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


PACKS = "packs"  # the folder of a run's traces that are joined already
_METADATA_BYTES = 2**18  # headers are kept together, so that they do not separate the numbers


def packed_names(path: Path) -> list[str]:
    """Return the ids of the traces in a packed file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with open_file(path) as file:
            return list(file["samples"])
    except UNREADABLE as error:
        raise InputError(f"{path}: damaged ({str(error).splitlines()[0]}); {remedy(path)}") from None


def remedy(path: Path) -> str:
    """Return what to do about a damaged packed file, for messages."""
    return f"trace again with {option('resume')}" if path.parent.name == PACKS else "pack it again"


def write_pack(traces: Iterable[Trace], out: Path, texts: Mapping[str, Any] = {}) -> None:
    """Copy traces into one file, which appears, or replaces an earlier one, with its digest when it is whole.

    Args:
        texts: about the traces, by name, as a packed run has them.

    Raises:
        InputError: a trace is damaged.
        OSError: the disk is full.

    Example:
        >>> write_pack(open_run("runs/demo"), Path("runs/demo/packs/000001.h5"))      # doctest: +SKIP
    """
    checked: set[Path] = set()
    with NewFile(out) as new:
        new.remove_left()
        with create_file(new, _METADATA_BYTES) as file:
            samples = file.create_group("samples")
            for trace in traces:
                if trace.file not in checked:
                    check_digest(trace.file)
                    checked.add(trace.file)
                with trace.keep_open():
                    assert trace._root is not None
                    _copy_trace(trace._root, samples, trace.id, new)
            file.attrs["mmprobe_format"] = FORMAT_VERSION
            for name, content in texts.items():
                text = json.dumps(content)
                check_space(new, len(text))
                file.attrs[name] = text
        append_digest(new.stream)
        new.sync()
        new.place()


def _copy_trace(source: h5py.Group, samples: h5py.Group, name: str, new: NewFile) -> None:
    """Copy a trace, and attach its dimension scales again: HDF5 does not copy references to another file."""
    paths = _list_paths(source)
    dims = [dim for dim in DIMS if dim in source]
    check_space(new, sum(source[path].id.get_storage_size() for path in paths))
    target = samples.create_group(name)
    for attribute in ("mmprobe_format", *TEXT_ATTRIBUTES):
        if attribute in source.attrs:
            target.attrs[attribute] = source.attrs[attribute]
    for path in (*dims, *paths):
        source.copy(path, target, name=path, without_attrs=True)
    for dim in dims:
        target[dim].make_scale(dim)
    for path in paths:
        data, variable = target[path], VARIABLES[path]
        data.attrs.update({"long_name": variable.long_name, "units": variable.units})
        for axis, dim in enumerate(variable.dims):
            data.dims[axis].attach_scale(target[dim])


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
