"""Let only one process at a time write to a folder or a file. Reading needs no lock."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from mmprobe.errors import InputError
from mmprobe.samples import regular_file
from mmprobe.whole_files import writing_error

LOCK_NAMES = {".lock", ".lock.json"}  # in a locked folder
_ATTEMPTS = 10  # to get the lock, while its holder has no name
_WAIT_SECONDS = 0.3  # a process that starts or ends holds the lock for a moment only


@contextmanager
def lock_folder(folder: Path, task: str) -> Iterator[None]:
    """Make a folder and lock it. New folders that stay empty are removed again.

    Args:
        folder: the folder; reading it stays possible.
        task: what this process does, for the message that another process gets, such as `tracing into it`.

    Raises:
        InputError: another process holds the lock, or the folder cannot be written.

    Example:
        >>> with lock_folder(Path("runs/demo"), "tracing into it"):     # doctest: +SKIP
        ...     ...
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another folder")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise writing_error(folder, error) from None
    try:
        with _hold(folder / ".lock", folder, task):
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
    if (folder / ".lock.json").exists():
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

    `<lock>.json` names the process. It is needed for messages, and where hosts share a folder but not its locks.
    """
    file_lock, note = FileLock(lock), Path(f"{lock}.json")
    try:
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                file_lock.acquire(timeout=_WAIT_SECONDS)
                break
            except Timeout:
                holder = _read_note(note)
                if holder or not attempts_left:  # a process that starts or ends has no note for a moment
                    raise InputError(_describe(holder, target, lock)) from None
    except OSError as error:
        raise writing_error(target, error, "cannot be locked for writing") from None
    try:
        holder = _read_note(note)
        if holder.get("host", socket.gethostname()) != socket.gethostname():
            raise InputError(_describe(holder, target, lock))
        entry = {"host": socket.gethostname(), "process": os.getpid(), "task": task, "since": time.time()}
        with suppress(OSError):  # a full disk: others are refused without a name
            note.unlink(missing_ok=True)  # it could be a link to another file
            note.write_text(json.dumps(entry) + "\n", encoding="utf-8")
        try:
            yield
        finally:
            for path in (note, lock):  # before the lock ends, since later they could be another process's
                with suppress(OSError):
                    path.unlink()
    finally:
        file_lock.release()


def _read_note(note: Path) -> dict[str, str]:
    """Return what a lock's note says; nothing if there is none, or if a full disk or a kill cut it off."""
    try:
        holder = json.loads(regular_file(note).read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(holder["since"]))
        return {key: str(holder[key]) for key in ("host", "process", "task")} | {"since": since}
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}


def _describe(holder: dict[str, str], target: Path, lock: Path) -> str:
    """Return the message to a process that is refused."""
    if not holder:
        return f"{target}: another process is writing to it; wait, or choose another place"
    message = (
        f"{target}: process {holder['process']} on host {holder['host']} is {holder['task']} "
        f"since {holder['since']}; wait, or choose another place"
    )
    if holder["host"] != socket.gethostname():
        message += f"; if that process is gone, delete {lock} and {lock}.json"
    return message
