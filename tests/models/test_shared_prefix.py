"""Prompts that share what was read of their common beginning give the answers and the numbers of whole prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import TINY_BUILDERS, load_tiny_model

import mmprobe as mp
from mmprobe.models import Model
from mmprobe.models.families import FAMILIES
from mmprobe.models.hooks import observe
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import (
    PrefixStore,
    prefix_bytes,
    prefix_key,
    read_chats,
    repeated_keys,
    why_not_shared,
)
from mmprobe.samples import Sample

SHARING = sorted({family.name for family in FAMILIES.values() if family.shares_prefixes})
QUESTIONS = ["Is there a star?", "What?", "Compare the two pictures, please, step by step."]
DATASETS = ["attention/mass", "attention/leading", "attention/visual_head", "attention/row", "residual/pre"]
DATASETS += ["residual/mid", "residual/post", "update/kl", "update/cos_mha", "update/cos_ffn", "ffn/gate_sum"]
CAPTURE = mp.CaptureSpec(
    datasets=[*DATASETS, "ffn/gate_first", "tam/logit", "tam/prompt"], dtype="float32", missing="skip"
)


def make_samples(images: list[list[Path]], system: str | None = None) -> list[Sample]:
    """Return every question about every set of images, in turn, with one plain question in between."""
    samples = [
        Sample(id=f"q{number}-{index}", images=each, question=question, system=system)
        for number, question in enumerate(QUESTIONS)
        for index, each in enumerate(images)
    ]
    return [samples[0], Sample(id="plain", question="Hello?"), *samples[1:]]


def trace(model: Model, samples: list[Sample], out: Path, **options) -> mp.Run:
    return mp.trace(model, samples, out, **{"capture": CAPTURE, "max_new_tokens": 4} | options)


def count_encodings(model: Model) -> tuple[list[torch.Tensor], AbstractContextManager[None]]:
    """Return a list that grows whenever images are encoded, and the context manager that lets it.

    Where the encoder's layers are not declared, the list has one element, and nothing is counted.
    """
    if model.family.vision is None:
        return [torch.empty(0)], nullcontext()
    calls: list[torch.Tensor] = []
    return calls, observe(next(iter(model.family.vision.layers(model.hf))), outputs=calls.append)


def flatten(report: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a method's report, each with its place."""
    if isinstance(report, dict | list):
        items = report.items() if isinstance(report, dict) else enumerate(report)
        for key, value in items:
            yield from flatten(value, f"{path}/{key}")
    else:
        yield path, report


