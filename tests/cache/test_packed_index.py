"""Packed files say where their numbers lie; what is read there is what HDF5 reads."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
import xarray as xr

from mmprobe.cache import TraceWriter, open_run, pack, verify
from mmprobe.cache.hdf5 import append_checksums
from mmprobe.cache.trace import CheckedGroup, open_packed
from mmprobe.errors import InputError

NUMBERS = ("attention/mass", "attention/visual", "residual/pre", "ffn/gate_sum", "steps/id", "tam/logit")
LAYERS = np.array([0, 2, 4])


@pytest.fixture
def mixed(make_run, write_trace):
    """Three traces in another order than their ids; one is shorter than the others."""
    folder = make_run(names=("b", "c", "a"))
    mass = np.full((4, 3, 2, 6), 1 / 6, "f4")
    short = {"steps__id": np.arange(4, dtype="i4"), "attention__mass": mass}
    short |= {"attention__visual": np.ones((4, 3, 20), "f2"), "residual__pre": np.ones((4, 3, 16), "f2")}
    short |= {"ffn__active": np.ones((4, 3, 2), "u1"), "tam__logit": np.ones((4, 39), "f2")}
    write_trace(folder / "samples" / "c.h5", "c", 5, **short)
    return folder


@pytest.mark.parametrize("names", [("b", "c", "a"), ("a", "b")])
def test_a_stack_of_packed_traces_is_that_of_files(mixed, tmp_path, names):
    folder = open_run(mixed).select(ids=names)
    packed = open_run(pack(mixed, tmp_path / "run.h5")).select(ids=names)
    for path in (*NUMBERS, "tokens/text"):
        xr.testing.assert_identical(packed.stack(path), folder.stack(path))
    tokens = packed.stack("steps/id").step_token
    assert tokens[0, -1].item() == " word38"
    assert tokens.sel(sample="b")[2:4].values.tolist() == [" word32", " word33"]


def test_traces_of_a_stream_are_read_without_hdf5(mixed, tmp_path, monkeypatch):
    expected = {trace.id: {path: trace.array(path).load() for path in NUMBERS} for trace in open_run(mixed)}
    packed = open_run(pack(mixed, tmp_path / "run.h5"))
    monkeypatch.setattr(CheckedGroup, "__init__", lambda *_: pytest.fail("HDF5 read a group"))
    for name, trace in packed.stream("read"):
        for path in NUMBERS:
            xr.testing.assert_identical(trace.array(path), expected[name][path])
        assert trace.attention_mass[1, :, 0].equals(expected[name]["attention/mass"][1, :, 0])


def test_a_file_that_took_the_place_of_another_is_read_anew(mixed, make_run, tmp_path):
    run = open_run(pack(mixed, tmp_path / "run.h5"))
    expected = run.stack("steps/id").load()
    (tmp_path / "run.h5").unlink()
    pack(mixed, tmp_path / "run.h5")
    xr.testing.assert_identical(run.stack("steps/id"), expected)
    (tmp_path / "run.h5").unlink()
    shutil.rmtree(mixed)
    pack(make_run(names=("a", "c", "d")), tmp_path / "run.h5")
    with pytest.raises(InputError, match=r"run.h5: damaged trace \('b'\)"):
        run.stack("steps/id")
    xr.testing.assert_identical(run["c"].steps.id, open_run(tmp_path / "run.h5")["c"].steps.id)


@pytest.mark.parametrize("name", ["layer", "head", "attention/mass", "steps/id"])
def test_small_numbers_of_one_name_lie_beside_each_other(make_run, tmp_path, name):
    with open_packed(pack(make_run(names=("b", "c", "a")), tmp_path / "run.h5")) as packed:
        offset, itemsize, *shape = packed.table(name)[[1, 2, 0]].T
    assert (np.diff(offset) == (itemsize * np.prod(shape, axis=0))[:-1]).all()


@pytest.mark.parametrize("edited", [False, True], ids=["older than the index", "edited"])
def test_without_an_index_hdf5_reads(mixed, tmp_path, edited):
    file = pack(mixed, tmp_path / "run.h5")
    with h5py.File(file, "r+") as opened:
        if edited:
            opened["index/attention/mass"][:, 0] += 4
        else:
            del opened["index"]
    if not edited:
        with file.open("r+b") as bare:
            append_checksums(bare)
        assert verify(file) == []
    for (_, trace), expected in zip(open_run(file).stream("read"), open_run(mixed), strict=True):
        assert np.array_equal(trace.attention_mass, expected.attention_mass)
    xr.testing.assert_identical(
        open_run(file).stack("attention/mass"), open_run(mixed).stack("attention/mass")
    )


def forge(file, entry, change):
    """Change an entry of the index, and compute the checksums again."""
    with h5py.File(file, "r+") as opened:
        table = opened[f"index/{entry}"][...]
        change(table)
        opened[f"index/{entry}"][...] = table
    with file.open("r+b") as bare:
        append_checksums(bare)


def test_verify_finds_an_index_that_names_another_place(mixed, tmp_path):
    file = pack(mixed, tmp_path / "run.h5")
    forge(file, "steps/id", _move)
    (problem,) = verify(file)
    assert problem.startswith("b: the index of ") and "another place for steps/id" in problem


def _move(table):
    table[1, 0] += 4


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.__setitem__((0, 0), 2**40),
        lambda table: table.__setitem__((0, 0), -7),
        lambda table: table.__setitem__((0, 1), 8),
        lambda table: table.__setitem__((0, 2), 2**62),
        lambda table: table.__setitem__((0, 3), 2),
        lambda table: table.__setitem__((0, 5), 4),
    ],
    ids=["after the end", "before the start", "size of a number", "huge", "other layers", "other groups"],
)
def test_an_index_that_contradicts_the_file_is_refused_in_one_line(mixed, tmp_path, change):
    file = pack(mixed, tmp_path / "run.h5")
    forge(file, "attention/mass", change)
    for read in (lambda: open_run(file).stack("attention/mass"), lambda: _read_stream(file)):
        with pytest.raises(InputError, match="index/(attention/mass|layer) .*; pack it again") as error:
            read()
        assert "\n" not in str(error.value)
    assert any("index/attention/mass" in problem for problem in verify(file))


def _read_stream(file):
    for _, trace in open_run(file).stream("read"):
        trace.array("ffn/gate_sum").load()
        trace.array("attention/mass").load()


def test_a_flipped_bit_is_found_by_every_way_of_reading(mixed, tmp_path, flip):
    file = pack(mixed, tmp_path / "run.h5")
    with h5py.File(file) as opened:
        place = opened["samples/b/attention/mass"].id.get_offset()
    flip(file, place + 5)
    for read in (lambda: open_run(file).stack("attention/mass"), lambda: _read_stream(file)):
        with pytest.raises(InputError, match="damaged|not what was written"):
            read()


def test_compressed_data_sets_stay_compressed_and_are_read_by_hdf5(make_run, tmp_path):
    pytest.importorskip("hdf5plugin")
    folder = make_run(names=("a", "b"))
    residual = np.arange(9 * 3 * 16, dtype="f4").reshape(9, 3, 16) % 50
    about = {"sample": '{"id": "a", "question": "Why?"}', "answer": ""}
    with TraceWriter(folder / "samples" / "a.h5", {"layer": LAYERS}, about, compression="zstd") as writer:
        writer.write("residual/pre", residual)
    file = pack(folder, tmp_path / "run.h5")
    with h5py.File(file) as opened:
        assert opened["samples/a/residual/pre"].id.get_create_plist().get_nfilters() == 1
        assert opened["index/residual/pre"][0, 0] == -1 < opened["index/residual/pre"][1, 0]
    assert verify(file) == []
    stack = open_run(file).stack("residual/pre")
    assert np.array_equal(stack[0], residual) and np.array_equal(stack[1], open_run(folder)["b"].residual_pre)
