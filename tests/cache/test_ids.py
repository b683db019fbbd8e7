"""A trace belongs to one sample, and is refused under the name of another."""

from __future__ import annotations

import shutil

import h5py
import pytest
from helpers import crafted

from mmprobe.analyses import attention_decay
from mmprobe.cache import Trace, open_run, pack, verify
from mmprobe.errors import InputError

WRONG = r"b\.h5: contains the trace of sample 'a', not of 'b'; delete it and trace again with resume=True$"


@pytest.fixture(params=["now", "before ids were stored"])
def mixed_run(request, make_run):
    """Return a run of three samples in which a's trace was copied over b's."""
    folder = make_run(names=("a", "b", "c"))
    if request.param != "now":
        for name in ("a", "b", "c"):
            path = folder / "samples" / f"{name}.h5"
            crafted.craft(path, path, lambda root: root.attrs.__delitem__("id"))
    shutil.copyfile(folder / "samples" / "a.h5", folder / "samples" / "b.h5")
    return folder


def test_the_id_is_stored_and_has_a_checksum(make_run):
    path = make_run(names=("a",)) / "samples" / "a.h5"
    with h5py.File(path) as file:
        assert file.attrs["id"] == "a"
        assert path.read_bytes()[: file.id.get_filesize()].count(b"\x00id\x00") >= 1


def test_a_trace_under_another_id_is_refused(mixed_run):
    trace = open_run(mixed_run)["b"]
    for read in (
        lambda: trace.answer,
        lambda: trace.sample,
        lambda: trace.captured,
        lambda: trace.tokens,
        lambda: trace.attention_mass,
        lambda: list(open_run(mixed_run).stream("read")),
        lambda: attention_decay(open_run(mixed_run)),
        lambda: pack(mixed_run, mixed_run.parent / "packed.h5"),
    ):
        with pytest.raises(InputError, match=WRONG):
            read()
    assert not (mixed_run.parent / "packed.h5").exists()


def test_verify_names_a_trace_under_another_id(mixed_run):
    (problem,) = verify(mixed_run)
    assert problem.startswith("b: ") and "contains the trace of sample 'a', not of 'b'" in problem


def test_a_packed_trace_under_another_id_is_refused(make_run, tmp_path):
    packed = pack(make_run(names=("a", "b", "c")), tmp_path / "run.h5")

    def swap(root):
        root["samples"].move("a", "x")
        root["samples"].move("b", "a")
        root["samples"].move("x", "b")

    crafted.craft(packed, tmp_path / "swapped.h5", swap)
    run = open_run(tmp_path / "swapped.h5")
    for name, other in (("a", "b"), ("b", "a")):
        with pytest.raises(InputError, match=f"contains the trace of sample '{other}', not of '{name}'"):
            print(run[name].answer)
    assert run["c"].answer == "because c"
    assert {problem[:2] for problem in verify(tmp_path / "swapped.h5")} == {"a:", "b:"}


def test_a_sample_with_another_id_than_its_trace_is_refused(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5", "b")
    with pytest.raises(InputError, match="its sample is 'b', not 'a'"):
        Trace(tmp_path / "a.h5").sample  # noqa: B018
    with pytest.raises(InputError, match="its sample is 'b', not 'a'"):
        Trace(tmp_path / "a.h5").check()
