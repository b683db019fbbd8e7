"""A folder that a command can continue in: its lock, the settings of the call, and lines that a kill may cut off.

A command describes its folder by a `Ledger`. The first call records its settings; a second one is refused unless it
resumes or overwrites, and resumes only if it is the same call, on the same model and the same images.
docs/reliability.md says for each command what a stopped call leaves.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import socket
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import xxhash
from filelock import FileLock, Timeout

from mmprobe.errors import InputError, option
from mmprobe.files import (
    JsonRecord,
    Text,
    append_lines,
    check_no_link,
    cut_torn_line,
    is_part,
    json_lines,
    make_folders,
    read_record,
    write_atomic,
    writing_error,
)
from mmprobe.samples import Sample, hash_picture

log = logging.getLogger("mmprobe")

LOCK_NAMES = {".lock", ".lock.json"}  # in a locked folder
FINGERPRINT = "fingerprint"  # key of the settings: what was really used
_WAIT_SECONDS = 1.0  # a process that starts or ends has the lock for a moment only


@dataclass(frozen=True)
class Ledger:
    """What a command keeps in a folder, so that a second, equal call can continue it.

    Attributes:
        folder: the folder. The caller holds its lock while it writes.
        settings: name of the file with the settings of the call.
        holds: what the folder contains, for messages, such as `a run`.
        differs: how it differs from the call, for messages, such as `was traced with another {name}`: `name` is
            that of the first setting that differs, and what differs in it, `words` the same with spaces, `names` those
            of all, and `old` and `new` are the first one's values.
        remedy: what to do about it.
        offer: what the caller can do about an earlier call.
        mark: file that each earlier call leaves; by default that of the settings.
        owns: patterns of what `clear` removes.
        since: between what a model or an image changed, for messages.

    Example:
        >>> ledger = Ledger(Path("out/new"), "run.json", "a run", "was made with another {name}", "start again")
        >>> ledger.begun
        False
    """

    folder: Path
    settings: str
    holds: str
    differs: str
    remedy: str
    offer: str = ""
    mark: str = ""
    owns: tuple[str, ...] = ("*",)
    since: str = "since the earlier call"

    @property
    def begun(self) -> bool:
        """Whether an earlier call left something."""
        return (self.folder / (self.mark or self.settings)).is_file()

    def check(self, resume: bool, overwrite: bool = False) -> None:
        """Check that a call may write into the folder.

        Raises:
            InputError: the folder contains an earlier call and neither option is given, or both are.
        """
        check_earlier(
            self.folder / (self.mark or self.settings), self.holds, resume, overwrite, self.offer, self.folder
        )

    def clear(self) -> None:
        """Remove what the ledger owns. The mark of an earlier call goes last, so a killed call can be repeated."""
        last = (self.settings, self.mark)
        found = {path for pattern in self.owns for path in self.folder.glob(pattern)}
        for path in sorted(found, key=lambda path: (path.name in last, path.name == self.mark, path)):
            if path.name in LOCK_NAMES:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def is_empty(self, besides: Iterable[str] = ()) -> bool:
        """Return whether the folder is missing, or contains nothing but its lock, parts and files of these names."""
        allowed = {*LOCK_NAMES, *besides}
        return not self.folder.exists() or all(
            path.name in allowed or is_part(path.name) for path in self.folder.iterdir()
        )

    def begin(
        self,
        settings: Mapping[str, Any],
        used: Mapping[str, Any] | None = None,
        kept: bool | None = None,
        finished: Container[str] | None = None,
    ) -> None:
        """Record the settings of a call, or check that the earlier call in the folder was the same.

        Args:
            settings: what the results depend on, for JSON.
            used: as `fingerprint` returns it. What the earlier call did not record is not checked.
            kept: whether to continue an earlier call; by default, whether it is `begun`.
            finished: ids of the samples with a result. The images of the others may have changed, as those that were
                repaired; what is recorded of them is then that of this call. None if all have one.

        Raises:
            InputError: the earlier call had other settings, its settings cannot be read, or the folder cannot be
                written.
        """
        file = self.folder / self.settings
        if self.begun if kept is None else kept:
            try:
                earlier = read_record(file, JsonRecord).model_dump()
            except (OSError, InputError):
                raise InputError(
                    f"{self.folder}: does not say whose call left it ({self.settings} cannot be read); {self.remedy}"
                ) from None
            images = (used or {}).get("images", {})
            open_images = (
                {}
                if finished is None
                else {key: value for key, value in images.items() if key not in finished}
            )
            settled = {key: value for key, value in images.items() if key not in open_images}
            self.check_same(earlier, settings, used and {**used, "images": settled})
            warn_of_versions(self.folder, (earlier.get(FINGERPRINT) or {}).get("versions"))
            recorded = (earlier.get(FINGERPRINT) or {}).get("images")
            if isinstance(recorded, dict) and {**recorded, **open_images} != recorded:
                recorded.update(open_images)
                write_atomic(file, json.dumps(earlier, indent=1) + "\n")
            return
        content = dict(settings)
        if used:
            content[FINGERPRINT] = {**used, "versions": library_versions()}
        write_atomic(file, json.dumps(content, indent=1) + "\n")

    def check_same(
        self, earlier: Mapping[str, Any], settings: Mapping[str, Any], used: Mapping[str, Any] | None = None
    ) -> None:
        """Check that the settings of an earlier call are those of this one.

        Raises:
            InputError: a setting differs, or the model or the images of a sample changed. The message says which.
        """
        if names := list_differences(earlier, settings):
            name, old, new = names[0], earlier.get(names[0]), settings[names[0]]
            within = _describe_difference(old, new)
            problem = self.differs.format(
                name=name + within,
                words=(name + within).replace("_", " "),
                names=", ".join(names),
                old=old,
                new=new,
            )
        elif change := find_change(earlier.get(FINGERPRINT), used):
            problem = f"{change} changed {self.since}"
        else:
            return
        raise InputError(f"{self.folder}: {problem}; {self.remedy}")

    def lines(self, name: str) -> list[Any]:
        """Return the records of a file of JSON lines. A last line that a kill cut off is removed from it.

        Raises:
            InputError: a line is not JSON.
        """
        file = self.folder / name
        return [record for _, record in json_lines(file)] if cut_torn_line(file) else []

    def append(self, name: str, records: Iterable[Any], ensure_ascii: bool = True) -> None:
        """Append one line a record to a file of JSON lines. The error of a full disk says how to continue."""
        try:
            append_lines(self.folder / name, records, ensure_ascii)
        except OSError as error:
            raise name_remedy(error, self.folder) from None


def name_remedy(error: OSError, folder: Path) -> OSError:
    """Return the error of a disk, such as a full one, with what is kept and how to continue.

    Args:
        folder: what the message names if the error names no file.
    """
    problem = os.strerror(error.errno) if error.errno else error  # HDF5's own text has many lines
    reason = f"{problem}; finished samples are kept, continue with {option('resume')}"
    return OSError(error.errno, reason, error.filename or str(folder))


def check_earlier(
    mark: Path, holds: str, resume: bool, overwrite: bool, offer: str, folder: Path | None = None
) -> None:
    """Check that a call may write into a folder, before something slow is done.

    Args:
        mark: a file that each earlier call leaves.
        holds: what the folder contains then, for the message, such as `answers`.
        offer: what the caller can do about it, for the message.
        folder: the folder; by default the one that the file is in.

    Raises:
        InputError: the folder contains an earlier call and neither option is given, or both are.

    Example:
        >>> check_earlier(Path("runs/new/run.json"), "a run", False, False, "choose another folder")
    """
    if resume and overwrite:
        raise InputError(f"{option('resume')} and {option('overwrite')}: choose one")
    if mark.exists() and not resume and not overwrite:
        raise InputError(f"{folder or mark.parent}: already contains {holds}; {offer}")


def list_differences(earlier: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that an earlier call did not have, or had with another value.

    Example:
        >>> list_differences({"seed": 1, "shape": [2, 3]}, {"seed": 2, "shape": (2, 3)})
        ['seed']
    """
    now = json.loads(json.dumps(settings))
    return [name for name, value in now.items() if earlier.get(name) != value]


