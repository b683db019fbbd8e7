"""Reserve disk space before HDF5 writes: a write that fails within HDF5 can crash the process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import h5py

_HEADER_BYTES = 2**18  # headers, indices and dimension scales
_RESERVE_BYTES = 2**20  # reserved on the disk at a time


def create_file(path: Path) -> tuple[h5py.File, ReservedSpace]:
    """Create an HDF5 file, and reserve disk space for it.

    Raises:
        OSError: the disk is full, or the file cannot be made; nothing is left of it.
    """
    file = None
    try:
        file = h5py.File(path, "w", libver=("v110", "v110"))
        return file, ReservedSpace(path)
    except OSError as error:
        if file is not None:
            file.close()
        with suppress(OSError):
            path.unlink()
        reason = os.strerror(error.errno) if error.errno else str(error)  # HDF5's own text has many lines
        raise OSError(error.errno, reason, str(path)) from None


class ReservedSpace:
    """Disk space of one file that is being written.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     space = ReservedSpace(Path(file.name))
        ...     space.reserve(1000)
        ...     space.close()
    """

    def __init__(self, path: Path):
        self.path, self.file = path, os.open(path, os.O_RDWR)
        self.needed = _HEADER_BYTES
        self.reserved = 0
        try:
            self.reserve(0)
        except OSError:
            self.close()
            raise

    def reserve(self, count: int) -> None:
        """Reserve space for this many more bytes.

        Raises:
            OSError: the disk has no space.
        """
        self.needed += count
        if self.needed > self.reserved and hasattr(os, "posix_fallocate"):
            end = self.needed + _RESERVE_BYTES
            try:
                os.posix_fallocate(self.file, self.reserved, end - self.reserved)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self.reserved = end

    def close(self) -> None:
        """Close the file; what was reserved stays a part of it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
