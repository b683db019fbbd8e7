"""The arguments of `trace`: a samples file, keyword-only options, and errors that name a wrong argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.samples import Sample

TOKENS = 3


@pytest.fixture(scope="module")
def samples_file(image_paths) -> Path:
    """A samples file with the path of an image relative to it."""
    path = image_paths[0].parent / "samples.jsonl"
    lines = [
        {"id": "a", "images": [image_paths[0].name], "question": "Is there a star?"},
        {"id": "b", "question": "What is a star?"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("as_type", [Path, str])
def test_the_path_of_a_samples_file_traces_its_samples(random_qwen, samples_file, tmp_path, as_type):
    run = mp.trace(random_qwen, as_type(samples_file), tmp_path / "file", max_new_tokens=TOKENS)
    samples = mp.load_samples(samples_file)
    assert run.ids == ["a", "b"]
    assert [run.sample(name) for name in run.ids] == samples
    listed = mp.trace(random_qwen, samples, tmp_path / "list", max_new_tokens=TOKENS)
    assert [trace.answer for trace in run] == [trace.answer for trace in listed]


def test_a_samples_file_that_is_missing_is_an_input_error(random_qwen, tmp_path):
    with pytest.raises(InputError, match="none.jsonl: no such file"):
        mp.trace(random_qwen, tmp_path / "none.jsonl", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_everything_after_out_is_a_keyword(random_qwen, samples_file, tmp_path):
    with pytest.raises(TypeError, match="positional"):
        mp.trace(random_qwen, samples_file, tmp_path / "run", "full")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batchsize": 2},
            "argument or parameter 'batchsize': there is none; did you mean batch_size?",
        ),
        (
            {"method": "sage", "alhpa": 1},
            "trace with method sage: argument or parameter 'alhpa': there is none; did you mean alpha?",
        ),
        ({"eta": 0}, "trace with method plain: argument or parameter 'eta': there is none"),
        (
            {"method": "sage", "parameters": {"alhpa": 1}},
            "parameter 'alhpa': there is none; did you mean alpha?",
        ),
        ({"capure": "full"}, "argument or parameter 'capure': there is none; did you mean capture?"),
        ({"method": "pai+vcd", "tokens": 8}, "trace with method pai+vcd: argument or parameter 'tokens'"),
        ({"method": "pai+vcd", "alpha": 0.5}, "parameters alpha: "),
        ({"method": "sage", "eta": "much"}, "eta"),
        ({"batch_size": 0}, "batch_size 0: must be 1 or more"),
    ],
)
def test_a_wrong_argument_is_named_before_the_run(random_qwen, samples_file, tmp_path, arguments, message):
    with pytest.raises(InputError) as error:
        mp.trace(random_qwen, samples_file, tmp_path / "run", **arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_two_samples_with_the_same_id_are_refused(random_qwen, tmp_path):
    with pytest.raises(InputError, match="samples: .*same id"):
        mp.trace(random_qwen, [Sample(id="a", question="?")] * 2, tmp_path / "run")


def test_an_earlier_run_is_kept_unless_resume_or_overwrite_is_set(random_qwen, samples_file, tmp_path):
    mp.trace(random_qwen, samples_file, tmp_path / "run", max_new_tokens=TOKENS)
    with pytest.raises(InputError, match="resume=True .*overwrite=True"):
        mp.trace(random_qwen, samples_file, tmp_path / "run", max_new_tokens=TOKENS)
    with pytest.raises(
        InputError, match=r"another generate \(max new tokens 3, now 4\); resume=True needs the same"
    ):
        mp.trace(random_qwen, samples_file, tmp_path / "run", max_new_tokens=TOKENS + 1, resume=True)
