"""A file of understood replies, so that no model is asked again what it has answered."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mmprobe.benchmarks.core.api_models import Reply
from mmprobe.benchmarks.judges.judge import Unscored
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, make_folders

_FORMAT = 1
_WAIT_SECONDS = 30.0  # for another process that writes
_DISK_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}


def cache_key(model: str, messages: Sequence[Sequence[Any]], sampling: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything that a reply depends on.

    Example:
        >>> cache_key("a/b", [("user", "Hi")], {"seed": 0})[:12]
        'cef11c6c7123'
    """
    content = {
        "model": model,
        "messages": [list(message) for message in messages],
        "sampling": dict(sampling),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


class ReplyCache:
    """An SQLite file of understood replies by `cache_key`. Several threads and processes may share it.

    A reply is in the file when `put` returns, so a killed run loses none. The file also contains why requests
    were left unscored, but no prompts, API keys or useless replies. A path of None keeps the replies in
    memory. Raises InputError where the file is not a reply cache or cannot be opened, and OSError on a full
    disk, here or in `put`.

    Example:
        >>> cache = ReplyCache(None)
        >>> cache.put("key", Reply("{}", "stop"))
        >>> cache.get("key"), cache.get("other")
        (Reply(text='{}', stop='stop', tokens=0), None)
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = threading.Lock()
        try:
            if self.path is not None:
                make_folders(check_no_link(self.path).parent)
            self._connection = sqlite3.connect(
                self.path or ":memory:", timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise self._describe(error) from None
        try:
            self._prepare_file()
        except (InputError, sqlite3.Error, UnicodeError) as error:
            self._connection.close()
            raise self._describe(error) from None

    def _prepare_file(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        # SQLite does not wait by itself if two processes change the journal mode at the same time.
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != _FORMAT and (version or tables):
            raise InputError(f"{self.path}: is an SQLite file, but no reply cache; choose another file")
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS replies"
            " (key TEXT PRIMARY KEY, text TEXT NOT NULL, stop TEXT NOT NULL) WITHOUT ROWID"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS unscored (key TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID"
        )
        self._connection.execute(f"PRAGMA user_version={_FORMAT}")
        self._connection.execute("COMMIT")

    def get(self, key: str) -> Reply | None:
        """Return the reply under a key, or None."""
        rows = self._run("SELECT text, stop FROM replies WHERE key = ?", (key,))
        return Reply(*rows[0]) if rows and all(isinstance(value, str) for value in rows[0]) else None

    def put(self, key: str, reply: Reply) -> None:
        """Store an understood reply. It replaces an earlier reply under the same key."""
        text = reply.text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be stored
        self._run("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, text, reply.stop))

    def get_unscored(self, key: str) -> Unscored | None:
        """Return why the last request under a key was left unscored, or None. It may be scored since."""
        rows = self._run("SELECT reason FROM unscored WHERE key = ?", (key,))
        return cast(Unscored, rows[0][0]) if rows else None

    def put_unscored(self, key: str, reason: Unscored) -> None:
        """Store why a request was left unscored."""
        self._run("INSERT OR REPLACE INTO unscored VALUES (?, ?)", (key, reason))

    def __len__(self) -> int:
        return self._run("SELECT count(*) FROM replies", ())[0][0]

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: str, values: tuple[str, ...]) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            raise self._describe(error) from None

    def _describe(self, error: Exception) -> InputError | OSError:
        """Return the error for the user."""
        if isinstance(error, InputError):
            return error
        code = _DISK_ERRORS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF) or getattr(error, "errno", None)
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            reason = (
                f"{os.strerror(code)}; replies that were understood are kept, call again when there is space"
            )
            return OSError(code, reason, str(self.path))
        return InputError(f"{self.path}: cannot be used as a reply cache ({error}); choose another file")
