"""A repetition penalty acts everywhere, and the settings in force are on record."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import load_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("pairs"), 2, 5)


@pytest.fixture
def checkpoint(tiny_spd):
    """Return the embedded model as a checkpoint with its own repetition penalty."""
    hf = copy.copy(tiny_spd.hf)
    hf.generation_config = copy.deepcopy(hf.generation_config)
    hf.generation_config.repetition_penalty = 1.3
    return replace(tiny_spd, hf=hf)


@pytest.mark.slow
def test_run_and_results_say_what_acted(checkpoint, data, tmp_path):
    for penalty in (None, 1.0):
        out = tmp_path / str(penalty)
        made = mp.benchmarks.evaluate(
            *("spd-faith", checkpoint, out),
            data=data,
            limit=1,
            max_new_tokens=4,
            repetition_penalty=penalty,
            trace=True,
        )
        results = json.loads((out / "results.json").read_text())
        assert results["generation"]["repetition_penalty"] == (penalty or 1.3)
        assert results["generation"]["do_sample"] is False
        run = mp.open_run(made.folder / "run")
        assert run.config["generation_settings"] == results["generation"]
    assert checkpoint.hf.generation_config.repetition_penalty == 1.3


@pytest.mark.slow
def test_the_penalty_changes_plain_answers_traces_and_methods(tiny_spd, data, tmp_path):
    samples = [sample for sample in load_samples(data) if sample.metadata["type"] == "steps"]
    strong = {"max_new_tokens": 24, "repetition_penalty": 5.0}
    usual = mp.generate(tiny_spd, samples[0], max_new_tokens=24).text
    plain = mp.generate(tiny_spd, samples[0], **strong).text
    assert plain != usual
    run = mp.trace(tiny_spd, samples[:1], tmp_path / "run", **strong)
    assert run[samples[0].id].answer == plain
    weak = {"alpha": 1e-9, "beta": 1.0, "eta": 1e-9}  # it acts, and changes next to nothing
    assert mp.generate(tiny_spd, samples[0], "sage", **weak, **strong).text == plain
    assert mp.generate(tiny_spd, samples[0], max_new_tokens=24).text == usual


def test_another_penalty_is_another_call(tiny_spd, data, tmp_path):
    call = {"data": data, "limit": 1, "max_new_tokens": 4}
    mp.benchmarks.evaluate("spd-faith", tiny_spd, tmp_path / "out", **call, repetition_penalty=1.2)
    with pytest.raises(InputError, match="by its repetition_penalty"):
        mp.benchmarks.evaluate(
            "spd-faith", tiny_spd, tmp_path / "out", **call, repetition_penalty=1.4, resume=True
        )


def test_bad_penalties_are_one_line(tiny_spd, data, tmp_path):
    sample = load_samples(data)[0]
    for penalty in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InputError, match="repetition_penalty"):
            mp.generate(tiny_spd, sample, repetition_penalty=penalty)
    with pytest.raises(InputError, match="behind an API"):
        mp.benchmarks.evaluate("pope", "openai/gpt-4o", tmp_path / "out", repetition_penalty=1.1)
