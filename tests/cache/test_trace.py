"""Reading is lazy and labelled; damage raises an InputError with a one-line message."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import xarray as xr

from mmprobe.cache import Trace, TraceWriter, open_run
from mmprobe.errors import InputError


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_array_is_not_read_before_it_is_used(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5")
    trace = Trace(tmp_path / "a.h5")
    lazy, kept = trace.residual_pre.isel(layer=0).transpose("hidden", "step"), trace.attention_mass
    assert lazy.shape == (16, 9)
    mass = kept.values
    trace.file.unlink()
    with pytest.raises(InputError, match="no such trace"):
        lazy.values  # noqa: B018
    np.testing.assert_array_equal(kept.isel(step=[3, 1], layer=2, head=0).values, mass[[3, 1], 2, 0])


def test_a_part_is_that_of_the_whole(tmp_path, write_trace):
    arrays = write_trace(tmp_path / "a.h5")
    for part in ({"step": 3, "layer": [1, 0]}, {"step": slice(2, 7, 2), "hidden": 4}, {"layer": [2]}):
        whole = xr.DataArray(arrays["residual/pre"], dims=("step", "layer", "hidden"))
        lazy = Trace(tmp_path / "a.h5").residual_pre
        np.testing.assert_array_equal(lazy.isel(part).values, whole.isel(part).values)


def test_a_trace_that_changes_while_it_is_used_is_refused(make_run, write_trace):
    trace = open_run(make_run(names=("a",)))["a"]
    residual = trace.residual_pre
    write_trace(trace.file, residual__pre=np.zeros((9, 3, 400), "f2"))
    with pytest.raises(InputError, match="changed while residual/pre was in use"):
        residual.load()


@pytest.mark.parametrize("size", [0, 10, 600, 5000, 20000])
def test_a_truncated_trace_is_an_input_error_of_one_line(make_run, size):
    folder = make_run()
    file = folder / "samples" / "a.h5"
    assert file.stat().st_size > 20000
    file.write_bytes(file.read_bytes()[:size])
    run = open_run(folder)
    assert run["b"].answer == "because b"
    for read in (lambda t: t.answer, lambda t: t.sample, lambda t: t.captured, lambda t: t.tokens):
        with pytest.raises(InputError, match="damaged") as error:
            read(run["a"])
        one_line(error)


def test_a_missing_trace_is_an_input_error(make_run):
    folder = make_run()
    trace = open_run(folder)["a"]
    (folder / "samples" / "a.h5").unlink()
    with pytest.raises(InputError, match="no such trace"):
        trace.answer  # noqa: B018


@pytest.mark.parametrize("sample", [None, "{}", "{", '{"id": "a", "question": 1}'])
def test_a_trace_without_its_sample_is_an_input_error_of_one_line(tmp_path, sample):
    with TraceWriter(tmp_path / "a.h5", {}, {} if sample is None else {"sample": sample}) as writer:
        writer.write("tokens/id", np.arange(2))
    for read in (lambda t: t.sample, lambda t: t.answer, lambda t: t.id):
        with pytest.raises(InputError, match="damaged") as error:
            read(Trace(tmp_path / "a.h5"))
        one_line(error)


def test_another_format_is_refused(tmp_path, write_trace):
    write_trace(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["mmprobe_format"] = 99
    with pytest.raises(InputError, match="trace format 99, this mmprobe reads 1"):
        Trace(tmp_path / "a.h5").answer  # noqa: B018


def test_a_data_set_that_was_not_captured_is_named(make_run):
    trace = open_run(make_run())["a"]
    for path in ("residual/post", "nonsense", "a/b/c", "layer", "attention"):
        with pytest.raises(InputError, match=f"{path} was not captured"):
            trace.array(path)


def test_active_neurons_are_read_as_booleans(tmp_path, write_trace):
    bits = np.zeros((9, 3, 2), "u1")
    bits[0, 0] = [0b10000001, 0b01000000]  # neurons 0, 7 and 9 of 11
    write_trace(tmp_path / "a.h5", ffn__active=bits)
    active = Trace(tmp_path / "a.h5").ffn_active
    assert active.dims == ("step", "layer", "neuron")
    assert active.shape == (9, 3, 11)
    assert active.dtype == bool
    assert np.flatnonzero(active[0, 0]).tolist() == [0, 7, 9]
    assert int(active.sum()) == 3


def test_layers_and_groups_are_selected_by_name(make_run):
    trace = open_run(make_run())["a"]
    visual = trace.attention_mass.sel(layer=4, group="visual")
    np.testing.assert_array_equal(visual.values, trace.attention_mass.values[:, 2, :, 2])


def test_a_run_iterates_over_finished_samples_in_order(make_run):
    run = open_run(make_run(names=("z", "a", "m"), order=["m", "gone", "z", "a"]))
    assert run.ids == ["m", "z", "a"] == [trace.id for trace in run]
    assert len(run) == 3
    assert "a" in run
    assert "gone" not in run
    assert run.sample("z").question == "Why?"
    with pytest.raises(KeyError, match="gone"):
        run["gone"]


def test_unfinished_and_other_files_are_no_samples(make_run):
    folder = make_run()
    (folder / "samples" / "c.h5.part").write_bytes(b"half")
    (folder / "samples" / "stranger.h5").write_bytes(b"")
    assert open_run(folder).ids == ["a", "b"]


def test_labels_take_precedence_over_the_samples(make_run):
    run = open_run(make_run(labels=[{"id": "a", "faithful": True}]))
    assert (run.faithful("a"), run.faithful("b")) == (True, False)


def test_a_cut_last_line_of_failures_is_dropped(make_run):
    folder = make_run(failures=[{"id": "c", "error": "E", "message": "m"}])
    with open(folder / "failures.jsonl", "a", encoding="utf-8") as file:
        file.write('{"id": "d", "err')
    assert [failure["id"] for failure in open_run(folder).failures] == ["c"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"format": 1}', '{"format": 2, "order": []}', '{"format": 1, "order": 3}'],
)
def test_a_bad_run_file_is_an_input_error_of_one_line(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        open_run(tmp_path)
    assert one_line(error).startswith(f"{tmp_path / 'run.json'}: ")


@pytest.mark.parametrize(
    "label",
    [
        {"faithful": True},
        {"id": "a"},
        {"id": 1, "faithful": True},
        3,
        *({"id": "a", "faithful": value} for value in ("no", 0, 1.0, [])),
    ],
)
def test_a_bad_label_is_an_input_error(make_run, label):
    folder = make_run(labels=[{"id": "b", "faithful": None}, label])
    with pytest.raises(InputError, match=r"labels\.jsonl, line 2") as error:
        open_run(folder)
    one_line(error)


def test_labels_that_are_not_json_are_an_input_error(make_run):
    folder = make_run(labels=[{"id": "b", "faithful": None}])
    with open(folder / "labels.jsonl", "a", encoding="utf-8") as file:
        file.write('\n{"id": "a", "faithful": True}\n')
    with pytest.raises(InputError, match=r"labels\.jsonl, line 3: not a label"):
        open_run(folder)


def test_a_file_that_is_not_a_packed_run_is_an_input_error(tmp_path, write_trace):
    (tmp_path / "text.h5").write_text(json.dumps({"format": 1}))
    write_trace(tmp_path / "trace.h5")
    for name in ("text.h5", "trace.h5"):
        with pytest.raises(InputError, match="not a readable run") as error:
            open_run(tmp_path / name)
        one_line(error)
