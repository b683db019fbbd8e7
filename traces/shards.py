"""Shards: parts of a run or of a benchmark that processes make without each other, and the whole that is made of them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.cache import Run, open_run
from mmprobe.cache.hdf5 import check_digest
from mmprobe.cache.run import HASHED_KEYS
from mmprobe.cache.trace import PACKS
from mmprobe.cache.verify import find_changed_images
from mmprobe.errors import InputError, option
from mmprobe.files import JsonRecord, check_no_link, make_subfolder, read_record, write_whole
from mmprobe.ledger import FINGERPRINT, Ledger, check_unlocked, hash_questions, lock_folder, warn_of_versions
from mmprobe.models import Model
from mmprobe.models.reading import prefix_key, sort_by_images
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings, Shard
from mmprobe.traces.asking import (
    FAILURES,
    RESPONSES,
    LocalModel,
    form_batches,
    keep_answers,
    read_failures,
)

if TYPE_CHECKING:
    from mmprobe.traces.run import Recording


log = logging.getLogger("mmprobe")

FOLDER = "shards"  # in the folder of the whole
FINISHED = "shard.json"  # in a shard's folder
_ATTEMPTS = 20  # to merge while another process does
_WAIT_SECONDS = 0.1  # between them


def shard_folder(out: Path, shard: Shard) -> Path:
    """Return the folder of a shard, given the folder of the whole."""
    return out / FOLDER / f"{shard.index}-of-{shard.count}"


class ShardsDiffer(InputError):
    """Shards of one folder are not parts of one whole."""


class FinishedShard(JsonRecord):
    """The content of shard.json, which appears in a shard's folder when the shard is finished.

    Attributes:
        index, count: of the shard.
        ids: of the shard's samples.
        places: place of each of them among all samples.
        samples: hash of the ids of all samples.
        questions: hash of the text of all samples; empty in shards of earlier versions.
    """

    index: int
    count: int
    ids: list[str]
    places: list[int]
    samples: str
    questions: str = ""


def select_batches(shard: Shard, batches: Sequence[list[Sample]]) -> list[list[Sample]]:
    """Return the batches of one shard. Batches whose first samples show the same images stay together.

    Example:
        >>> samples = [Sample(id=name, question="?") for name in "abcd"]
        >>> [batch[0].id for batch in select_batches(Shard(2, 2), [[sample] for sample in samples])]
        ['c', 'd']
    """
    groups: dict[tuple[Any, ...], list[list[Sample]]] = {}
    for batch in batches:
        groups.setdefault(prefix_key(batch[0]), []).append(batch)
    total, before = sum(map(len, batches)), 0
    chosen: set[str] = set()
    for group in groups.values():
        if before * shard.count // total == shard.index - 1:
            chosen.update(batch[0].id for batch in group)
        before += sum(map(len, group))
    return [batch for batch in batches if batch[0].id in chosen]


class ShardPart(NamedTuple):
    """A shard's samples.

    Attributes:
        out: the folder of the whole.
        folder: the folder that the shard's traces or answers go to.
        samples: the shard's samples, batch by batch.
        order: ids of all samples, of the other shards, too, as the whole lists them.
        questions: hash of the text of all samples.
    """

    out: Path
    folder: Path
    shard: Shard
    samples: list[Sample]
    order: list[str]
    questions: str


def choose_part(
    out: Path, shard: Shard, samples: Sequence[Sample], settings: AskSettings, model: Model, traced: bool
) -> ShardPart:
    """Return a shard's samples.

    Args:
        traced: a run lists its samples in their order, answers are listed as they come.

    Raises:
        InputError: the shard cannot be made in this folder.
    """
    check_no_link(out / FOLDER)
    check_shard(out, shard)
    (shard_folder(out, shard) / FINISHED).unlink(missing_ok=True)  # of a shard that is made again
    batches = form_batches(samples, settings, model.has_cross_attention)
    chosen = [sample for batch in select_batches(shard, batches) for sample in batch]
    if not traced:
        batches = sort_by_images(batches) if settings.shared_prefix else batches
        samples = [sample for batch in batches for sample in batch]
    order = [sample.id for sample in samples]
    return ShardPart(out, shard_folder(out, shard), shard, chosen, order, hash_questions(samples))


def trace_shard(
    shard: Shard,
    source: LocalModel,
    samples: Sequence[Sample],
    out: Path,
    settings: AskSettings,
    recorder: Recording,
) -> Run:
    """Trace a shard's samples, and return the whole run if this shard was the last; else the shard's own run."""
    part = choose_part(out, shard, samples, settings, source.model, traced=True)
    recorder = replace(recorder, whole=out)
    keep_answers(source, part.samples, part.folder, settings, recorder, "trace", samples)
    run = open_run(part.folder)  # now: another shard may move it away once this one is finished
    finish_shard(part)
    merge_if_last(out)
    return open_run(out) if (out / "run.json").is_file() else run


def check_shard(out: Path, shard: Shard) -> None:
    """Check that a shard can be made in a folder.

    Raises:
        InputError: the folder contains a whole run or whole answers, or another number of shards.
    """
    if (out / "run.json").is_file() or (out / "responses.jsonl").is_file():
        raise InputError(
            f"{out}: is whole already; leave the shard out and resume it, or choose another folder"
        )
    others = {path.name for path in (out / FOLDER).glob("*") if not path.name.endswith(f"-of-{shard.count}")}
    if others:
        raise InputError(
            f"{out}: contains another number of shards ({min(others)}); use that number, or delete {out / FOLDER}"
        )


def finish_shard(part: ShardPart) -> None:
    """Write shard.json, which says that a shard is finished."""
    place_of = {name: place for place, name in enumerate(part.order)}
    ids = sorted((sample.id for sample in part.samples), key=lambda name: place_of[name])
    record = {
        "index": part.shard.index,
        "count": part.shard.count,
        "ids": ids,
        "places": [place_of[name] for name in ids],
        "samples": hashlib.sha256(json.dumps(part.order).encode()).hexdigest(),
        "questions": part.questions,
    }
    write_whole({part.folder / FINISHED: (json.dumps(record) + "\n").encode()})


def merge_if_last(out: Path) -> None:
    """Merge the shards of a folder if all are finished. Shards that finish at the same time wait for each other.

    Where they are not parts of one whole, a warning says why.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            if _all_finished(out):
                merge_shards(out)
            return
        except ShardsDiffer as error:
            log.warning("%s", error)
            return
        except (InputError, FileNotFoundError) as error:
            if not (out / FOLDER).is_dir():
                return  # another process has merged them
            if not attempts_left:
                log.warning("%s", error)
        time.sleep(_WAIT_SECONDS)


