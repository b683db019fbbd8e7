"""Write files that appear only when they are whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mmprobe.errors import InputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def write_whole(contents: Mapping[Path, bytes | memoryview | Iterable[bytes]]) -> None:
    """Write files. They get their names when all of them are on the disk, so earlier files stay whole until then.

    Args:
        contents: of each file, as one piece or as pieces that follow each other.

    Raises:
        InputError: a file cannot be written.
        OSError: the disk is full or fails.

    Example:
        >>> write_whole({Path("out/results.json"): b"{}"})          # doctest: +SKIP
    """
    parts = {file: file.with_name(file.name + ".part") for file in contents}
    try:
        for file, content in contents.items():
            try:
                with open(parts[file], "wb") as part:
                    part.writelines([content] if isinstance(content, bytes | memoryview) else content)
                    part.flush()
                    os.fsync(part.fileno())
            except OSError as error:
                raise writing_error(file, error) from None
        for file, part_file in parts.items():
            try:
                os.replace(part_file, file)
            except OSError as error:
                raise writing_error(file, error) from None
    finally:
        for part_file in parts.values():
            with suppress(OSError):
                part_file.unlink()


def writing_error(path: Path, error: OSError, problem: str = "cannot be written") -> InputError | OSError:
    """Return the error for the user: a full disk fails the job, and anything else is a place that cannot be used."""
    if error.errno in FULL:
        return OSError(error.errno, error.strerror, str(path))
    return InputError(f"{path}: {problem} ({error.strerror or error})")
