"""A trace belongs to one sample, and is refused under the name of another."""

from __future__ import annotations

import shutil

import pytest
from helpers.runs import edit_trace

from mmprobe.analyses import attention_decay
from mmprobe.cache import Trace, open_run, pack, verify
from mmprobe.errors import InputError

WRONG = r"b\.h5: contains the trace of sample 'a', not of 'b'; delete it and trace again with resume=True$"


@pytest.fixture
def mixed_run(make_run):
    """Return a run of three samples in which a's trace was copied over b's."""
    folder = make_run(names=("a", "b", "c"))
    shutil.copyfile(folder / "samples" / "a.h5", folder / "samples" / "b.h5")
    return folder


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
    assert problem.startswith("b: ") and "sample 'a', not of 'b'" in problem


def test_a_packed_trace_under_another_id_is_refused(make_run, tmp_path):
    packed = pack(make_run(names=("a", "b", "c")), tmp_path / "run.h5")

    def swap(root):
        root["samples"].move("a", "x")
        root["samples"].move("b", "a")
        root["samples"].move("x", "b")

    edit_trace(packed, swap)
    run = open_run(packed)
    for name, other in (("a", "b"), ("b", "a")):
        with pytest.raises(InputError, match=f"'{other}', not of '{name}'"):
            print(run[name].answer)
    assert run["c"].answer == "because c"
    assert {problem[:2] for problem in verify(packed)} == {"a:", "b:"}


def test_a_sample_with_another_id_than_its_trace_is_refused(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5", "b")
    with pytest.raises(InputError, match="its sample is 'b', not 'a'"):
        Trace(tmp_path / "a.h5").sample  # noqa: B018
