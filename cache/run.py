"""Read a run: its traces in order, its failures and its labels; stack a data set of all; and pack it into one file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.cache.schema import (
    READ_VERSIONS,
    VARIABLES,
    Failure,
    FailureList,
    Format,
    Label,
    LabelList,
    RunConfig,
)
from mmprobe.cache.trace import (
    LABELLED,
    PACKS,
    UNREADABLE,
    Trace,
    open_file,
    packed_names,
    write_pack,
)
from mmprobe.errors import InputError, unknown_name
from mmprobe.files import check_readable, parse_record
from mmprobe.ledger import lock_file
from mmprobe.notebook import show_rows
from mmprobe.samples import Sample
from mmprobe.thoughts import SPAN_NAMES, check_span

if TYPE_CHECKING:
    import pandas as pd


log = logging.getLogger("mmprobe")

SHOWN_ROWS = 20
HASHED_KEYS = ("model", "capture", "generate", "engine", "batch_size")  # of run.json


def hash_config(config: Mapping[str, Any]) -> str:
    """Return a hash of everything in `run.json` that decides what a trace contains.

    Example:
        >>> len(hash_config({"model": {"name": "tiny-spd"}}))
        64
    """
    content = {key: config.get(key) for key in HASHED_KEYS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Run:
    """A folder of traces, or the file that `pack` wrote from it. Iterates over its traces in sample order.

    In a folder, traces are separate files, or joined in files of `packs/`.

    Attributes:
        path: the folder or the file.
        config: the content of `run.json`.
        failures: samples that failed, each with `id`, `error` and `message`.
        labels: by sample, whether its answer is faithful; from `labels.jsonl`.
        right: by sample, whether its answer is right, or None where rules could not read it; of the lines of
            `labels.jsonl` that say so (`correct`).
        margins: by sample, the log-probability of the right answer less that of the most probable other, in nat; of closed
            questions that were read by likelihood (`margin` in `labels.jsonl`).
        span: the span of the answers whose steps alone the traces show; None for all.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        failures: list[dict],
        labels: dict[str, bool | None],
        right: dict[str, bool | None] | None = None,
        span: str | None = None,
        margins: dict[str, float] | None = None,
    ):
        self.path, self.config, self.failures, self.labels = path, config, failures, labels
        self.right, self.span, self.margins = right or {}, span, margins or {}

    @property
    def packed(self) -> bool:
        """Whether the run is a packed file."""
        return self.path.is_file()

    @cached_property
    def packs(self) -> list[Path]:
        """The files of traces that are joined."""
        return [self.path] if self.packed else sorted((self.path / PACKS).glob("*.h5"))

    @cached_property
    def _packs(self) -> dict[str, Path]:
        """The file of each packed trace, by its sample's id."""
        return {name: path for path in self.packs for name in packed_names(path)}

    def pack_of(self, name: str) -> Path | None:
        """Return the packed file that a trace is in; None if it has its own file."""
        return self._packs.get(name)

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the finished samples, in the order of the run."""
        finished = set(self._packs)
        if not self.packed:
            finished |= {name.removesuffix(".h5") for name in _list_files(self.path / "samples")}
        return [name for name in self.config["order"] if name in finished]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Trace]:
        return (self[name] for name in self.ids)

    def stream(self, task: str, names: Iterable[str] | None = None) -> Iterator[tuple[str, Trace]]:
        """Yield ids and traces with a progress bar. Each trace's file stays open until one in another file comes.

        Args:
            task: the text of the progress bar.
            names: ids of samples; None for all.

        Example:
            >>> for name, trace in run.stream("lengths"):           # doctest: +SKIP
            ...     print(name, trace.steps.sizes["step"])
        """
        chosen = tqdm(self.ids if names is None else list(names), desc=task, unit="trace", disable=None)
        for pack, together in groupby(chosen, self.pack_of):
            with open_file(pack) if pack is not None else nullcontext() as opened:
                for name in together:
                    with self[name].keep_open(opened) as trace:
                        yield name, trace

    def __contains__(self, name: object) -> bool:
        return name in self._id_set

    @cached_property
    def _id_set(self) -> frozenset[str]:
        return frozenset(self.ids)

    @overload
    def __getitem__(self, key: str | int) -> Trace: ...
    @overload
    def __getitem__(self, key: slice) -> Run: ...
    def __getitem__(self, key: str | int | slice) -> Trace | Run:
        """Return a trace by its sample's id or its place in the run, or a part of the run by a slice."""
        if isinstance(key, slice):
            return self._part(self.ids[key])
        name = self.ids[key] if isinstance(key, int) else key
        if name not in self:
            raise KeyError(f"{self.path}: no finished sample {name!r}")
        if name in self._packs:
            return Trace(self._packs[name], f"/samples/{name}", self.span)
        return Trace(self.path / "samples" / f"{name}.h5", span=self.span)

    def _part(self, names: list[str]) -> Run:
        return Run(
            self.path, {**self.config, "order": names}, [], self.labels, self.right, self.span, self.margins
        )

    def within(self, span: str) -> Run:
        """Return the part of the run whose answers have steps of a span, `thinking` or `answer`, with these steps alone.

        Analyses take it like a run. A warning says how many answers do not have the span.

        Raises:
            InputError: the span is unknown, or no answer has it.

        Example:
            >>> run.within("thinking")                              # doctest: +SKIP
            <Run runs/demo: 20 of 20 samples, qwen3.5-4b, thinking>
        """
        check_span(span)
        limited = Run(self.path, self.config, [], self.labels, self.right, span, self.margins)
        names = [name for name, trace in self.stream("spans") if SPAN_NAMES.index(span) in trace.spans]
        if len(self) and not names:
            raise InputError(f"{self.path}: no answer has the span {span!r}")
        if len(names) < len(self):
            log.warning(
                "%d of %d answers have no %s, and are left out", len(self) - len(names), len(self), span
            )
        return limited._part(names)

    def select(self, ids: Iterable[str] | None = None, **fields: Any) -> Run:
        """Return the part of the run whose samples have these values. Analyses take it like a run.

        Args:
            ids: ids of samples; None for all.
            fields: by name, values of the sample's fields or metadata. `faithful` also reads labels.jsonl.

        Raises:
            InputError: no sample has a field of this name.

        Example:
            >>> run.select(faithful=False, type="steps")            # doctest: +SKIP
            <Run runs/demo: 3 of 3 samples, tiny-spd>
        """
        samples = {name: self.sample(name) for name in (self.ids if ids is None else ids)}
        known = set(Sample.model_fields).union(*(sample.metadata for sample in samples.values()))
        for field in fields:
            if field not in known:
                raise unknown_name("select: field", field, sorted(known))

        def value(sample: Sample, field: str) -> Any:
            if field == "faithful":
                return self.labels.get(sample.id, sample.faithful)
            return getattr(sample, field) if field in Sample.model_fields else sample.metadata.get(field)

        return self._part(
            [
                name
                for name, sample in samples.items()
                if all(value(sample, field) == wanted for field, wanted in fields.items())
            ]
        )

    @property
    def captured(self) -> tuple[str, ...]:
        """Paths of the data sets that the first trace contains, as `stack` takes them."""
        return self[0].captured if self.ids else ()

    def stack(self, path: str) -> xr.DataArray:
        """Return one data set of all traces, with a dimension `sample` in front.

        Answers have different lengths, so the places beyond the end of a sample are NaN. Integers become floats.
        The coordinate `step_token` is the text of each step's token.

        Raises:
            NotCaptured: a trace lacks the data set.

        Example:
            >>> run.stack("attention/mass").dims                    # doctest: +SKIP
            ('sample', 'step', 'layer', 'head', 'group')
        """
        return _stack_traces(self, path)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a table with a row a sample: its fields, the model's answer, its steps, whether it is right and faithful, and by which margin.

        `truth` is the sample's own answer, `answer` the model's. Metadata have columns `metadata.NAME`.

        Example:
            >>> run.to_dataframe().groupby("polarity").faithful.mean()          # doctest: +SKIP
        """
        import pandas as pd

        rows = []
        for name, trace in self.stream("table"):
            sample = trace.sample
            row = sample.model_dump(include={"question", "pair_id", "polarity"})
            row |= {"truth": sample.answer, "answer": trace.answer, "n_images": len(sample.images)}
            row |= {"n_steps": trace.steps.sizes["step"], "right": self.right.get(name)}
            row |= {"faithful": self.labels.get(name, sample.faithful), "margin": self.margins.get(name)}
            rows.append(row | {f"metadata.{key}": value for key, value in sample.metadata.items()})
        return pd.DataFrame(rows, index=pd.Index(self.ids, name="id"))

    def __repr__(self) -> str:
        return f"<Run {self.path}: {len(self)} of {len(self.config['order'])} samples, {self.config['model']['name']}{f', {self.span}' if self.span else ''}>"

    def _repr_html_(self) -> str:
        rows = [(trace.id, trace.sample.question, trace.answer) for trace in self[:SHOWN_ROWS]]
        return show_rows(["id", "question", "answer"], rows, repr(self))

    def _ipython_key_completions_(self) -> list[str]:
        return self.ids

    def sample(self, name: str) -> Sample:
        """Return the sample with this id."""
        return self[name].sample

    @property
    def labels_say_right(self) -> bool:
        """Whether the labels only say which answers are right: each is what a reader of answers found (`correct`)."""
        return bool(self.right) and all(
            self.right.get(name, not label) == label for name, label in self.labels.items()
        )

    def faithful(self, name: str) -> bool | None:
        """Return whether a sample's answer is faithful.

        A label in `labels.jsonl` takes precedence over the sample's own field; None if neither says.
        """
        return self.labels[name] if name in self.labels else self.sample(name).faithful


def _parse_config(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the content of run.json. Optional entries that it lacks are empty."""
    version = parse_record(text, Format, where).format
    if version not in READ_VERSIONS:
        known = " and ".join(map(str, READ_VERSIONS))
        raise InputError(f"{where}: run format {version}, this mmprobe reads {known}")
    return parse_record(text, RunConfig, where).model_dump()


