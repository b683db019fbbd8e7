"""Wrong types and depths in run.json, failures.jsonl and labels.jsonl end in one line."""

from __future__ import annotations

import json

import pytest

from mmprobe.cache import open_run, pack, verify
from mmprobe.errors import InputError

DEEP = "[" * 400 + "]" * 400
WRONG_VALUES = ("3", "-1.5", "true", '"a"', "[]", "{}", "null", "[[1]]", '{"a": 1}', DEEP, "NaN", '["../a"]')
RIGHT = {  # of WRONG_VALUES
    "format": (),
    "order": ("[]",),
    "model": (),
    "capture": ("{}", '{"a": 1}'),
    "generate": ("{}", '{"a": 1}'),
    "engine": ('"a"',),
    "versions": ("{}",),
    "model.name": ('"a"',),
    "model.source": ('"a"',),
    "model.revision": ('"a"', "null"),
    "model.family": ('"a"',),
    "model.layers": ("3",),
    "capture.datasets": ("[]", '["../a"]'),
    "capture.layers": ("[]", "null"),
}


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("entry", RIGHT)
def test_an_entry_of_run_json_must_have_the_right_type(make_run, entry):
    file = make_run() / "run.json"
    config = json.loads(file.read_text()) | {"capture": {"datasets": [], "layers": None}}
    parent, _, key = f".{entry}".rpartition(".")
    (config if parent == "" else config[parent[1:]])[key] = "HERE"
    for value in WRONG_VALUES:
        file.write_text(json.dumps(config).replace('"HERE"', value))
        if value in RIGHT[entry]:
            assert open_run(file.parent).path == file.parent
            continue
        with pytest.raises(InputError) as error:
            open_run(file.parent)
        assert one_line(error).startswith(f"{file}: "), value
        assert key in one_line(error) or value == DEEP, value


def test_unknown_entries_of_run_json_are_kept(make_run, tmp_path):
    folder = make_run()
    config = json.loads((folder / "run.json").read_text()) | {"batch_size": 4, "new": {"a": [1, None]}}
    config["model"]["size"] = 7
    (folder / "run.json").write_text(json.dumps(config))
    run = open_run(folder)
    assert run.config["new"] == {"a": [1, None]} and run.config["batch_size"] == 4
    assert run.config["model"]["size"] == 7
    assert open_run(pack(folder, tmp_path / "run.h5")).config == run.config


@pytest.mark.parametrize(
    "line", ["3", "[]", "null", "{}", '{"id": 3}', '{"id": "c", "error": 1}', '{"id": "c", "message": []}']
)
def test_a_failure_of_another_type_is_named(make_run, line):
    folder = make_run()
    (folder / "failures.jsonl").write_text('{"id": "c", "error": "E", "message": "m"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"failures\.jsonl, line 2: ") as error:
        open_run(folder)
    one_line(error)


def test_failures_are_read_with_what_the_run_can_have_written(make_run):
    """Names of files that are not UTF-8 can be in messages, and the last line may be cut."""
    folder = make_run(failures=[{"id": "c", "error": "OSError", "message": "caf\udce9.png", "new": 1}])
    with open(folder / "failures.jsonl", "ab") as file:
        file.write(b'{"id": "d", "err\xff')
    (failure,) = open_run(folder).failures
    assert failure == {"id": "c", "error": "OSError", "message": "caf?.png", "new": 1}


@pytest.mark.parametrize("line", [DEEP, "[" * 5000])
def test_a_label_that_is_nested_too_deeply_is_named(make_run, line):
    folder = make_run()
    (folder / "labels.jsonl").write_text('{"id": "b", "faithful": null, "why": "?"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"labels\.jsonl, line 2") as error:
        open_run(folder)
    one_line(error)
    with pytest.raises(InputError):
        verify(folder)
