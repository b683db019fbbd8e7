"""A run's folder: made, resumed or replaced; and the files in it that are not traces."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache import Trace, open_run
from mmprobe.cache.packs import PACKS
from mmprobe.cache.run import HASHED_KEYS
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.cache.verify import check_trace
from mmprobe.errors import InputError, option
from mmprobe.files import append_lines, make_folder, write_whole, writing_error
from mmprobe.interventions.base import Method
from mmprobe.ledger import FINGERPRINT, Ledger, fingerprint, hash_images, library_versions, warn_of_versions
from mmprobe.models import Model
from mmprobe.models.generation import settings_in_force, use_repetition_penalty
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.scale.packing import keep_packed, remove_unreadable

log = logging.getLogger("mmprobe")

_RESUME_KEYS = (*HASHED_KEYS, "order")  # what must be the same


def run_config(
    model: Model,
    spec: CaptureSpec,
    engine: str,
    batch_size: int,
    generation: dict[str, Any],
    methods: Sequence[Method] = (),
) -> dict[str, Any]:
    """Return the content of `run.json`; the order of the samples is still to come."""
    libraries = ["h5py"]
    if engine != "native":
        libraries.append(engine.replace("_", "-"))
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
        "capture": spec.model_dump(),
        "generate": generation,
        "generation_settings": _settings_in_force(model, generation),
        "engine": engine,
        "batch_size": batch_size,
        "versions": library_versions() | {name: version(name) for name in libraries},
        FINGERPRINT: fingerprint(model.fingerprint),
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
    out: Path, config: dict[str, Any], samples: Sequence[Sample], resume: bool, overwrite: bool
) -> set[str]:
    """Make a run's folder, or open it again, and return the ids of the finished samples.

    The caller must have locked the folder.

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
            return _resume(out, config, samples)
        if ledger.begun:
            ledger.clear()
        make_folder(out / "samples")
    except OSError as error:
        raise writing_error(out, error) from None
    ledger.begin(config)
    return set()


def _resume(out: Path, config: dict[str, Any], samples: Sequence[Sample]) -> set[str]:
    """Return the ids of the finished samples, less those whose trace has to be made again."""
    remove_unreadable(out)
    earlier = open_run(out)
    settings = {key: config[key] for key in _RESUME_KEYS}
    run_ledger(out).check_same(earlier.config, settings, config.get(FINGERPRINT))
    warn_of_versions(out, earlier.config.get("versions"))
    (out / "failures.jsonl").unlink(missing_ok=True)
    remove_partial_files(out)
    samples_by_id = {sample.id: sample for sample in samples}
    progress = tqdm(earlier.ids, desc="check", unit="trace", disable=None)
    recorded = {**config, FINGERPRINT: earlier.config.get(FINGERPRINT)}
    kept = {name for name in progress if _is_sound(earlier[name], samples_by_id[name], recorded)}
    if n_spoiled := len(earlier) - len(kept):
        log.warning(
            "%s: %d of %d finished traces are damaged or not of this run's samples; they are made again",
            out,
            n_spoiled,
            len(earlier),
        )
    keep_packed(out, kept)
    return kept


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


def append_failure(out: Path, sample_id: str, error: BaseException) -> None:
    """Add a sample to `failures.jsonl`, with the error's class and the first line of its message."""
    name = type(error).__name__
    message = (str(error).strip().splitlines() or [name])[0]
    append_lines(out / "failures.jsonl", [{"id": sample_id, "error": name, "message": message}])


def sort_failures(out: Path, samples: Sequence[Sample]) -> None:
    """Order the failures as the samples, each once. They are recorded as they occur, twice if a sample fails twice."""
    failure_of = {failure["id"]: failure for failure in open_run(out).failures}
    if failure_of:
        lines = [json.dumps(failure_of[each.id]) + "\n" for each in samples if each.id in failure_of]
        write_whole({out / "failures.jsonl": "".join(lines).encode()})
