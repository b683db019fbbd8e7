"""The registry of probes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.probes.registry import GIVEN, PROBES, read_parameters
from mmprobe.registry import first_line
from mmprobe.samples import Sample


def test_lines_that_are_read_from_the_source_are_those_of_the_functions():
    lines = {name: (probe.about, first_line(probe.load())) for name, probe in PROBES.working()}
    assert len(lines) >= 12
    assert all(read == own != "" for read, own in lines.values()), lines


def test_parameters_that_are_checked_before_the_module_are_those_of_the_function():
    for name, probe in PROBES.working():
        assert probe.parameters is not None and getattr(mp.probes, probe.load().__name__) is probe.load()
        assert sorted(probe.parameters) == sorted(read_parameters(probe.load(), GIVEN)), name


def test_a_parameter_of_options_is_taken_and_another_one_told_before_torch_is_imported(tmp_path, tiny_spd):
    run = mp.trace(tiny_spd, [Sample(id="a", question="?")], tmp_path / "run", max_new_tokens=2).path
    call = [
        "analyze",
        str(run),
        "--only",
        "head-ranking",
        "--model",
        "tiny-spd",
        "--out",
        str(tmp_path / "out"),
    ]
    code = (
        "import sys; from mmprobe.cli import main; sys.argv[1:] = {call!r}\n"
        "try: main()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    wrong = [*call, "--set", "counterfctual=blank"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(call=wrong)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "False"] and "counterfctual" in done.stderr
    assert "counterfactual" in done.stderr.partition("known:")[2]
    loads = []
    mp_load = mp.load_model
    try:
        mp.load_model = lambda *args, **others: loads.append(args) or mp_load(*args, **others)
        for value in ("counterfactual=black", "by=hand", "batch_size=many"):
            assert_fails(run_in_process(*call, "--set", value), f"--set {value}")
        assert not loads, "told before the model is loaded"
    finally:
        mp.load_model = mp_load


def test_python_refuses_what_the_command_refuses(tiny_spd):
    sample = Sample(id="a", question="?", answer="No.")
    for probe in ("rank_heads", "patch_components_run", "image_interchange_run", "attention_knockout_run"):
        with pytest.raises(InputError, match="counterfctual"):
            getattr(mp.probes, probe)(tiny_spd, [sample], counterfctual="blank")
