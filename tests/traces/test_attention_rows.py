"""Attention rows of several samples at once equal a softmax computed sample by sample and step by step."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.models.attention import AttentionCall
from mmprobe.samples import Sample
from mmprobe.traces import recorder
from mmprobe.traces.engines import native
from mmprobe.traces.engines.native import LayerKeys, compute_rows

PROMPT, STEPS, HEADS, KV_HEADS, DIM = 9, 5, 4, 2, 8
PADDINGS = [0, 4, 2]


@pytest.mark.parametrize("rows", [slice(0, 3), slice(1, 3)], ids=["all", "some"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("window", [None, 6])
def test_rows_equal_a_softmax_of_each_query(rows, has_bias, window):
    torch.manual_seed(0)
    keys = torch.randn(3, KV_HEADS, PROMPT + STEPS - 1, DIM)
    queries = torch.randn(3, HEADS, STEPS, DIM)
    biases = [torch.randn(3, HEADS, 1, PROMPT + step) if has_bias else None for step in range(STEPS)]
    kept = LayerKeys(has_cross_attention=False)
    for step, bias in enumerate(biases):
        query, key = queries[:, :, step : step + 1], keys[:, :, : PROMPT + step]
        kept.add(AttentionCall(query, key, key, None, DIM**-0.5, window, query, bias))
    found = compute_rows([kept], queries[None, rows], rows, PROMPT - 1, PADDINGS[rows])
    start = min(PADDINGS[rows])
    assert found.weights.shape == (1, len(PADDINGS[rows]), HEADS, STEPS, PROMPT + STEPS - 1 - start)
    for sample, own in zip(range(3)[rows], found.weights[0], strict=True):
        padding = PADDINGS[sample]
        assert not own[..., : padding - start].any()
        for step in range(STEPS):
            end = PROMPT + step
            first = max(padding, 0 if window is None else end - window)
            for head in range(HEADS):
                scores = keys[sample, head // 2, first:end] @ queries[sample, head, step] / math.sqrt(DIM)
                if has_bias:
                    scores = scores + biases[step][sample, head, 0, first:end]
                expected = torch.zeros(PROMPT + STEPS - 1 - padding)
                expected[first - padding : end - padding] = scores.softmax(0)
                torch.testing.assert_close(own[head, step, padding - start :], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "size", first_fast([2**14, 1, 2**40]), ids=["some samples", "one sample", "whole batch"]
)
def test_samples_reduced_together_equal_single_ones(random_qwen, image_paths, tmp_path, monkeypatch, size):
    """Answers of several lengths, so that one ends within a block and one before the next."""
    samples = [
        Sample(id="a", images=image_paths[:2], question="Compare the two pictures step by step."),
        Sample(id="b", images=image_paths[1:2], question="Is there a star?"),
        Sample(id="c", images=image_paths[:1], question="What is it?"),
    ]
    whole = mp.trace(random_qwen, samples, tmp_path / "whole", capture="full", max_new_tokens=12)
    ends = [int(whole["b"].steps["id"][2]), int(whole["c"].steps["id"][5])]
    monkeypatch.setattr(random_qwen.hf.generation_config, "eos_token_id", ends)
    monkeypatch.setattr(native, "BLOCK_STEPS", 4)
    alone = mp.trace(random_qwen, samples, tmp_path / "alone", capture="full", max_new_tokens=12)
    monkeypatch.setitem(recorder.ROWS_BYTES, "cpu", size)
    sizes, start = [], native.BatchRecorder.__init__
    monkeypatch.setattr(
        native.BatchRecorder,
        "__init__",
        lambda own, *given: sizes.append(len(given[1])) or start(own, *given),
    )
    batch = mp.trace(random_qwen, samples, tmp_path / "b", capture="full", max_new_tokens=12, batch_size=3)
    assert sizes == [3], "the batch failed, and its samples were traced one by one"
    assert len({trace.steps.sizes["step"] for trace in alone}) > 1
    for one, other in zip(alone, batch, strict=True):
        assert one.steps["id"].equals(other.steps["id"])
        for name in ("attention_mass", "attention_visual_head", "update_kl"):
            torch.testing.assert_close(
                torch.tensor(getattr(other, name).values).float(),
                torch.tensor(getattr(one, name).values).float(),
                rtol=2e-3,
                atol=2e-5,
            )
