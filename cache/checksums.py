"""Checksums of a file's pages behind its end, and a way to read it that looks at them first.

HDF5 checks its own headers, but not texts, and numbers only by a sum that makes reading slow; damaged texts can crash it.
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

PAGE_BYTES = 2**16
_PIECE = 2**20
_KEPT = 8  # pages
_END = struct.Struct("<16sQQ")  # mark, bytes that were sealed, checksum of the checksums
_MARK = b"mmprobe xxh3 64K"


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
        self.file = file
        self.size, self.sums = self._seal()
        self.place = 0
        self.kept: dict[int, memoryview] = {}  # pages of which a part was read

    def _seal(self) -> tuple[int, memoryview]:
        """How many bytes were sealed, and the checksums of their pages."""
        size = self.file.seek(0, os.SEEK_END)
        end = self._bytes(max(size - _END.size, 0), size)
        if not end.startswith(_MARK):
            return size, memoryview(b"")
        _, sealed, expected = _END.unpack(end)
        sums = self._bytes(sealed, size - _END.size)
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
        into, done = memoryview(target)[: max(self.size - self.place, 0)], 0
        while done < len(into):
            page, within = divmod(self.place, PAGE_BYTES)
            whole = (len(into) - done) // PAGE_BYTES * PAGE_BYTES
            if whole and not within:
                piece = into[done : done + whole]
                self._fill(piece, page)
            else:
                piece = self._page(page)[within : within + len(into) - done]
                into[done : done + len(piece)] = piece
            done += len(piece)
            self.place += len(piece)
        return done

    def _page(self, page: int) -> memoryview:
        """A whole page; some are kept, since HDF5 reads its headers in small parts."""
        if page not in self.kept:
            if len(self.kept) == _KEPT:
                self.kept.clear()
            found = memoryview(bytearray(min(PAGE_BYTES, self.size - page * PAGE_BYTES)))
            self._fill(found, page)
            self.kept[page] = found
        return self.kept[page]

    def _fill(self, into: memoryview, page: int) -> None:
        """Read pages from this one on, and compare them with what was sealed."""
        self._read(into, page * PAGE_BYTES)
        if self.sums:
            for number, found in enumerate(_sums(into), page):
                if found != self.sums[number]:
                    raise _Damaged(f"bytes from {number * PAGE_BYTES:,} on are not what was written")

    def _bytes(self, first: int, end: int) -> bytearray:
        found = bytearray(max(end - first, 0))
        self._read(memoryview(found), first)
        return found

    def _read(self, into: memoryview, first: int) -> None:
        self.file.seek(first)
        while into:
            count = self.file.readinto(into)
            if not count:
                raise _Damaged("it ends too early")
            into = into[count:]


def _sums(values: memoryview) -> Iterator[int]:
    return (
        xxh3_64_intdigest(values[start : start + PAGE_BYTES]) for start in range(0, len(values), PAGE_BYTES)
    )