def read_shards(out: Path) -> dict[Path, FinishedShard]:
    """Return the finished shards of a folder, by their folders.

    Raises:
        InputError: there are none, or some are missing or not finished.
        ShardsDiffer: they are not parts of one whole.
    """
    folders = _all_folders(out)
    unfinished = [folder.name for folder in folders if not (folder / FINISHED).is_file()]
    if unfinished:
        more = " …" if len(unfinished) > 5 else ""
        raise InputError(
            f"{out}: not finished: {', '.join(unfinished[:5])}{more}; start these shards with {option('resume')}"
        )
    shards = {folder: read_record(folder / FINISHED, FinishedShard) for folder in folders}
    if len({(shard.count, shard.samples) for shard in shards.values()}) != 1:
        raise ShardsDiffer(
            f"{out}: its shards are parts of different samples; delete {out / FOLDER}, start again"
        )
    if len({shard.questions for shard in shards.values() if shard.questions}) > 1:
        raise ShardsDiffer(
            f"{out}: the text of the questions changed between its shards; delete {out / FOLDER}, start again"
        )
    return shards


def _whole_order(shards: Iterable[FinishedShard]) -> list[str]:
    """Return the ids of all samples in their order."""
    places = [pair for shard in shards for pair in zip(shard.places, shard.ids, strict=True)]
    return [name for _, name in sorted(places)]


def merge_shards(out: str | Path) -> None:
    """Make a whole of its finished shards: a run, or a benchmark's answers. A merge that was stopped can be made again.

    Raises:
        InputError: a shard is missing, not finished, or being made; or the shards were not made in the same way.

    Example:
        >>> merge_shards("runs/demo")                               # doctest: +SKIP
    """
    out = Path(out)
    if not (out / FOLDER).is_dir():
        raise InputError(f"{out}: contains no shards to merge")
    with lock_folder(out, "merging its shards"):
        if not (out / "run.json").is_file() and not (out / RESPONSES).is_file():
            shards = read_shards(out)
            for folder in shards:
                check_unlocked(folder)
            join = _join_runs if all((folder / "run.json").is_file() for folder in shards) else _join_answers
            join(out, shards)
        shutil.rmtree(out / FOLDER, ignore_errors=not (out / FOLDER).exists())


def _all_finished(out: Path) -> bool:
    """Return whether all shards of a folder are finished."""
    return all((folder / FINISHED).is_file() for folder in _all_folders(out))


def _all_folders(out: Path) -> list[Path]:
    """Return the folders of all shards, those included that are not there yet.

    Raises:
        InputError: there is none yet.
    """
    folder = next((out / FOLDER).glob("*-of-*"), None)
    if folder is None:
        raise InputError(f"{out}: contains no shards to merge")
    count = int(folder.name.rpartition("-")[2])
    return [shard_folder(out, Shard(index, count)) for index in range(1, count + 1)]


