"""Read a run: its traces, in order, and what is known of their samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache.checksums import checked
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.cache.trace import Trace
from mmprobe.errors import InputError
from mmprobe.samples import Sample


class Run:
    """A folder of traces, or the file that `pack` made of it. Iterates over its traces in sample order."""

    def __init__(
        self, path: Path, config: dict[str, Any], failures: list[dict], labels: dict[str, bool | None]
    ):
        self.path, self.config, self.failures, self._labels = path, config, failures, labels

    @property
    def packed(self) -> bool:
        return self.path.is_file()

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the finished samples, in the order of the run."""
        if self.packed:
            with checked(self.path) as file:
                done = set(file["samples"])
        else:
            done = {entry.name.removesuffix(".h5") for entry in (self.path / "samples").glob("*.h5")}
        return [name for name in self.config["order"] if name in done]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Trace]:
        return (self[name] for name in self.ids)

    def stream(self, what: str, names: Iterable[str] | None = None) -> Iterator[tuple[str, Trace]]:
        """Ids and traces, one after the other with a progress bar; each file is open until the next comes.

        Args:
            what: is done, for the progress bar.
            names: ids; None for all.

        Example:
            >>> for name, trace in run.stream("lengths"):           # doctest: +SKIP
            ...     print(name, trace.steps.sizes["step"])
        """
        for name in tqdm(self.ids if names is None else list(names), desc=what, unit="trace", disable=None):
            with self[name].held_open() as trace:
                yield name, trace

    def __contains__(self, name: object) -> bool:
        return name in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
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
        return self[name].sample

    def faithful(self, name: str) -> bool | None:
        """Whether a sample's answer is faithful: by labels.jsonl, else by the sample itself, else None."""
        return self._labels[name] if name in self._labels else self.sample(name).faithful


def _failures(path: Path) -> list[dict[str, Any]]:
    """Samples that failed; a line that a kill tore is dropped."""
    found = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def _labels(path: Path) -> dict[str, bool | None]:
    """What is said of the answers, by the samples' ids; people write it too, so every line is checked."""
    found = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
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
        found[name] = faithful
    return found


def open_run(path: str | Path) -> Run:
    """Open a run: a folder that `trace` wrote, or a file that `pack` made.

    Raises:
        InputError: there is no run at `path`, or it cannot be read.

    Example:
        >>> len(open_run("runs/demo"))                              # doctest: +SKIP
        24
    """
    path = Path(path)
    try:
        if path.is_file():
            with checked(path) as file:
                config, failures, labels = (
                    json.loads(file.attrs[name]) for name in ("run", "failures", "labels")
                )
            faithful = {label["id"]: label["faithful"] for label in labels}
        else:
            config = json.loads((path / "run.json").read_text(encoding="utf-8"))
            failures, faithful = _failures(path / "failures.jsonl"), _labels(path / "labels.jsonl")
        version, _ = config["format"], list(config["order"])
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no run here (run.json is missing)") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a readable run ({str(error).splitlines()[0]})") from None
    if version != FORMAT_VERSION:
        raise InputError(f"{path}: run format {version}, this mmprobe reads {FORMAT_VERSION}")
    return Run(path, config, failures, faithful)
