"""A run's folder: made, resumed or replaced; and the files in it that are not traces."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache import Trace, open_run
from mmprobe.cache.packs import PACKS, join_traces, packed_names
from mmprobe.cache.run import HASHED_KEYS
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.cache.verify import check_trace
from mmprobe.errors import InputError, option
from mmprobe.files import make_folder, write_atomic, writing_error
from mmprobe.interventions.base import Method
from mmprobe.ledger import FINGERPRINT, Ledger, fingerprint, hash_images, library_versions, warn_of_versions
from mmprobe.models import Model
from mmprobe.models.generation import settings_in_force, use_repetition_penalty
from mmprobe.samples import Sample
from mmprobe.traces.asking import drop_failures
from mmprobe.traces.capture import CaptureSpec

log = logging.getLogger("mmprobe")


def run_config(
    model: Model,
    spec: CaptureSpec,
    engine: str,
    batch_size: int,
    generation: dict[str, Any],
    methods: Sequence[Method] = (),
) -> dict[str, Any]:
    """Return the content of `run.json`; the order of the samples is still to come."""
    libraries = {"h5py": version("h5py")}
    if engine != "native":
        with suppress(PackageNotFoundError):  # an engine of another package has a name of its own
            libraries[engine.replace("_", "-")] = version(engine.replace("_", "-"))
    if methods:
        generation = generation | {"methods": {method.name: asdict(method) for method in methods}}
    return {
        "format": FORMAT_VERSION,
        "model": {
            "name": model.name,
            "source": model.source,
            "revision": model.revision,
            "family": model.family.name,
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            "layers": model.n_layers,
        },
        "capture": spec.model_dump(exclude=None if spec.groups else {"groups"}),
        "generate": generation,
        "generation_settings": _settings_in_force(model, generation),
        "engine": engine,
        "batch_size": batch_size,
        "versions": library_versions() | libraries,
        FINGERPRINT: fingerprint(
            model.fingerprint, methods={each.name: each.fingerprint for each in methods}
        ),
        "order": [],
    }


def _settings_in_force(model: Model, generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `generate` that act: the checkpoint's, such as its repetition penalty, and mmprobe's."""
    with use_repetition_penalty(model, generation.get("repetition_penalty")):
        return settings_in_force(model, generation["temperature"])


def run_ledger(out: Path) -> Ledger:
    """Return what `trace` keeps in a run's folder."""
    return Ledger(
        out,
        settings="run.json",
        holds="a run",
        differs="was traced with another {words}",
        remedy=f"{option('resume')} needs the same, or use {option('overwrite')}",
        offer=f"use {option('resume')} to finish it or {option('overwrite')} to replace it",
    )


def open_folder(
    out: Path,
    config: dict[str, Any],
    samples: Sequence[Sample],
    resume: bool,
    overwrite: bool,
    adds: bool = False,
) -> set[str]:
    """Make a run's folder, or open it again, and return the ids of the finished samples.

    The caller must have locked the folder. With `adds`, the samples are added to those of an earlier run.

    Raises:
        InputError: `out` contains other files, a run while neither `resume` nor `overwrite` is set, or a run that
            cannot be resumed; or it cannot be written.
        OSError: the disk is full.
    """
    ledger = run_ledger(out)
    if not ledger.begun and (out / "shards").is_dir():
        raise InputError(f"{out}: contains shards; finish them, then merge them with: mmprobe merge {out}")
    unstarted = ledger.is_empty(["samples"]) and not any(out.glob("samples/*"))
    if not ledger.begun and not unstarted:
        raise InputError(f"{out}: is not empty and contains no run; choose another folder")
    ledger.check(resume and not overwrite, overwrite)
    try:
        if ledger.begun and not overwrite:
            return _resume(out, config, samples, adds)
        if ledger.begun:
            ledger.clear()
        make_folder(out / "samples")
    except OSError as error:
        raise writing_error(out, error) from None
    ledger.begin(config)
    return set()


def _resume(out: Path, config: dict[str, Any], samples: Sequence[Sample], adds: bool) -> set[str]:
    """Return the ids of the finished samples, less those whose trace has to be made again."""
    make_folder(out / "samples")  # somebody may have deleted it
    remove_unreadable(out)
    earlier = open_run(out)
    settings = {key: config[key] for key in HASHED_KEYS}
    order, ids = list(earlier.config["order"]), config["order"]
    if not adds:
        settings["order"] = ids
    run_ledger(out).check_same(earlier.config, settings, config.get(FINGERPRINT))
    warn_of_versions(out, earlier.config.get("versions"))
    if new := [name for name in ids if name not in set(order)]:
        content = json.loads((out / "run.json").read_bytes()) | {"order": [*order, *new]}
        write_atomic(out / "run.json", json.dumps(content, indent=1) + "\n")
    drop_failures(out, ids)
    remove_partial_files(out)
    samples_by_id = {sample.id: sample for sample in samples}
    progress = tqdm(earlier.ids, desc="check", unit="trace", disable=None)
    recorded = {**config, FINGERPRINT: earlier.config.get(FINGERPRINT)}
    kept = {
        name
        for name in progress
        if name not in samples_by_id or _is_sound(earlier[name], samples_by_id[name], recorded)
    }
    if n_spoiled := len(earlier) - len(kept):
        log.warning(
            "%s: %d of %d finished traces are damaged or not of this run's samples; they are made again",
            out,
            n_spoiled,
            len(earlier),
        )
    keep_packed(out, kept)
    return kept & samples_by_id.keys()


