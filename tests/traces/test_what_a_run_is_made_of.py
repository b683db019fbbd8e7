"""Numbers of another type are not mixed into what a call left, and traces that lack data are named."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
from helpers.command_line import run_in_process
from helpers.runs import edit_trace

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs

LIMITS = ("--limit", "2", "--max-new-tokens", "2")
COMMANDS = {
    "trace": ("trace", "--model", "tiny-spd", *LIMITS),
    "bench": ("bench", "mme", "--model", "tiny-spd", *LIMITS),
    "compare": ("compare", "--benchmarks", "mme", "--model", "tiny-spd", *LIMITS),
    "diagnose": ("diagnose", "--model", "tiny-spd", *LIMITS),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("data") / "pairs", 1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_another_dtype_is_refused(command, data, tmp_path):
    call = [*COMMANDS[command], "--data", data, "--out", tmp_path / "out", "--device", "cpu"]
    assert run_in_process(*call).code == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    refused = run_in_process(*call, "--resume", "--dtype", "bfloat16")
    assert refused.code == 2, refused.stderr
    words = "traced with another model" if command == "trace" else "the model's dtype changed"
    assert words in refused.stderr
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["tokens/text", "tokens/id"])
def test_verify_names_a_trace_that_lacks_what_every_trace_has(name, random_qwen, image_paths, tmp_path):
    sample = mp.Sample(id="a", question="?", images=image_paths[:1])
    run = mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=2)
    file = run.path / "samples" / "a.h5"
    with h5py.File(file) as source:
        attributes = dict(source.attrs)
    assert "fingerprint" in json.loads((run.path / "run.json").read_text()) and attributes
    edit_trace(file, lambda root: root.__delitem__(name))
    problems = mp.verify(run.path)
    assert problems and all(problem.startswith("a: ") for problem in problems)
    assert any(name in problem for problem in problems), problems