def _read_failures(path: Path) -> list[dict[str, Any]]:
    """Return the samples that failed. A line that was cut off when the process was killed is dropped."""
    lines = check_readable(path).read_bytes().split(b"\n") if path.exists() else []
    return [
        parse_record(line, Failure, f"{path}, line {number}").model_dump()
        for number, line in enumerate(lines, 1)
        if _is_json(line)
    ]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (RecursionError, ValueError):
        return False
    return True


def _read_labels(path: Path) -> list[Label]:
    """Return the labels. Users write this file, so every line is checked."""
    lines = check_readable(path).read_bytes().splitlines() if path.exists() else []
    return [
        _parse_label(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]


def _parse_label(line: bytes, where: str) -> Label:
    try:
        return parse_record(line, Label, where)
    except InputError:
        raise InputError(
            f'{where}: not a label; write {{"id": "...", "faithful": true}}, or false or null'
        ) from None


def _read_packed(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[Label]]:
    """Return the content of run.json, the failures and the labels of a packed run."""
    with open_file(path) as file:
        run, failures, labels = (str(file.attrs[name]) for name in ("run", "failures", "labels"))
    return (
        _parse_config(run, f"{path}, run"),
        parse_record(failures, FailureList, f"{path}, failures").model_dump(),
        parse_record(labels, LabelList, f"{path}, labels").root,
    )


def _list_files(folder: Path) -> list[str]:
    """Return the names of the traces in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.endswith(".h5")]
    except FileNotFoundError:
        return []


def open_run(path: str | Path) -> Run:
    """Open a run: a folder that `trace` wrote, or a file that `pack` wrote.

    Raises:
        InputError: `path` is not a run, or cannot be read.

    Example:
        >>> len(open_run("runs/demo"))                              # doctest: +SKIP
        24
    """
    path = Path(path)
    try:
        if path.is_file():
            config, failures, labels = _read_packed(path)
        else:
            config = _parse_config(check_readable(path / "run.json").read_bytes(), str(path / "run.json"))
            failures, labels = _read_failures(path / "failures.jsonl"), _read_labels(path / "labels.jsonl")
    except InputError:
        raise
    except FileNotFoundError:
        hint = f"; did you mean {path / 'run'}?" if (path / "run" / "run.json").is_file() else ""
        raise InputError(f"{path}: no run here (run.json is missing){hint}") from None
    except UNREADABLE as error:
        raise InputError(f"{path}: not a readable run ({str(error).splitlines()[0]})") from None
    right = {label.id: label.correct for label in labels if "correct" in label.model_fields_set}
    margins = {label.id: label.margin for label in labels if label.margin is not None}
    return Run(path, config, failures, {label.id: label.faithful for label in labels}, right, margins=margins)


def pack(path: str | Path, out: str | Path) -> Path:
    """Copy a run to one HDF5 file, which `open_run` reads like the folder. Traces are under `/samples/<id>`.

    Raises:
        InputError: `out` exists, another process is packing into it, `path` is not a run's folder, or a trace is
            damaged.
        OSError: the disk is full; `out` is not there then.

    Example:
        >>> pack("runs/demo", "demo.h5")                            # doctest: +SKIP
        PosixPath('demo.h5')
    """
    run, out = open_run(path), Path(out)
    if run.packed:
        raise InputError(f"{path}: is packed already; give the run's folder")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    with lock_file(out, "packing into it"):
        if out.exists():
            raise InputError(f"{out}: exists; choose another file for out")
        right = {name: {"correct": each} for name, each in run.right.items()}
        margins = {name: {"margin": each} for name, each in run.margins.items()}
        labels = [
            {"id": name, "faithful": faithful, **right.get(name, {}), **margins.get(name, {})}
            for name, faithful in run.labels.items()
        ]
        texts = {"run": run.config, "failures": run.failures, "labels": labels}
        write_pack(tqdm(run, "pack", len(run), unit="trace", disable=None), out, texts)
    return out


def _stack_traces(run: Run, path: str) -> xr.DataArray:
    """Return the array that `Run.stack` describes."""
    if not run.ids:
        return xr.DataArray(np.zeros(0), dims="sample", coords={"sample": run.ids})
    variable, arrays, texts = VARIABLES[path], [], []
    for _, trace in run.stream("stack"):
        arrays.append(trace.array(path).load())
        if "step" in variable.dims:
            texts.append(_read_texts(trace, arrays[-1].sizes["step"]))
    coords: dict[str, Any] = {"sample": np.array(run.ids)}
    for dim in LABELLED & set(variable.dims):
        if all(array[dim].equals(arrays[0][dim]) for array in arrays):
            coords[dim] = arrays[0][dim].values
    has_texts = [len(text) == array.sizes["step"] for text, array in zip(texts, arrays, strict=False)]
    if "step" in variable.dims and all(has_texts):  # a trace of another program may lack its tokens
        coords["step_token"] = ("sample", "step"), _fill(texts)
    attributes = {"long_name": variable.long_name, "units": variable.units}
    values = _fill([array.values for array in arrays])
    return xr.DataArray(values, coords, ("sample", *variable.dims), path.rpartition("/")[2], attributes)


def _read_texts(trace: Trace, n_steps: int) -> np.ndarray:
    """Return the text of each step's token; none where the trace does not have texts."""
    if "tokens/text" not in trace:
        return np.array([], object)
    tokens = trace.array("tokens/text").values
    return tokens[len(tokens) - n_steps :] if trace.span is None else np.array(trace.step_texts, object)


def _fill(arrays: list[np.ndarray]) -> np.ndarray:
    """Return the arrays in one, with NaN, or empty text, where an array is smaller than the largest.

    Numbers become floats of at least 32 bits.
    """
    is_text = arrays[0].dtype.kind == "O"
    dtype = object if is_text else np.result_type(np.float32, *(array.dtype for array in arrays))
    sizes = np.max([array.shape for array in arrays], axis=0).tolist()
    values = np.full((len(arrays), *sizes), "" if is_text else np.nan, dtype)
    for row, array in zip(values, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return values
