"""`verify` names every problem; a packed run equals its folder."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import xarray as xr
from helpers.runs import edit_trace

import mmprobe as mp
from mmprobe.cache import open_run, pack, verify
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def read_contents(run):
    """Return everything that can be read from a run, as plain values."""
    values_by_trace = {}
    for trace in run:
        values_by_trace[trace.id] = {"answer": trace.answer, "sample": trace.sample.model_dump_json()}
        for path in trace.captured:
            array = trace.array(path)
            values_by_trace[trace.id][path] = (
                array.dims,
                str(array.dtype),
                array.values.tobytes() if array.dtype != object else array.values.tolist(),
            )
            values_by_trace[trace.id][f"{path}, attributes"] = dict(array.attrs)
            for dim, values in array.coords.items():
                if dim != array.name:
                    values_by_trace[trace.id][f"{path}, {dim}"] = values.values.tolist()
    return values_by_trace


def test_an_undamaged_run_has_no_problems(make_run):
    assert verify(make_run()) == []


def test_a_missing_sample_is_named_and_a_failed_one_is_not(make_run):
    failure = {"id": "c", "error": "InputError", "message": "no"}
    problems = verify(make_run(order=["a", "missing", "b", "c"], failures=[failure]))
    assert len(problems) == 1
    assert problems[0].startswith("missing: not traced")


def test_a_changed_text_is_found(make_run):
    folder = make_run(names=("a",))
    file = folder / "samples" / "a.h5"
    for text in (b" word7", b"because a", b"Why?", b"visual"):
        content = file.read_bytes()
        assert text in content
        file.write_bytes(content.replace(text, text[:-1] + b"X"))
        assert len(verify(folder)) == 1
        file.write_bytes(content)
    assert verify(folder) == []


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_found_and_the_other_is_sound(make_run, share):
    folder = make_run()
    file = folder / "samples" / "a.h5"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    problems = verify(folder)
    assert len(problems) == 1
    assert problems[0].startswith("a: ")


@pytest.mark.parametrize("wrong", [0.9, 1.01, np.nan])
def test_attention_rows_that_do_not_sum_to_one_are_found(make_run, write_trace, wrong):
    folder = make_run()
    mass = np.full((9, 3, 2, 6), 1 / 6, "f4")
    mass[4, 1, 0, 2] = wrong - 0.8
    write_trace(folder / "samples" / "b.h5", "b", attention__mass=mass)
    problems = verify(folder)
    assert len(problems) == 1
    assert problems[0].startswith("b: attention/mass: ")


def test_attention_rows_may_be_off_by_rounding(make_run, write_trace):
    folder = make_run()
    write_trace(folder / "samples" / "b.h5", "b", attention__mass=np.full((9, 3, 2, 6), 1.00005 / 6, "f4"))
    assert verify(folder) == []


def test_verify_without_a_run_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no run here"):
        verify(tmp_path / "nothing")


def test_a_packed_run_equals_its_folder(make_run, tmp_path):
    labels = [{"id": "a", "faithful": True}]
    failures = [{"id": "c", "error": "InputError", "message": "é\u2028"}]
    folder = open_run(make_run(names=("b", "a"), order=["b", "a", "c"], failures=failures, labels=labels))
    packed = open_run(pack(folder.path, tmp_path / "run.h5"))
    assert packed.packed
    assert packed.ids == folder.ids == ["b", "a"]
    assert (packed.config, packed.failures) == (folder.config, folder.failures)
    assert [packed.faithful(name) for name in packed.ids] == [False, True]
    assert read_contents(packed) == read_contents(folder)
    assert verify(packed.path) == []
    with xr.open_dataset(packed.path, group="samples/a/attention", engine="h5netcdf") as dataset:
        assert dataset["mass"].dims == ("step", "layer", "head", "group")


def test_pack_refuses_a_damaged_trace_and_leaves_no_file(make_run, tmp_path, chunk_ranges, flip):
    folder = make_run()
    file = folder / "samples" / "b.h5"
    flip(file, chunk_ranges(file)[0][1])
    with pytest.raises(InputError, match=r"b\.h5: damaged"):
        pack(folder, tmp_path / "run.h5")
    assert not list(tmp_path.glob("run.h5*"))


def test_pack_overwrites_nothing(make_run, tmp_path):
    folder, out = make_run(), tmp_path / "run.h5"
    out.write_text("precious")
    with pytest.raises(InputError, match="exists"):
        pack(folder, out)
    assert out.read_text() == "precious"


def test_pack_needs_an_existing_folder_and_an_unpacked_run(make_run, tmp_path):
    folder = make_run()
    with pytest.raises(InputError, match="no such folder"):
        pack(folder, tmp_path / "nowhere" / "run.h5")
    file = pack(folder, tmp_path / "run.h5")
    with pytest.raises(InputError, match="packed already"):
        pack(file, tmp_path / "again.h5")


@pytest.mark.parametrize("name", ["tokens/text", "tokens/id"])
def test_verify_names_a_trace_that_lacks_what_every_trace_has(name, random_qwen, image_paths, tmp_path):
    sample = Sample(id="a", question="?", images=image_paths[:1])
    run = mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=2)
    file = run.path / "samples" / "a.h5"
    with h5py.File(file) as source:
        attributes = dict(source.attrs)
    assert "fingerprint" in json.loads((run.path / "run.json").read_text()) and attributes
    edit_trace(file, lambda root: root.__delitem__(name))
    problems = verify(run.path)
    assert problems and all(problem.startswith("a: ") for problem in problems)
    assert any(name in problem for problem in problems), problems
