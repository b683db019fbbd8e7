"""Checksums of a file's pages behind its end, and a way to read it that looks at them first.

HDF5 checks its own headers, but neither texts nor, unless it is slow about it, numbers; and damaged texts can crash it.
So every page is checked before HDF5 sees it. HDF5 does not mind what follows its data, and cuts it off when it changes a
file: a trace that somebody has edited has no checksums any more, rather than wrong ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom, FileIO
from pathlib import Path

import h5py
from xxhash import xxh3_64_intdigest

PAGE_BYTES = 2**14
_PIECE = 2**20
_END = struct.Struct("<16sQQ")  # mark, bytes that were sealed, checksum of the checksums
_MARK = b"mmprobe xxh3 16K"


def seal(file: BufferedRandom) -> None:
    """Write the checksums of all pages behind the end of a file."""
    file.seek(0)
    piece, sums = bytearray(_PIECE), bytearray()
    while count := file.readinto(piece):
        sums += b"".join(struct.pack("<Q", found) for found in _sums(memoryview(piece)[:count]))
    size = file.seek(0, os.SEEK_END)
    file.write(sums + _END.pack(_MARK, size, xxh3_64_intdigest(sums)))
    file.flush()


def is_unbroken(path: Path) -> bool:
    """Whether a file is byte for byte as it was sealed; False if it was not sealed, or was changed since."""
    with open(path, "rb", buffering=0) as file:
        try:
            checked, piece = _Checked(file), bytearray(_PIECE)
            while checked.readinto(piece):
                pass
        except _Damaged:
            return False
        return bool(checked.sums)


@contextmanager
def checked(path: Path) -> Iterator[h5py.File]:
    """Within the block, a file to read, whose bytes are as they were sealed; one without seal is read as it is.

    Raises:
        OSError: it cannot be opened, or, while it is read, bytes are not what was sealed.

    Example:
        >>> with checked(path) as trace:                            # doctest: +SKIP
        ...     trace["steps/id"][...]
    """
    with open(path, "rb", buffering=0) as file, h5py.File(_Checked(file), "r", rdcc_nbytes=0) as opened:
        yield opened


class _Damaged(OSError):
    pass


class _Checked:
    """What `h5py.File` wants of a file, with pages that were checked."""

    def __init__(self, file: FileIO):
        self.number = file.fileno()
        self.size, self.sums = self._seal()
        self.place = 0
        self.good: set[int] = set()  # pages of which a part was read, and all was checked

    def _seal(self) -> tuple[int, memoryview]:
        """How many bytes were sealed, and the checksums of their pages."""
        size = os.fstat(self.number).st_size
        end = os.pread(self.number, _END.size, max(size - _END.size, 0))
        if not end.startswith(_MARK):
            return size, memoryview(b"")
        _, sealed, expected = _END.unpack(end)
        sums = os.pread(self.number, max(size - _END.size - sealed, 0), sealed)
        if len(sums) != -(-sealed // PAGE_BYTES) * 8 or xxh3_64_intdigest(sums) != expected:
            raise _Damaged("its checksums are damaged")
        return sealed, memoryview(sums).cast("Q")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def read(self, count: int) -> bytes:
        target = bytearray(count)
        return bytes(target[: self.readinto(target)])

    def readinto(self, target: bytearray | memoryview) -> int:
        """Fill the target from the present place, as far as there are bytes, and go on to behind them."""
        first, end = self.place, min(self.place + len(target), self.size)
        if end <= first:
            return 0
        into = memoryview(target)[: end - first]
        done = os.preadv(self.number, [into], first)
        if done < len(into):
            raise _Damaged("it ends too early")
        if self.sums:
            self._check(into, first, end)
        self.place = end
        return done

    def _check(self, read: memoryview, first: int, end: int) -> None:
        """Check the pages that these bytes, from `first` to `end`, lie in."""
        whole, behind = -(-first // PAGE_BYTES), end // PAGE_BYTES
        for page in {first // PAGE_BYTES, (end - 1) // PAGE_BYTES} - self.good:
            if not whole <= page < behind:  # only a part of it was read
                start = page * PAGE_BYTES
                found = os.pread(self.number, min(PAGE_BYTES, self.size - start), start)
                self._compare(page, xxh3_64_intdigest(found))
                self.good.add(page)
        inner = read[whole * PAGE_BYTES - first : behind * PAGE_BYTES - first] if behind > whole else read[:0]
        for page, found in enumerate(_sums(inner), whole):
            self._compare(page, found)

    def _compare(self, page: int, found: int) -> None:
        if found != self.sums[page]:
            raise _Damaged(f"bytes from {page * PAGE_BYTES:,} on are not what was written")


def _sums(values: memoryview) -> Iterator[int]:
    return (
        xxh3_64_intdigest(values[start : start + PAGE_BYTES]) for start in range(0, len(values), PAGE_BYTES)
    )
