"""Read a run: its traces in order, its failures and its labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache.checksums import open_checked
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.cache.trace import Trace
from mmprobe.errors import InputError
from mmprobe.samples import Sample, regular_file


class Run:
    """A folder of traces, or the file that `pack` wrote from it. Iterates over its traces in sample order.

    Attributes:
        path: the folder or the file.
        config: the content of `run.json`.
        failures: samples that failed, each with `id`, `error` and `message`.
        labels: by sample, whether its answer is faithful; from `labels.jsonl`.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], failures: list[dict], labels: dict[str, bool | None]
    ):
        self.path, self.config, self.failures, self.labels = path, config, failures, labels

    @property
    def packed(self) -> bool:
        """Whether the run is a packed file."""
        return self.path.is_file()

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the finished samples, in the order of the run."""
        if self.packed:
            with open_checked(self.path) as file:
                finished = set(file["samples"])
        else:
            finished = {path.name.removesuffix(".h5") for path in (self.path / "samples").glob("*.h5")}
        return [name for name in self.config["order"] if name in finished]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Trace]:
        return (self[name] for name in self.ids)

    def stream(self, task: str, names: Iterable[str] | None = None) -> Iterator[tuple[str, Trace]]:
        """Yield ids and traces with a progress bar. Each trace's file stays open until the next trace.

        Args:
            task: the text of the progress bar.
            names: ids of samples; None for all.

        Example:
            >>> for name, trace in run.stream("lengths"):           # doctest: +SKIP
            ...     print(name, trace.steps.sizes["step"])
        """
        for name in tqdm(self.ids if names is None else list(names), desc=task, unit="trace", disable=None):
            with self[name].keep_open() as trace:
                yield name, trace

    def __contains__(self, name: object) -> bool:
        return name in self._id_set

    @cached_property
    def _id_set(self) -> frozenset[str]:
        return frozenset(self.ids)

    def __getitem__(self, name: str) -> Trace:
        if name not in self:
            raise KeyError(f"{self.path}: no finished sample {name!r}")
        if self.packed:
            return Trace(self.path, f"/samples/{name}")
        return Trace(self.path / "samples" / f"{name}.h5")

    def __repr__(self) -> str:
        return f"<Run {self.path}: {len(self)} of {len(self.config['order'])} samples, {self.config['model']['name']}>"

    def sample(self, name: str) -> Sample:
        """Return the sample with this id."""
        return self[name].sample

    def faithful(self, name: str) -> bool | None:
        """Return whether a sample's answer is faithful.

        A label in `labels.jsonl` takes precedence over the sample's own field; None if neither says.
        """
        return self.labels[name] if name in self.labels else self.sample(name).faithful


def _read_failures(path: Path) -> list[dict[str, Any]]:
    """Return the samples that failed. A line that was cut off when the process was killed is dropped."""
    failures = []
    for line in regular_file(path).read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            failures.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return failures


def _read_labels(path: Path) -> dict[str, bool | None]:
    """Return the labels by sample. Users write this file, so every line is checked."""
    labels = {}
    for number, line in enumerate(regular_file(path).read_bytes().splitlines() if path.exists() else [], 1):
        if not line.strip():
            continue
        try:
            label = json.loads(line)
            name, faithful = label["id"], label["faithful"]
        except (KeyError, TypeError, ValueError):
            name = faithful = ""
        if not isinstance(name, str) or not (faithful is None or isinstance(faithful, bool)):
            raise InputError(
                f'{path}, line {number}: not a label; write {{"id": "...", "faithful": true}}, or false or null'
            )
        labels[name] = faithful
    return labels


def open_run(path: str | Path) -> Run:
    """Open a run: a folder that `trace` wrote, or a file that `pack` wrote.

    Raises:
        InputError: there is no run at `path`, or it cannot be read.

    Example:
        >>> len(open_run("runs/demo"))                              # doctest: +SKIP
        24
    """
    path = Path(path)
    try:
        if path.is_file():
            with open_checked(path) as file:
                config = json.loads(file.attrs["run"])
                failures = json.loads(file.attrs["failures"])
                labels = {label["id"]: label["faithful"] for label in json.loads(file.attrs["labels"])}
        else:
            config = json.loads(regular_file(path / "run.json").read_text(encoding="utf-8"))
            failures = _read_failures(path / "failures.jsonl")
            labels = _read_labels(path / "labels.jsonl")
        version, _ = config["format"], list(config["order"])  # raises if the order is no list
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no run here (run.json is missing)") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a readable run ({str(error).splitlines()[0]})") from None
    if version != FORMAT_VERSION:
        raise InputError(f"{path}: run format {version}, this mmprobe reads {FORMAT_VERSION}")
    return Run(path, config, failures, labels)