def assert_close(run: mp.Run, whole: mp.Run) -> None:
    """Check that all tokens are equal, and all data sets within 1e-5."""
    assert run.ids == whole.ids and not run.failures
    for trace, expected in zip(run, whole, strict=True):
        assert trace.captured == expected.captured
        reports, others = (dict(flatten(each.method_reports)) for each in (trace, expected))
        assert reports == pytest.approx(others, abs=1e-5)
        for name in set(trace.captured) - {"methods/report"}:
            values, numbers = trace.array(name).values, expected.array(name).values
            if numbers.dtype.kind == "f":
                np.testing.assert_allclose(values, numbers, atol=1e-5, rtol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(values, numbers, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(SHARING, 3))
def test_every_family_gives_the_answers_and_numbers_of_whole_prompts(name, image_paths, tmp_path):
    model = load_tiny_model(name)
    model.hf.generation_config.eos_token_id = None
    samples = make_samples([image_paths[:2]], "You answer questions.")
    whole = trace(model, samples, tmp_path / "whole", shared_prefix=False)
    for batch_size in (1, 3):
        calls, counting = count_encodings(model)
        with counting:
            run = trace(model, samples, tmp_path / f"run{batch_size}", batch_size=batch_size)
        assert len(calls) == 1, "the images are encoded once"
        assert_close(run, whole)
    for sample in samples:
        output = model.hf.generate(**model.prepare(sample), max_new_tokens=4, do_sample=False)
        np.testing.assert_array_equal(run[sample.id].tokens["id"].values, output[0].numpy())


@pytest.mark.parametrize("name", sorted(set(TINY_BUILDERS) - set(SHARING)))
def test_other_families_read_whole_prompts(name):
    reason = why_not_shared(load_tiny_model(name))
    assert reason is not None and "causal attention" in reason


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    return make_samples([image_paths[:2], image_paths[:1], image_paths[1:]])


def test_batches_that_mix_images_share_the_prefix_of_each_row(random_qwen, samples, shared, tmp_path):
    assert_close(shared, trace(random_qwen, samples, tmp_path / "run", shared_prefix=False))


@pytest.fixture(scope="module")
def shared(random_qwen: Model, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> mp.Run:
    return trace(random_qwen, samples, tmp_path_factory.mktemp("shared") / "run", batch_size=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capture", "batch_size"),
    [
        (CAPTURE, 3),
        (CAPTURE.model_copy(update={"datasets": ["attention/mass", "residual/post"]}), 1),
    ],
    ids=["with the prompt's states", "without them"],
)
@pytest.mark.parametrize("method", first_fast(["sage", "vcd", "icd", "agla"]))
def test_traces_under_a_method_hold_the_numbers_of_whole_prompts(
    random_qwen, image_paths, tmp_path, method, capture, batch_size
):
    """Of captures with and without the states of the prompt, which SAGE needs in any case."""
    samples = [sample for sample in make_samples([image_paths[:2], image_paths[1:]]) if sample.images]
    options = {"method": method, "capture": capture, "batch_size": batch_size}
    whole = trace(random_qwen, samples, tmp_path / "whole", shared_prefix=False, **options)
    run = trace(random_qwen, samples, tmp_path / "run", **options)
    assert_close(run, whole)


@pytest.mark.slow
def test_numbers_do_not_depend_on_what_is_kept(random_qwen, samples, shared, tmp_path, monkeypatch):
    """A resumed run, and one with little memory, have the same bytes, since every prefix is read alike."""
    monkeypatch.setattr(PrefixStore.__init__, "__defaults__", (prefix_bytes(random_qwen, 60),))
    small = trace(random_qwen, samples, tmp_path / "run", batch_size=2)
    for name in small.ids[::3]:
        (small.path / "samples" / f"{name}.h5").unlink()
    resumed = trace(random_qwen, samples, small.path, batch_size=2, resume=True)
    for name in shared.ids:
        for path in shared[name].captured:
            np.testing.assert_array_equal(resumed[name].array(path).values, shared[name].array(path).values)


@pytest.mark.parametrize(
    "options",
    [
        {"shared_prefix": False},
        {"method": "sage", "prompt": True},
        {"capture": CAPTURE.model_copy(update={"positions": "all", "datasets": ["residual/post"]})},
        {"capture": mp.CaptureSpec(datasets=["vision/residual"])},
        {"engine": "transformer_lens", "capture": mp.CaptureSpec(datasets=["attention/mass"])},
    ],
    ids=["off", "method", "prompt", "vision", "engine"],
)
def test_what_needs_whole_prompts_gets_them(random_qwen, samples, tmp_path, options, monkeypatch):
    monkeypatch.setattr(PrefixStore, "start", None)  # a call would fail every sample
    two = [sample for sample in samples if sample.images][:2]
    two[1] = two[0].model_copy(update={"id": "other"})
    run = trace(random_qwen, two, tmp_path / "run", **{"max_new_tokens": 2} | options)
    assert len(run) == 2 and not run.failures


def test_a_hook_of_the_user_sees_whole_prompts(random_qwen, samples):
    handle = random_qwen.hf.lm_head.register_forward_hook(lambda *_: None)
    try:
        assert "torch hook on lm_head" in why_not_shared(random_qwen)
    finally:
        handle.remove()
    assert why_not_shared(random_qwen) is None


def test_only_repeated_images_are_kept(samples, image_paths):
    single = Sample(id="single", images=image_paths[2:], question="What?")
    other_system = samples[0].model_copy(update={"id": "other", "system": "Be brief."})
    keys = repeated_keys([*samples, single, other_system])
    assert keys == {
        prefix_key(Sample(id="x", images=images, question="?"))
        for images in (image_paths[:2], image_paths[:1], image_paths[1:])
    }


@pytest.mark.parametrize(
    "name", sorted(each.name for each in FAMILIES.values() if each.continues_with_images)
)
def test_an_image_is_read_once_after_the_same_beginning(name, image_paths):
    """Prompts that begin alike and end with other images give what whole ones give."""
    model, first, second = load_tiny_model(name), *image_paths[:2]
    shown = ([first], [first, second], [first, first], [second, second], [first, second])
    chats = [
        build_chat(Sample(id=str(number), images=images, question=question))
        for number, (images, question) in enumerate(zip(shown, [*QUESTIONS, *QUESTIONS], strict=False))
    ]
    ids = [[5, 6, 7], [8], [9, 10], [5], [6, 7]]
    store, encoded = PrefixStore(model, frozenset(), keeps_states=False), []
    tower = next(iter(model.family.vision.layers(model.hf)))
    with observe(
        tower, outputs=lambda output: encoded.append(len(output[0] if isinstance(output, tuple) else output))
    ):
        whole = [read_chats(model, [chat], [own]).predict()[0] for chat, own in zip(chats, ids, strict=True)]
        both = encoded[1]  # of an answer about both, in tiles
        encoded.clear()
        found = read_chats(model, chats, ids, store).predict()
        assert sum(encoded) == both, "each image is encoded once"
        with patch.object(
            model.hf.base_model, "get_image_features", side_effect=AssertionError("encoded again")
        ):
            again = read_chats(model, chats[::-1], ids[::-1], store).predict()[::-1]
    for each, expected in zip(again, found, strict=True):
        np.testing.assert_allclose(each.logprobs, expected.logprobs, atol=1e-5)
    for each, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(each.logprobs, expected.logprobs, atol=1e-5)
        np.testing.assert_allclose(each.last, expected.last, atol=1e-5)
