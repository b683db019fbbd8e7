"""A digest of each file's bytes follows them: damage is noticed by whatever keeps or copies a trace."""

from __future__ import annotations

import random
import struct

import h5py
import numpy as np
import pytest
import xxhash

from mmprobe.cache import TraceWriter, open_run, pack, verify
from mmprobe.cache.hdf5 import digest_matches
from mmprobe.errors import InputError


def append_page_checksums(path):
    """Replace a file's digest by what earlier versions wrote: one of each 64 KiB, and one of these."""
    content = path.read_bytes()[:-32]
    pages = [content[start : start + 65536] for start in range(0, len(content), 65536)]
    digests = b"".join(xxhash.xxh3_64(page).digest()[::-1] for page in pages)
    size = len(content).to_bytes(8, "little")
    path.write_bytes(content + digests + b"mmprobe xxh3 64K" + size + xxhash.xxh3_64(digests).digest()[::-1])
    return len(pages)


def test_the_digest_is_that_of_the_bytes(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5")
    content = (tmp_path / "a.h5").read_bytes()
    mark, size, digest = struct.unpack("<16sQQ", content[-32:])
    assert mark == b"mmprobe xxh3 all" and size == len(content) - 32
    assert digest == int.from_bytes(xxhash.xxh3_64(content[:-32]).digest(), "big")


@pytest.mark.parametrize("earlier", [False, True], ids=["digest", "page checksums"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_any_flipped_bit_is_found(make_run, write_trace, tmp_path, flip, earlier, packed):
    folder, rng = make_run(names=("a",)), random.Random(0)
    residual = np.random.default_rng(0).random((9, 3, 4096)).astype("f2")  # several pages
    write_trace(folder / "samples" / "a.h5", residual__pre=residual)
    file = pack(folder, tmp_path / "run.h5") if packed else folder / "samples" / "a.h5"
    if earlier:
        assert append_page_checksums(file) > 3
    assert verify(file if packed else folder) == []
    np.testing.assert_array_equal(open_run(file if packed else folder)["a"].residual_pre, residual)
    content = file.read_bytes()
    for _ in range(60):
        flip(file, rng.randrange(len(content)), rng.randrange(8))
        (problem,) = verify(file if packed else folder)
        assert "damaged" in problem and "\n" not in problem
        file.write_bytes(content)


@pytest.mark.parametrize("length", [0, 10, 100, 20_000, -1, -32, -40])
def test_a_shortened_file_is_found(tmp_path, write_trace, length):
    path = tmp_path / "a.h5"
    write_trace(path)
    path.write_bytes(path.read_bytes()[:length])
    assert not digest_matches(path)


def test_an_edited_trace_is_read_and_reported(make_run, tmp_path):
    folder = make_run(names=("a",))
    with h5py.File(folder / "samples" / "a.h5", "r+") as file:
        file["ffn/gate_sum"][0, 0] = 7
    assert open_run(folder)["a"].ffn_gate_sum[0, 0] == 7
    (problem,) = verify(folder)
    assert "changed since" in problem and "\n" not in problem
    with pytest.raises(InputError, match=r"a\.h5: damaged, or changed"):
        pack(folder, tmp_path / "run.h5")


def test_compressed_data_sets_stay_compressed_in_a_pack(make_run, tmp_path):
    pytest.importorskip("hdf5plugin")
    folder = make_run(names=("a", "b"))
    residual = np.arange(9 * 3 * 16, dtype="f4").reshape(9, 3, 16) % 50
    about = {"sample": '{"id": "a", "question": "Why?"}', "answer": ""}
    with TraceWriter(
        folder / "samples" / "a.h5", {"layer": np.array([0, 2, 4])}, about, compression="zstd"
    ) as writer:
        writer.write("residual/pre", residual)
    file = pack(folder, tmp_path / "run.h5")
    with h5py.File(file) as opened:
        assert opened["samples/a/residual/pre"].id.get_create_plist().get_nfilters() == 1
    assert verify(file) == []
    stack = open_run(file).stack("residual/pre")
    assert np.array_equal(stack[0], residual) and np.array_equal(stack[1], open_run(folder)["b"].residual_pre)