def _is_sound(trace: Trace, sample: Sample, config: Mapping[str, Any]) -> bool:
    """Return whether a trace is undamaged and of this sample and run."""
    try:
        return not check_trace(trace, config) and _is_same(trace, sample)
    except (InputError, OSError, KeyError, ValueError):
        return False


def _is_same(trace: Trace, sample: Sample) -> bool:
    """Return whether a sample is the one that was traced. Its images may have moved, but not changed."""
    traced = trace.sample
    if traced.model_dump_json(exclude={"images"}) != sample.model_dump_json(exclude={"images"}):
        return False
    if [path.name for path in traced.images] != [path.name for path in sample.images]:
        return False
    if trace.image_hash and (image_hash := hash_images(sample)):
        return trace.image_hash == image_hash
    return all(
        old == new.absolute() or not old.exists() or filecmp.cmp(old, new, shallow=False)
        for old, new in zip(traced.images, sample.images, strict=True)
    )


def remove_trace(out: Path, sample_id: str) -> None:
    """Remove a sample's trace, or whatever is in its place."""
    path = out / "samples" / f"{sample_id}.h5"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partial_files(out: Path) -> None:
    """Remove the files of unfinished traces."""
    for path in [*(out / "samples").glob("*.part"), *(out / PACKS).glob("*.part")]:
        with suppress(OSError):
            path.unlink()


def check_space(out: Path, needed: int) -> None:
    """Warn if the disk of `out` has less free space than `needed` bytes, an estimate for the worst case."""
    free = shutil.disk_usage(out).free
    if needed > free:
        log.warning(
            "%s: the run can take up to %.1f GB and %.1f GB are free; it continues, since answers are often shorter, "
            "and a full disk loses no finished sample",
            out,
            needed / 1e9,
            free / 1e9,
        )


class Packer:
    """Joins the finished traces of a run's folder in files of so many traces, in `packs/`.

    The traces' own files are removed when the joined file is whole, so a process that is killed loses nothing.

    Args:
        folder: the run's folder. One process may pack into it at a time.
        every: number of traces in a file; None to leave each trace in its own file.

    Raises:
        InputError: the number is less than 1.
    """

    def __init__(self, folder: Path, every: int | None):
        if every is not None and every < 1:
            raise InputError(f"pack_every {every}: must be 1 or more")
        self.folder, self.every = folder, every
        self.n_new = 0

    def count(self, n_samples: int) -> None:
        """Count samples that were worked on, and join traces if there are enough."""
        self.n_new += n_samples
        if self.every is not None and self.n_new >= self.every:
            self._join(self.every)

    def finish(self) -> None:
        """Join the traces that are left at the end of a run."""
        if self.every is not None:
            self._join(1)

    def _join(self, least: int) -> None:
        """Join traces that have their own files, while there are at least so many."""
        assert self.every is not None
        files = sorted(
            (self.folder / "samples").glob("*.h5"), key=lambda path: (path.stat().st_mtime_ns, path)
        )
        while len(files) >= least and files:
            joined, files = files[: self.every], files[self.every :]
            make_folder(self.folder / PACKS)
            join_traces(map(Trace, joined), self._next_file())
            for path in joined:
                path.unlink()
        self.n_new = len(files)

    def _next_file(self) -> Path:
        numbers = [int(path.stem) for path in (self.folder / PACKS).glob("*.h5") if path.stem.isdecimal()]
        return self.folder / PACKS / f"{max(numbers, default=0) + 1:06}.h5"


def remove_unreadable(folder: Path) -> None:
    """Remove files of joined traces that do not even say which traces they contain."""
    for file in (folder / PACKS).glob("*.h5"):
        try:
            packed_names(file)
        except InputError as error:
            log.warning("%s", error)
            file.unlink()


def keep_packed(folder: Path, kept: Iterable[str]) -> None:
    """Remove all other traces from the files of joined traces, and second copies of those that stay."""
    run, ids = open_run(folder), set(kept)
    names_of: dict[Path, list[str]] = {}
    for trace, name in zip(run, run.ids, strict=True):
        names_of.setdefault(trace.file, []).append(name)
    for file in (folder / PACKS).glob("*.h5"):
        names = names_of.get(file, [])
        sound = [name for name in names if name in ids]
        if not sound:
            file.unlink()
        elif len(sound) < len(names):
            join_traces((run[name] for name in sound), file)
        for name in sound:
            (folder / "samples" / f"{name}.h5").unlink(missing_ok=True)