def _describe_difference(old: Any, new: Any) -> str:
    """Return what differs first between two mappings, in parentheses; nothing for other values.

    Example:
        >>> _describe_difference({"name": "a", "dtype": "float32"}, {"name": "a", "dtype": "bfloat16"})
        ' (dtype float32, now bfloat16)'
    """
    if not isinstance(old, dict) or not isinstance(new, Mapping):
        return ""
    name = min(list_differences(old, new) or old.keys() - new.keys(), default=None)
    if name is None:
        return ""
    old, new = old.get(name), new.get(name)
    within = _describe_difference(old, new)
    if within or not all(isinstance(value, _SHORT) for value in (old, new)):
        return f" ({name}{within})"
    return f" ({name} {old}, now {new})"


_SHORT = (str, int, float, bool, type(None))


def fingerprint(
    model: Mapping[str, str] | None = None,
    samples: Sequence[Sample] = (),
    methods: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return hashes of what a call really used, to be recorded with its settings.

    Args:
        model: `mmprobe.models.Model.fingerprint`; None for a model that is not loaded here.
        samples: the samples that are shown to it.
        methods: by name, `mmprobe.interventions.Method.fingerprint` of those that change its answers.

    Returns:
        `model`, by part; `images`, by sample; `methods`, by name; and `questions`, one hash of all. Without what there is
        not.
    """
    images = {sample.id: hash_images(sample) for sample in samples if sample.files}
    parts = {"model": model, "images": images, "methods": methods}
    used: dict[str, Any] = {key: dict(value) for key, value in parts.items() if value}
    return used | ({"questions": hash_questions(samples)} if samples else {})


def hash_images(sample: Sample) -> str:
    """Return a hash of the content of a sample's images and videos, in order; an empty text where one cannot be read.

    Example:
        >>> hash_images(Sample(id="a", question="?", images=["nowhere.png"]))
        ''
    """
    try:
        return xxhash.xxh3_64_hexdigest("".join(map(hash_picture, sample.files)).encode())
    except OSError:
        return ""


def hash_questions(samples: Iterable[Sample]) -> str:
    """Return a hash of everything in samples but their images and videos, in order. Of these, it has the names.

    Example:
        >>> samples = [Sample(id="a", question="?", images=[folder / "a.png"]) for folder in (Path("b"), Path("c"))]
        >>> hash_questions(samples[:1]) == hash_questions(samples[1:])
        True
    """
    return hash_content(list(map(list_parts, samples)))


def list_parts(sample: Sample) -> list[Any]:
    """Return everything in a sample as JSON, with the names of its images and videos in place of their paths.

    Example:
        >>> list_parts(Sample(id="a", question="?", images=["b/a.png"]))[1]
        ['a.png']
    """
    videos = [video.place(lambda file: Path(file.name)).model_dump(mode="json") for video in sample.videos]
    texts = sample.model_dump(mode="json", exclude={"images", "videos"})
    return [texts, [path.name for path in sample.images], *([videos] if videos else [])]


def hash_content(content: Any) -> str:
    """Return a hash of a JSON value.

    Example:
        >>> len(hash_content({"a": 1}))
        16
    """
    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())


def find_change(earlier: Any, used: Mapping[str, Any] | None) -> str | None:
    """Return what changed between two fingerprints, in words; None if nothing that both know did.

    Example:
        >>> find_change({"images": {"a": "1f"}}, {"images": {"a": "2c"}})
        'the images of sample a'
    """
    if not isinstance(earlier, dict) or not used:
        return None
    for part, words in _PARTS.items():
        old, new = earlier.get(part), used.get(part)
        if not isinstance(old, dict) or new is None:
            continue
        is_other_kind = part == "model" and old.get("of") != new.get(
            "of"
        )  # of files, or of weights in memory
        for name in ["dtype"] if is_other_kind else new:
            before, now = old.get(name), new.get(name)
            is_found = name in _SOUGHT and old.get("weights") and new.get("weights") and name in old
            if before != now and (before and now or part == "model" and is_found):
                return words.format(name)
    old, new = earlier.get("questions"), used.get("questions")
    return "the text of the questions" if old and new and old != new else None


_PARTS = {  # of a fingerprint, in words
    "model": "the model's {}",
    "images": "the images of sample {}",
    "methods": "a parameter of method {}, or the content of a file that it names,",
}
_SOUGHT = ("config", "generation config", "chat template", "tokenizer", "processor")
"""Parts of a model that are looked for whenever its weights are read: one that is empty is not there."""
LIBRARIES = ("mmprobe", "torch", "transformers", "tokenizers", "numpy", "pillow")


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of what results depend on, by name; without what is not installed.

    Example:
        >>> "torch" in library_versions()
        True
    """
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def warn_of_versions(place: Path, earlier: Any, others: Any = None) -> None:
    """Warn if a call that is continued was begun with other versions: its numbers may differ in their last digits.

    Args:
        place: the folder.
        earlier: versions by name, as recorded; anything else says nothing.
        others: those of what it is put together with; None for those of this process.
    """
    if not isinstance(earlier, dict) or not isinstance(others, dict | None):
        return
    word = "now" if others is None else "others with"
    changes = [
        f"{name} {earlier[name]}, {word} {other}"
        for name, other in (library_versions() if others is None else others).items()
        if earlier.get(name, other) != other
    ]
    if changes:
        log.warning("%s: was begun with %s; digits may differ", place, "; ".join(changes))


@contextmanager
def lock_folder(folder: Path, task: str) -> Iterator[None]:
    """Make a folder and let only this process write to it. New folders that stay empty are removed again.

    Args:
        folder: the folder; reading it stays possible.
        task: what this process does, for the message that another process gets, such as `tracing into it`.

    Raises:
        InputError: another process holds the lock, or the folder cannot be written, or contains a link to a folder:
            what is written must stay in it.

    Example:
        >>> with lock_folder(Path("runs/demo"), "tracing into it"):     # doctest: +SKIP
        ...     ...
    """
    new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    make_folders(folder)
    try:
        with _hold(folder / ".lock", folder, task):
            for path in folder.iterdir():
                if path.is_dir():
                    check_no_link(path)
            yield
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()  # only where it is empty, as after bad input


def check_unlocked(folder: Path) -> None:
    """Check that no other process writes to a folder, before something slow is done.

    Raises:
        InputError: another process holds the lock.
    """
    if os.path.exists(folder / ".lock.json"):
        with lock_folder(folder, "looking at it"):
            pass


@contextmanager
def lock_file(file: Path, task: str) -> Iterator[None]:
    """Lock a file that is going to be written. The lock is beside it, and the file need not exist.

    Raises:
        InputError: another process holds the lock, or the file's folder cannot be written.
    """
    with _hold(file.with_name(f".{file.name}.lock"), file, task):
        yield


@contextmanager
def _hold(lock: Path, target: Path, task: str) -> Iterator[None]:
    """Hold a lock of the operating system, which ends with the process even if that is killed.

    `<lock>.json` names the process, for the message that another process gets.
    """
    note, file_lock = Path(f"{lock}.json"), FileLock(lock)
    try:
        file_lock.acquire(timeout=_WAIT_SECONDS)
    except Timeout:
        raise InputError(_describe(_read_note(note), target)) from None
    except OSError as error:
        raise writing_error(target, error, "cannot be locked for writing") from None
    try:
        entry = {"host": socket.gethostname(), "process": os.getpid(), "task": task, "since": time.time()}
        with suppress(OSError, InputError):  # a full disk: others are refused without a name
            write_atomic(note, json.dumps(entry) + "\n")
        try:
            yield
        finally:
            for path in (note, lock):  # before the lock ends, since later they could be another process's
                with suppress(OSError):
                    path.unlink()
    finally:
        file_lock.release()


class _Note(JsonRecord):
    host: Text
    process: int
    task: Text
    since: float


def _read_note(note: Path) -> dict[str, str]:
    """Return what a lock's note says; nothing if there is none, or if a full disk or a kill cut it off."""
    try:
        holder = read_record(note, _Note)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(holder.since))
    except (OSError, InputError, ValueError, OverflowError):
        return {}
    return {
        "host": holder.host[:100],
        "process": str(holder.process)[:20],
        "task": holder.task[:100],
        "since": since,
    }


def _describe(holder: dict[str, str], target: Path) -> str:
    """Return the message to a process that is refused."""
    if not holder:
        return f"{target}: another process is writing to it; wait, or choose another place"
    return (
        f"{target}: process {holder['process']} on host {holder['host']} is {holder['task']} "
        f"since {holder['since']}; wait, or choose another place"
    )
