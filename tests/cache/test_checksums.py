"""Every page of a trace is checked before HDF5 reads it."""

from __future__ import annotations

import random
import struct

import h5py
import numpy as np
import pytest
import xxhash

from mmprobe.cache import Trace, open_run, pack, verify
from mmprobe.cache.hdf5 import CheckedFile, append_checksums, checksums_match
from mmprobe.errors import InputError


def read_contents(trace: Trace) -> dict[str, object]:
    arrays = {name: trace.array(name).values for name in trace.captured}
    contents = {name: repr(a.tolist()) if a.dtype == object else a.tobytes() for name, a in arrays.items()}
    return contents | {"sample": trace.sample.model_dump(mode="json"), "answer": trace.answer}


def test_the_checksums_are_those_of_the_pages(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5", residual__pre=np.ones((9, 3, 4096), np.float16))
    content = (tmp_path / "a.h5").read_bytes()
    mark, size, checksum = struct.unpack("<16sQQ", content[-32:])
    checksums = content[size:-32]
    pages = [content[start : min(start + 65536, size)] for start in range(0, size, 65536)]
    assert len(pages) > 3 and mark == b"mmprobe xxh3 64K"
    expected = [int.from_bytes(xxhash.xxh3_64(page).digest(), "big") for page in pages]
    assert list(struct.unpack(f"<{len(pages)}Q", checksums)) == expected
    assert checksum == int.from_bytes(xxhash.xxh3_64(checksums).digest(), "big")


@pytest.mark.slow
def test_any_flipped_bit_is_refused_or_harmless(tmp_path, write_trace, flip):
    """Only the page checksums find this: damaged texts and headers crash HDF5 or are read as they are."""
    path, rng = tmp_path / "a.h5", random.Random(0)
    write_trace(
        path, residual__pre=np.random.default_rng(0).random((9, 3, 4096)).astype("f2")
    )  # several pages
    content, expected_contents = path.read_bytes(), read_contents(Trace(path))
    refused = 0
    for _ in range(300):
        flip(path, rng.randrange(len(content)), rng.randrange(8))
        try:
            assert read_contents(Trace(path)) == expected_contents
        except InputError as error:
            refused += "\n" not in str(error)
        path.write_bytes(content)
    assert refused > 250


@pytest.mark.parametrize("length", [0, 100, 20_000, -1, -32, -40])
def test_a_shortened_file_is_refused_or_read_without_loss(tmp_path, write_trace, length):
    path = tmp_path / "a.h5"
    write_trace(path)
    expected_contents = read_contents(Trace(path))
    path.write_bytes(path.read_bytes()[:length])
    assert not checksums_match(path)
    if length < 0:  # only the checksums are shortened, as when HDF5 changes a file
        assert read_contents(Trace(path)) == expected_contents
    else:
        with pytest.raises(InputError, match="damaged"):
            read_contents(Trace(path))


def test_an_edited_trace_is_read_and_reported(make_run):
    folder = make_run(names=("a",))
    with h5py.File(folder / "samples" / "a.h5", "r+") as file:
        file["ffn/gate_sum"][0, 0] = 7
    assert open_run(folder)["a"].ffn_gate_sum[0, 0] == 7
    (problem,) = verify(folder)
    assert "changed since it was written" in problem and "\n" not in problem


@pytest.mark.parametrize("damaged", [None, 100, 2_500_000], ids=["whole", "first part", "last part"])
def test_bytes_that_are_read_in_several_parts_are_checked(tmp_path, damaged):
    content, path = bytearray(np.random.default_rng(0).bytes(3_000_000)), tmp_path / "file"
    path.write_bytes(content)
    with open(path, "r+b") as file:
        append_checksums(file)
        if damaged is not None:
            file.seek(damaged)
            file.write(bytes([content[damaged] ^ 1]))
    target = bytearray(2_999_000)
    with open(path, "rb", buffering=0) as file:
        checked = CheckedFile(file)
        checked.seek(77)
        if damaged is None:
            assert checked.readinto(target) == len(target) and target == content[77 : 77 + len(target)]
            return
        with pytest.raises(OSError, match="are not what was written"):
            checked.readinto(target)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("method", ["seek", "tell", "readinto"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_ctrl_c_while_hdf5_reads_is_not_reported_as_damage(
    make_run, tmp_path, monkeypatch, packed, method, before
):
    """h5py loses some of these KeyboardInterrupts, and raises a SystemError at its next call."""
    path = make_run(names=["a"])
    if packed:
        path = pack(path, tmp_path / "packed.h5")
    original, calls, press_at = getattr(CheckedFile, method), 0, 0

    def press(self, *arguments):
        nonlocal calls
        calls += 1
        if before and calls == press_at:
            raise KeyboardInterrupt
        result = original(self, *arguments)
        if calls == press_at:
            raise KeyboardInterrupt
        return result

    def read():
        for trace in open_run(path):
            trace.check()
            with trace.keep_open():
                assert trace.answer and trace.attention_mass.size

    monkeypatch.setattr(CheckedFile, method, press)
    read()
    n_calls = calls
    assert n_calls > 10
    for call in range(1, n_calls + 1):
        calls, press_at = 0, call
        with pytest.raises(KeyboardInterrupt):
            read()
