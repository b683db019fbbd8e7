"""What a GPU's time depends on, counted on a CPU: how often Python waits for the card, and how many operations it launches.

Reading one number of a tensor makes Python wait for all kernels. Tracing adds none of that a token. Small models, and large ones
that decode, take as long as their operations are many.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.asking import answer_batch
from helpers.counters import OperationCounter, WaitCounter
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.models import load_model
from mmprobe.models.reading import append_answers
from mmprobe.samples import Sample
from mmprobe.traces import load_capture, recorder
from mmprobe.traces.engines import native

SHORT, LONG = 6, 26  # tokens, all in one block of steps


def count(call: Any) -> Counter[str]:
    with WaitCounter() as counter:
        call()
    return counter.calls


def test_the_counter_sees_what_waits():
    numbers = torch.ones(3)
    calls = count(
        lambda: (numbers[0].item(), bool(numbers[0]), numbers.tolist(), numbers.cpu(), numbers.nonzero())
    )
    assert calls == {"item": 1, "__bool__": 1, "tolist": 1, "cpu": 1, "nonzero": 1}


@pytest.mark.parametrize("method", ["plain", "pai"], ids=["read after decoding", "recorded while decoding"])
@pytest.mark.parametrize("capture", first_fast(["default", "full"]))
def test_a_traced_token_waits_no_more_often_than_a_plain_one(
    tiny_spd, image_paths, tmp_path, capture, method
):
    sample = Sample(id="a", images=image_paths[:2], question="Compare the two pictures step by step.")
    config = tiny_spd.hf.generation_config
    before, config.eos_token_id = config.eos_token_id, None  # so that answers have the full length
    try:

        def answer(new: int) -> None:
            answer_batch(tiny_spd, [sample], method, new)

        def trace(new: int) -> None:
            options = {"capture": capture, "method": method, "max_new_tokens": new, "overwrite": True}
            mp.trace(tiny_spd, [sample], tmp_path / "run", **options)

        plain = {new: count(lambda new=new: answer(new)) for new in (SHORT, LONG)}
        traced = {new: count(lambda new=new: trace(new)) for new in (SHORT, LONG)}
    finally:
        config.eos_token_id = before
    assert (plain[LONG] - plain[SHORT]).total() >= LONG - SHORT  # whether the answer has ended
    assert traced[LONG] - traced[SHORT] == plain[LONG] - plain[SHORT]


@pytest.mark.parametrize("size", [1, 4])
def test_a_given_answer_takes_few_more_operations_than_one_pass(tiny_spd, image_paths, tmp_path, size):
    """One pass over prompt and answer is the least. A pass of the prompts' own would double it."""
    samples = [
        Sample(id=str(number), images=image_paths[:2], question="Are the pictures the same?")
        for number in range(size)
    ]
    answer = tiny_spd.tokenizer("Yes. The star moved. " * 6, add_special_tokens=False)["input_ids"]
    both = append_answers(tiny_spd, tiny_spd.batch(samples).inputs, [answer] * size)
    with torch.inference_mode(), OperationCounter() as one_pass:
        tiny_spd.hf(**both, logits_to_keep=len(answer))

    def trace() -> None:
        answers = {sample.id: answer for sample in samples}
        options = {"answers": answers, "batch_size": size, "shared_prefix": False, "overwrite": True}
        mp.trace(tiny_spd, samples, tmp_path / "run", **options)

    trace()  # the first one checks the model
    with OperationCounter() as traced:
        trace()
    assert 100 < one_pass.total < traced.total < 2 * one_pass.total


def count_reducing(
    model: Any, samples: list[Sample], folder: Path, layers: list[int]
) -> tuple[Counter[str], int]:
    """Return the calls that wait, and the operations, between the passes over given answers and their writers."""
    waits, operations = WaitCounter(), OperationCounter()
    flush, finish = native.BatchRecorder.flush, native.BatchRecorder.finish

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> None:
            with waits, operations:
                function(*arguments)

        return call

    answer = model.tokenizer("Yes. The star moved. " * 4, add_special_tokens=False)["input_ids"]
    given = {sample.id: answer[: len(answer) - number] for number, sample in enumerate(samples)}
    full = load_capture("full").model_copy(update={"layers": layers})
    with patch.multiple(native.BatchRecorder, flush=counted(flush), finish=counted(finish)):
        options = {"answers": given, "batch_size": len(samples), "shared_prefix": False}
        run = mp.trace(model, samples, folder / f"{len(samples)} {len(layers)}", capture=full, **options)
    assert len(run) == len(samples) and not run.failures
    return waits.calls, operations.total


def test_reducing_takes_as_many_operations_and_waits_for_six_samples_as_for_two(
    tiny_spd, image_paths, tmp_path, monkeypatch
):
    """Prompts and answers of several lengths. A layer adds as many operations for six samples as for two."""
    monkeypatch.setitem(recorder.ROWS_BYTES, "cpu", recorder.ROWS_BYTES["cuda"])
    questions = ("Same?", "Are the pictures the same?", "Is there a star in the first picture?")
    samples = [
        Sample(id=str(number), images=image_paths[:2], question=questions[number % 3]) for number in range(6)
    ]
    counts = {
        (size, layers): count_reducing(tiny_spd, samples[:size], tmp_path, list(range(layers)))
        for size in (2, 6)
        for layers in (4, 8)
    }
    for layers in (4, 8):
        assert counts[2, layers] == counts[6, layers]
    waits, operations = counts[6, 8]
    assert waits == counts[6, 4][0]
    assert set(waits) == {"cpu", "equal"} and waits["equal"] == 1  # copies to a card's host wait for nobody
    assert operations - counts[6, 4][1] <= 4 * 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_leaves_the_card_is_what_the_files_hold(image_paths, tmp_path, dtype):
    """Each number is copied once, in two bytes where its data set has two, whatever the model computes in."""
    model = load_model("tiny-spd", device="cpu", dtype=dtype)
    samples = [Sample(id=str(number), images=image_paths[:2], question="Same?") for number in range(2)]
    answer = model.tokenizer("Yes. The star moved. " * 8, add_special_tokens=False)["input_ids"]
    options = {"answers": {each.id: answer for each in samples}, "batch_size": 2}
    with WaitCounter() as counter:
        run = mp.trace(model, samples, tmp_path / "run", capture="full", **options)
    stored = sum(trace.array(name).values.nbytes for trace in run for name in trace.captured)
    streams = sum(trace.array("residual/pre").values.nbytes for trace in run)
    assert all(trace.array("residual/pre").dtype == np.float16 for trace in run) and streams > 10**5
    assert stored <= counter.copied <= 1.25 * stored