def _check_alike(folder: Path, other: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Check that a shard is made as another one.

    Args:
        folder: of the shard.
        other, settings: what the other one, and this one, recorded: in `run.json`, or in `asked.json` of answers.

    Raises:
        ShardsDiffer: naming what differs.
    """
    keys = HASHED_KEYS if "capture" in settings else settings.keys() - {FINGERPRINT}
    differs = "was made with another {words} than the other shards"
    remedy = "delete the shards that are wrong, and make them again"
    ledger = Ledger(folder, "", "a shard", differs, remedy, since="between the shards")
    try:
        ledger.check_same(other, {key: settings.get(key) for key in keys}, settings.get(FINGERPRINT))
    except InputError as error:
        raise ShardsDiffer(str(error)) from None


def _check_all_alike(shards: Iterable[Path]) -> dict[str, Any]:
    """Check that shards are made alike, and return what the first one recorded. Other versions are a warning.

    Raises:
        ShardsDiffer: naming what differs.
    """
    recorded = {
        folder: read_record(folder / name, JsonRecord).model_dump()
        for folder in shards
        for name in ("run.json", "asked.json")
        if (folder / name).is_file()
    }
    first = next(iter(recorded.values()))
    for folder, settings in recorded.items():
        _check_alike(folder, first, settings)
        warn_of_versions(folder, _versions(settings), _versions(first) or {})
    return first


def _versions(settings: Mapping[str, Any]) -> Any:
    """Return the versions that a run or a benchmark's answers recorded."""
    return settings.get("versions") or (settings.get(FINGERPRINT) or {}).get("versions")


def _check_images(shards: Iterable[Path]) -> None:
    """Check that the images of the shards' traces are still those that the model saw.

    Raises:
        ShardsDiffer: naming the first sample whose images changed.
    """
    for folder in shards:
        run = open_run(folder) if (folder / "run.json").is_file() else ()
        for name in find_changed_images(run):
            raise ShardsDiffer(
                f"{folder}: the images of sample {name} changed since it was traced; start this shard with "
                f"{option('resume')}"
            )


def warn_of_begun_shards(out: Path, own: Path, config: Mapping[str, Any]) -> None:
    """Warn before a shard is traced if others that are begun are traced in another way: they will not be merged.

    Args:
        out: the folder of the whole.
        own: the shard's own folder.
        config: its `run.json`.
    """
    for folder in sorted((out / FOLDER).glob("*")):
        if folder != own and (folder / "run.json").is_file():
            try:
                _check_alike(folder, config, open_run(folder).config)
            except ShardsDiffer as error:
                log.warning("%s", error)


def shards_differ(out: Path) -> bool:
    """Return whether all shards of a folder are finished, and cannot be merged since they are not parts of one whole.

    That an image changed since a shard was traced is such a reason.
    """
    try:
        if (out / FOLDER).is_dir() and _all_finished(out):
            shards = read_shards(out)
            _check_all_alike(shards)
            _check_images(shards)
    except ShardsDiffer:
        return True
    except (InputError, FileNotFoundError):  # another process is merging them
        pass
    return False


def _join_runs(out: Path, shards: Mapping[Path, FinishedShard]) -> None:
    """Move the traces of all shards into one folder. `run.json` comes last."""
    first = _check_all_alike(shards)
    for folder in shards:
        for path in (*folder.glob("samples/*.h5"), *folder.glob(f"{PACKS}/*.h5")):
            check_digest(path)
    _check_images(shards)
    order = _whole_order(shards.values())
    make_subfolder(out / "samples")
    for folder in shards:
        for path in folder.glob("samples/*.h5"):
            os.replace(path, out / "samples" / path.name)
        for path in folder.glob(f"{PACKS}/*.h5"):
            make_subfolder(out / PACKS)
            os.replace(path, out / PACKS / f"{folder.name}-{path.name}")
    contents = {out / "run.json": (json.dumps(first | {"order": order}, indent=1) + "\n").encode()}
    write_whole(_join_failures(out, shards, order) | contents)


def _join_answers(out: Path, shards: Mapping[Path, FinishedShard]) -> None:
    """Make one file of the answers of all shards."""
    _check_all_alike(shards)
    line_of = {
        json.loads(line)["id"]: line
        for folder in shards
        for line in (folder / RESPONSES).read_bytes().splitlines(keepends=True)
    }
    order = _whole_order(shards.values())
    answers = b"".join(line_of[name] for name in order if name in line_of)
    asked = (next(iter(shards)) / "asked.json").read_bytes()
    contents = {out / "asked.json": asked, out / RESPONSES: answers}
    write_whole(_join_failures(out, shards, order) | contents)


def _join_failures(out: Path, shards: Iterable[Path], order: Sequence[str]) -> dict[Path, bytes]:
    """Return the file of all failures, and its content; nothing where there are none."""
    lines = {name: line for folder in shards for name, line in read_failures(folder).items()}
    text = "".join(json.dumps(lines[name]) + "\n" for name in order if name in lines)
    return {out / FAILURES: text.encode()} if text else {}
