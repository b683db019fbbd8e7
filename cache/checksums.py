"""Checksums of a file's pages after its end, and a file object that checks each page it reads.

HDF5 checks its own headers, but not texts, and numbers only with a slow checksum; damaged texts can crash it.
Here every page is checked before HDF5 reads it. HDF5 ignores bytes after its data, and cuts them off when it
changes a file. An edited trace therefore has no checksums, rather than wrong ones.
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

from mmprobe.errors import InputError
from mmprobe.files import check_readable

PAGE_BYTES = 2**16
_READ_BYTES = 2**20
_CACHED_PAGES = 8
_FOOTER = struct.Struct("<16sQQ")  # mark, number of bytes with a checksum, checksum of the checksums
_MARK = b"mmprobe xxh3 64K"


def append_checksums(file: BufferedRandom) -> None:
    """Write the checksums of all pages of a file after its end."""
    file.seek(0)
    buffer, checksums = bytearray(_READ_BYTES), bytearray()
    while count := file.readinto(buffer):
        pages = _page_checksums(memoryview(buffer)[:count])
        checksums += b"".join(struct.pack("<Q", checksum) for checksum in pages)
    size = file.seek(0, os.SEEK_END)
    file.write(checksums + _FOOTER.pack(_MARK, size, xxh3_64_intdigest(checksums)))
    file.flush()


def checksums_match(path: Path) -> bool:
    """Return whether a file has checksums and all of them match."""
    with open(check_readable(path), "rb", buffering=0) as file:
        try:
            checked, buffer = CheckedFile(file), bytearray(_READ_BYTES)
            while checked.readinto(buffer):
                pass
        except _ChecksumError:
            return False
        return bool(checked.checksums)


def check_checksums(path: Path) -> None:
    """Raise InputError unless a file has checksums and all of them match."""
    try:
        matches = checksums_match(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not matches:
        raise InputError(
            f"{path}: damaged, or changed since it was written (its checksums differ or are missing); "
            "delete it and make it again"
        )


@contextmanager
def open_checked(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file, and check each page that is read. A file without checksums is read unchecked.

    Raises:
        OSError: the file cannot be opened, or a page that is read does not match its checksum.

    Example:
        >>> with open_checked(path) as trace:                       # doctest: +SKIP
        ...     trace["steps/id"][...]
    """
    with open_with_pages(path) as (hdf5_file, _):
        yield hdf5_file


@contextmanager
def open_with_pages(path: Path) -> Iterator[tuple[h5py.File, CheckedFile]]:
    """Open an HDF5 file as `open_checked` does, and its bytes beside it, checked as well."""
    with open(check_readable(path), "rb", buffering=0) as file:
        checked = CheckedFile(file)
        with h5py.File(checked, "r", rdcc_nbytes=0) as hdf5_file:
            yield hdf5_file, CheckedFile(file, checked)


def repeat_interrupt(error: BaseException) -> None:
    """Raise the KeyboardInterrupt that an error of h5py comes from, if it comes from one.

    HDF5 continues after a Ctrl-C within one of its calls of `CheckedFile`, and Python then raises a SystemError at
    the next call. Without this, the file would be reported as damaged.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__cause__ or cause.__context__


class _ChecksumError(OSError):
    pass


class CheckedFile:
    """A file object for `h5py.File` that compares each page with its checksum.

    Args:
        file: the open file.
        other: another reader of this file, which knows its checksums already.
    """

    def __init__(self, file: FileIO, other: CheckedFile | None = None):
        self.file = file
        footer = (other.size, other.checksums, other.content) if other is not None else self._read_footer()
        self.size: int = footer[0]
        self.checksums: memoryview = footer[1]
        self.content: int | None = footer[2]  # the checksum of the checksums, which tells files apart
        self.position = 0
        self.cache: dict[int, memoryview] = {}  # pages by number

    def _read_footer(self) -> tuple[int, memoryview, int | None]:
        """Return the number of bytes before the checksums, the checksums, and their own checksum."""
        size = self.file.seek(0, os.SEEK_END)
        footer = self._read_bytes(max(size - _FOOTER.size, 0), size)
        if not footer.startswith(_MARK):
            return size, memoryview(b""), None
        _, data_size, expected = _FOOTER.unpack(footer)
        checksums = self._read_bytes(data_size, size - _FOOTER.size)
        if len(checksums) != -(-data_size // PAGE_BYTES) * 8 or xxh3_64_intdigest(checksums) != expected:
            raise _ChecksumError("its checksums are damaged")
        return data_size, memoryview(checksums).cast("Q"), expected

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        self.position = start + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def read(self, count: int) -> bytes:
        target = bytearray(count)
        return bytes(target[: self.readinto(target)])

    def readinto(self, target: bytearray | memoryview) -> int:
        """Fill the target from the present position on, and return how many bytes there were."""
        remaining = memoryview(target)[: max(self.size - self.position, 0)]
        total = len(remaining)
        while remaining:
            page, offset = divmod(self.position, PAGE_BYTES)
            whole_pages = len(remaining) // PAGE_BYTES * PAGE_BYTES
            if whole_pages and not offset:
                count = whole_pages
                self._read_pages(remaining[:count], page)
            else:
                part = self._cached_page(page)[offset : offset + len(remaining)]
                count = len(part)
                remaining[:count] = part
            self.position += count
            remaining = remaining[count:]
        return total

    def _cached_page(self, page: int) -> memoryview:
        """Return a whole page. Some pages are cached, since HDF5 reads its headers in small parts."""
        if page not in self.cache:
            if len(self.cache) == _CACHED_PAGES:
                self.cache.clear()
            content = memoryview(bytearray(min(PAGE_BYTES, self.size - page * PAGE_BYTES)))
            self._read_pages(content, page)
            self.cache[page] = content
        return self.cache[page]

    def _read_pages(self, target: memoryview, first_page: int) -> None:
        """Read consecutive pages and compare them with their checksums, a few at a time while the cache has them."""
        for start in range(0, len(target), _READ_BYTES):
            part, first = target[start : start + _READ_BYTES], first_page + start // PAGE_BYTES
            self._fill(part, first * PAGE_BYTES)
            if self.checksums:
                for page, checksum in enumerate(_page_checksums(part), first):
                    if checksum != self.checksums[page]:
                        raise _ChecksumError(f"bytes from {page * PAGE_BYTES:,} on are not what was written")

    def _read_bytes(self, start: int, end: int) -> bytearray:
        content = bytearray(max(end - start, 0))
        self._fill(memoryview(content), start)
        return content

    def _fill(self, target: memoryview, start: int) -> None:
        self.file.seek(start)
        while target:
            count = self.file.readinto(target)
            if not count:
                raise _ChecksumError("it ends too early")
            target = target[count:]


def _page_checksums(content: memoryview) -> Iterator[int]:
    for start in range(0, len(content), PAGE_BYTES):
        yield xxh3_64_intdigest(content[start : start + PAGE_BYTES])
