"""Residual streams as a TransformerLens `ActivationCache`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmprobe as mp
from mmprobe.errors import NotCaptured
from mmprobe.samples import Sample
from mmprobe.traces import load_capture


@pytest.fixture(scope="module")
def run(random_qwen, tmp_path_factory) -> mp.Run:
    return mp.trace(
        random_qwen,
        [Sample(id="a", question="Is there a star?")],
        tmp_path_factory.mktemp("run") / "run",
        capture=load_capture("full").model_copy(update={"dtype": "float32"}),
        max_new_tokens=5,
    )


def test_residuals_equal_those_of_the_trace(run):
    trace, cache = run["a"], run["a"].to_activation_cache()
    for name in ("pre", "mid", "post"):
        for layer in range(3):
            expected = trace.array(f"residual/{name}").values[:, layer]
            np.testing.assert_array_equal(cache[f"resid_{name}", layer].numpy(), expected)


def test_transformer_lens_computes_with_it(run):
    cache = run["a"].to_activation_cache()
    stack, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "2_pre", "2_mid", "final_post"]
    assert torch.equal(stack[1], cache["resid_mid", 0])
    rebuilt = cache["resid_pre", 0] + sum(
        cache["attn_out", layer] + cache["mlp_out", layer] for layer in range(3)
    )
    torch.testing.assert_close(rebuilt, cache["resid_post", 2], rtol=1e-4, atol=1e-4)


def test_a_trace_without_residuals_says_so(random_qwen, tmp_path):
    spec = mp.CaptureSpec(datasets=["update/kl"])
    run = mp.trace(
        random_qwen, [Sample(id="a", question="?")], tmp_path / "run", capture=spec, max_new_tokens=2
    )
    with pytest.raises(NotCaptured, match="residual streams"):
        run["a"].to_activation_cache()
