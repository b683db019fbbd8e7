"""Parameters of methods: read from their source as their classes have them, described, and checked before torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from helpers.command_line import assert_fails, run_in_process

from mmprobe.errors import InputError
from mmprobe.interventions.registry import METHODS, check_method, declared_parameters, describe_method


@pytest.mark.parametrize("name", list(METHODS))
def test_what_is_read_from_the_source_is_what_the_class_has(name):
    record = declared_parameters(name)
    assert record is not None
    own, read = (
        [(each.name, each.default, dict(each.metadata)) for each in fields(kind)]
        for kind in (METHODS[name], record)
    )
    assert own == read


@pytest.mark.parametrize("name", list(METHODS))
def test_every_parameter_is_described(name):
    method = describe_method(name)
    assert method.about and method.reference
    for parameter in method.parameters:
        assert parameter.effect, f"{name}: the docstring does not say what {parameter.name} does"
    listed = json.loads(run_in_process("list", "methods", "--verbose", "--json").stdout)["methods"]
    (one,) = [each for each in listed if each["name"] == name]
    assert [each["name"] for each in one["parameters"]] == [each.name for each in method.parameters]


WRONG = {
    ("sage", "etaa=1"): "eta",
    ("sage", "eta=11"): "from 0 to 10",
    ("vcd", "noise_step=1000"): "999",  # the end is a constant of the module
    ("opera", "beams=2.5"): "whole number",
    ("agla", "fill=red"): "black, mean",
}


def test_a_wrong_parameter_is_told_before_torch(tmp_path):
    """All in one new process, which ends without torch."""
    (tmp_path / "samples.jsonl").write_text('{"id": "1", "question": "?"}\n')
    command = ["trace", "--model", "tiny-spd", "--data", "samples.jsonl", "--out", "x", "--method"]
    code = f"""
import sys, mmprobe.cli
for method, setting in {list(WRONG)}:
    sys.argv[1:] = {command} + [method, "--set", setting]
    try:
        mmprobe.cli.main()
    except SystemExit as error:
        print(error.code, "torch" in sys.modules)
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert finished.stdout.splitlines() == ["2 False"] * len(WRONG), finished.stderr
    for line, words in zip(finished.stderr.splitlines(), WRONG.values(), strict=True):
        assert words in line


def test_every_command_with_a_method_tells_it(tmp_path):
    assert_fails(
        run_in_process(
            "bench",
            "vqa",
            "--model",
            "tiny-spd",
            "--out",
            tmp_path / "x",
            "--method",
            "pai",
            "--set",
            "gama=1",
        ),
        "gamma",
    )
    assert_fails(
        run_in_process(
            "generate", "--model", "tiny-spd", "--prompt", "?", "--method", "pai", "--set", "alpha=-1"
        ),
        "0 to 10",
    )


def test_a_file_of_a_method_is_checked_with_what_it_says(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("method: sage\nparameters: {eta: 11}\n")
    with pytest.raises(InputError, match="eta=11"):
        check_method(str(file))
    check_method(str(file), {"eta": 0.5})
    check_method("pai+vcd")
