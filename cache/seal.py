"""A checksum of a whole file, in the block that HDF5 leaves free at its beginning.

HDF5 checks the chunks of arrays and its own headers, but not texts; and damaged texts can crash it.
"""

from __future__ import annotations

import hashlib
from io import BufferedRandom, BufferedReader
from pathlib import Path

SEAL_BYTES = 512  # the smallest user block of HDF5
_MARK = b"mmprobe sha256 "


def _digest(file: BufferedReader | BufferedRandom) -> bytes:
    file.seek(SEAL_BYTES)
    return _MARK + hashlib.file_digest(file, "sha256").hexdigest().encode() + b"\n"


def seal(file: BufferedRandom) -> None:
    """Write the checksum of everything after the user block into the user block."""
    line = _digest(file)
    file.seek(0)
    file.write(line)
    file.flush()


def is_unbroken(path: Path) -> bool:
    """Whether a file is byte for byte as it was sealed; False if it was not sealed."""
    with open(path, "rb") as file:
        line = _digest(file)
        file.seek(0)
        return file.read(len(line)) == line
