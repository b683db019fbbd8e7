"""Every page of a trace is checked before HDF5 sees it."""

from __future__ import annotations

import random
import struct

import h5py
import numpy as np
import pytest
import xxhash

from mmprobe.cache import Trace, open_run, verify
from mmprobe.cache.checksums import checksums_match
from mmprobe.errors import InputError


def everything(trace: Trace) -> dict[str, object]:
    arrays = {name: trace.array(name).values for name in trace.captured}
    found = {name: repr(a.tolist()) if a.dtype == object else a.tobytes() for name, a in arrays.items()}
    return found | {"sample": trace.sample.model_dump(mode="json"), "answer": trace.answer}


def test_the_sums_are_those_of_the_pages(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5", residual__pre=np.ones((9, 3, 4096), np.float16))
    whole = (tmp_path / "a.h5").read_bytes()
    mark, size, of_sums = struct.unpack("<16sQQ", whole[-32:])
    sums, pages = whole[size:-32], [whole[at : min(at + 65536, size)] for at in range(0, size, 65536)]
    assert len(pages) > 3 and mark == b"mmprobe xxh3 64K"
    expected = [int.from_bytes(xxhash.xxh3_64(page).digest(), "big") for page in pages]
    assert list(struct.unpack(f"<{len(pages)}Q", sums)) == expected
    assert of_sums == int.from_bytes(xxhash.xxh3_64(sums).digest(), "big")


def test_whatever_bit_flips_is_refused_or_harmless(tmp_path, write_trace, flip):
    """Without a look at the whole file first: damaged texts and headers would crash HDF5, or be read as they are."""
    path, rng = tmp_path / "a.h5", random.Random(0)
    write_trace(
        path, residual__pre=np.random.default_rng(0).random((9, 3, 4096)).astype("f2")
    )  # several pages
    whole, good, refused = path.read_bytes(), everything(Trace(path)), 0
    for _ in range(300):
        flip(path, rng.randrange(len(whole)), rng.randrange(8))
        try:
            assert everything(Trace(path)) == good
        except InputError as error:
            refused += "\n" not in str(error)
        path.write_bytes(whole)
    assert refused > 250


@pytest.mark.parametrize("left", [0, 100, 20_000, -1, -32, -40])
def test_a_shortened_file_is_refused_or_read_without_loss(tmp_path, write_trace, left):
    path = tmp_path / "a.h5"
    write_trace(path)
    good = everything(Trace(path))
    path.write_bytes(path.read_bytes()[:left])
    assert not checksums_match(path)
    if left < 0:  # of the checksums only, as HDF5 leaves a file that it changed
        assert everything(Trace(path)) == good
    else:
        with pytest.raises(InputError, match="damaged"):
            everything(Trace(path))


def test_what_somebody_changed_is_read_and_told(make_run):
    folder = make_run(names=("a",))
    with h5py.File(folder / "samples" / "a.h5", "r+") as file:
        file["ffn/gate_sum"][0, 0] = 7
    assert open_run(folder)["a"].ffn_gate_sum[0, 0] == 7
    (problem,) = verify(folder)
    assert "changed since it was written" in problem and "\n" not in problem
