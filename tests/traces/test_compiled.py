"""Answers that are decoded with compiled layers are those of plain `generate`, and their traces are read as ever."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.asking import ask
from helpers.equal_runs import assert_equal_runs, full_precision, make_samples
from helpers.slow import first_fast
from transformers import CompileConfig

import mmprobe as mp
from mmprobe.benchmarks import evaluate
from mmprobe.errors import InputError
from mmprobe.models import Model, load_model


class Compiler:
    """A backend that compiles nothing, and counts graphs and passes through them."""

    def __init__(self) -> None:
        self.graphs = self.passes = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*arguments: Any) -> Any:
            self.passes += 1
            return module.forward(*arguments)

        return run


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    torch._dynamo.reset()
    yield Compiler()
    torch._dynamo.reset()


def load(backend: Any) -> Model:
    """Return a model of its own, which a backend compiles."""
    model = load_model("tiny-spd", device="cpu")
    model.hf.generation_config.compile_config = CompileConfig(
        backend=lambda *arguments, **_: backend(*arguments)  # an object would be copied
    )
    return model


def read_compile(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())["generate"].get("compile")


@pytest.mark.slow
@pytest.mark.parametrize("shared", first_fast([True, False]), ids=["shared prefixes", "whole prompts"])
def test_compiled_answers_and_their_traces_are_the_plain_ones(compiler, image_paths, tmp_path, shared):
    model, samples = load(compiler), make_samples(image_paths)
    options = {"capture": full_precision(), "max_new_tokens": 8, "batch_size": 2, "shared_prefix": shared}
    plain = mp.trace(model, samples, tmp_path / "plain", **options)
    assert not compiler.passes and read_compile(tmp_path / "plain") is None
    made = mp.trace(model, samples, tmp_path / "compiled", compile=True, **options)
    assert compiler.passes >= 2 * 7, "two batches of two, but for the first token"
    assert 1 <= compiler.graphs <= 2, (
        "one for all lengths of prompts; another where rows have places of their own"
    )
    assert_equal_runs(made, plain)
    assert read_compile(tmp_path / "compiled") is True
    graphs, passes = compiler.graphs, compiler.passes
    asked = [ask(model, samples, 8, 2, compile=each, shared_prefix=shared) for each in (True, False)]
    assert asked[0] == asked[1]
    assert compiler.graphs == graphs and compiler.passes > passes, (
        "answers without a trace use the same graphs"
    )


@pytest.mark.exhaustive
def test_a_smaller_batch_is_compiled_once_it_comes_again(compiler, image_paths):
    model, samples = load(compiler), make_samples(image_paths)[1:4]
    counts = []
    for size in (2, 1, 1):
        before = compiler.passes
        ask(model, samples[:size], 4, size, compile=True)
        counts.append(compiler.passes - before)
    assert counts == [3, 0, 3]


def test_what_cannot_be_compiled_is_decoded_as_ever_and_the_reason_is_kept(
    compiler, image_paths, tmp_path, caplog
):
    model, samples = load(compiler), make_samples(image_paths)[:1]
    expected = str(ask(model, samples, 3)[samples[0].id])
    handle = model.hf.lm_head.register_forward_hook(lambda *_: None)
    runs = {"hook on lm_head": {}, "method pai": {"method": "pai"}, "nnsight": {"engine": "nnsight"}}
    runs["prompt/residual_mid"] = {"capture": mp.CaptureSpec(datasets=["residual/mid"], positions="all")}
    for number, (reason, options) in enumerate(runs.items()):
        with caplog.at_level(logging.WARNING):
            run = mp.trace(model, samples, tmp_path / str(number), compile=True, max_new_tokens=3, **options)
        handle.remove()
        assert reason in read_compile(run.path) and reason in caplog.text
        assert not run.failures and (options.get("method") or run[samples[0].id].answer.strip() == expected)
    assert not compiler.graphs


def test_a_compiler_that_fails_costs_no_answer(compiler, image_paths, caplog):
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    model, samples = load(fail), make_samples(image_paths)[:2]
    with caplog.at_level(logging.WARNING):
        found = ask(model, samples, 4, compile=True)
    assert found == ask(model, samples, 4) and "no compiler here" in caplog.text


def test_compile_means_nothing_to_one_answer_or_to_a_server(tiny_spd, image_paths, tmp_path):
    (sample,) = make_samples(image_paths)[:1]
    with pytest.raises(InputError, match="compile"):
        mp.generate(tiny_spd, sample, compile=True)
    with pytest.raises(InputError, match="compile"):
        evaluate("pope", "openai/gpt-4o", out=tmp_path / "out", compile=True)
