"""Captures of the prompt, of chosen heads, and with compression."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import mmprobe as mp
from mmprobe.cache.verify import verify
from mmprobe.models import Group
from mmprobe.samples import Sample
from mmprobe.traces.engines import native

NAMES = [
    "attention/mass",
    "attention/visual",
    "attention/visual_head",
    "attention/row",
    "residual/pre",
    "residual/mid",
    "residual/post",
]


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    """Make several blocks of the prompt's queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "PROMPT_QUERIES", 16)
        yield


@pytest.fixture(scope="module")
def traced(random_qwen, image_paths, tmp_path_factory):
    sample = Sample(id="a", images=image_paths[:2], question="Compare the two pictures.")
    spec = mp.CaptureSpec(datasets=NAMES, positions="all", dtype="float32")
    run = mp.trace(
        random_qwen, [sample], tmp_path_factory.mktemp("run") / "run", capture=spec, max_new_tokens=5
    )
    hf = copy.deepcopy(random_qwen.hf)
    hf.set_attn_implementation("eager")
    mids: list[torch.Tensor] = []
    for layer in hf.model.language_model.layers:
        layer.post_attention_layernorm.register_forward_pre_hook(lambda m, a: mids.append(a[0]))
    with torch.no_grad():
        out = hf(**random_qwen.prepare(sample), output_attentions=True, output_hidden_states=True)
    attention = torch.stack(out.attentions)[:, 0].permute(2, 0, 1, 3).numpy()  # [position, layer, head, key]
    hidden = torch.stack(out.hidden_states)[:, 0].transpose(0, 1).numpy()
    return run["a"], attention, hidden, torch.stack(mids)[:, 0].transpose(0, 1).numpy()


def test_rows_of_the_prompt_equal_eager(traced):
    trace, attention, _, _ = traced
    np.testing.assert_allclose(trace.array("prompt/attention_row").values, attention, atol=1e-5)
    visual = trace.tokens["group"].values[: attention.shape[-1]] == 2
    np.testing.assert_allclose(
        trace.array("prompt/attention_visual_head").values, attention[..., visual], atol=1e-5
    )
    np.testing.assert_allclose(
        trace.array("prompt/attention_visual").values, attention[..., visual].mean(2), atol=1e-5
    )


def test_masses_of_the_prompt_equal_eager(traced):
    trace, attention, _, _ = traced
    group = trace.tokens["group"].values[: attention.shape[-1]]
    expected = np.stack([attention[..., group == code].sum(-1) for code in range(len(Group))], -1)
    np.testing.assert_allclose(trace.array("prompt/attention_mass").values, expected, atol=1e-5)


def test_residuals_of_the_prompt_equal_eager(traced):
    trace, _, hidden, mids = traced
    layers = mids.shape[1]
    for name, expected in (("pre", hidden[:, :layers]), ("mid", mids), ("post", hidden[:, 1:layers])):
        actual = trace.array(f"prompt/residual_{name}").values[:, : expected.shape[1]]
        assert (np.abs(actual - expected).max(-1) / np.abs(expected).max(-1)).max() < 1e-5


def test_the_last_token_of_the_prompt_is_the_first_query(traced):
    trace = traced[0]
    for name, prompt_name in (
        ("attention/mass", "prompt/attention_mass"),
        ("residual/mid", "prompt/residual_mid"),
    ):
        np.testing.assert_allclose(
            trace.array(name).values[0], trace.array(prompt_name).values[-1], atol=1e-5
        )


def test_a_capture_of_the_prompt_alone(random_qwen, image_paths, tmp_path, traced):
    sample = Sample(id="a", images=image_paths[:2], question="Compare the two pictures.")
    spec = mp.CaptureSpec(datasets=["residual/mid"], positions="prompt", dtype="float32")
    trace = mp.trace(random_qwen, [sample], tmp_path / "run", capture=spec, max_new_tokens=5)["a"]
    assert "residual/mid" not in trace.captured
    np.testing.assert_array_equal(
        trace.array("prompt/residual_mid").values, traced[0].array("prompt/residual_mid").values
    )


def test_chosen_heads_equal_the_same_heads_of_a_full_capture(random_qwen, image_paths, tmp_path, traced):
    sample = Sample(id="a", images=image_paths[:2], question="Compare the two pictures.")
    spec = mp.CaptureSpec(datasets=NAMES, positions="all", dtype="float32", heads=[-1, 1], layers=[2, 0])
    trace = mp.trace(random_qwen, [sample], tmp_path / "run", capture=spec, max_new_tokens=5)["a"]
    assert trace.attention_mass["head"].values.tolist() == [1, 3]
    for name in ("attention/mass", "attention/visual_head", "attention/row", "prompt/attention_row"):
        expected = traced[0].array(name).sel(head=[1, 3], layer=[0, 2]).values
        # the processor may sum fewer heads in another order
        np.testing.assert_allclose(trace.array(name).values, expected, rtol=1e-6, atol=1e-7)
    by_head = trace.array("attention/visual_head").mean("head").values
    np.testing.assert_allclose(trace.attention_visual.values, by_head, atol=1e-6)
    with pytest.raises(mp.InputError, match="head 4 .*model's 4"):
        mp.trace(random_qwen, [sample], tmp_path / "no", capture=spec.model_copy(update={"heads": [4]}))


@pytest.mark.parametrize("compression", ["blosc2", "zstd"])
@pytest.mark.slow
def test_compressed_arrays_are_the_same_and_smaller(random_qwen, image_paths, tmp_path, traced, compression):
    sample = Sample(id="a", images=image_paths[:2], question="Compare the two pictures.")
    spec = mp.CaptureSpec(datasets=NAMES, positions="all", dtype="float32", compression=compression)
    run = mp.trace(random_qwen, [sample], tmp_path / "run", capture=spec, max_new_tokens=5)
    trace = run["a"]
    for name in trace.captured:
        if name.startswith(("attention/", "residual/", "prompt/")):
            np.testing.assert_array_equal(trace.array(name).values, traced[0].array(name).values)
    assert trace.file.stat().st_size < traced[0].file.stat().st_size
    assert mp.verify(run.path) == []


@pytest.mark.parametrize("groups", [["visual"], ["user", "template"]])
def test_some_groups_of_the_prompt_in_some_layers(traced, random_qwen, tmp_path, groups):
    """Each data set has the rows of these tokens, also where a batch pads the prompt."""
    whole = traced[0]
    samples = [whole.sample, whole.sample.model_copy(update={"id": "b", "images": [], "question": "Hm?"})]
    spec = mp.CaptureSpec(datasets=NAMES, positions="all", dtype="float32", layers=[0, 2], groups=groups)
    for each in samples:  # prompts with images and without are in different batches
        mp.trace(random_qwen, [each], tmp_path / each.id, capture=spec, max_new_tokens=5)
    trace = mp.open_run(tmp_path / "a")["a"]
    numbers = [("template", "system", "visual", "user").index(name) for name in groups]
    group = whole.tokens["group"].values[:-5]
    expected = np.flatnonzero(np.isin(group, numbers))
    assert 0 < len(expected) < len(group) and len(expected) > 16
    np.testing.assert_array_equal(trace.prompt_positions, expected)
    np.testing.assert_array_equal(whole.prompt_positions, np.arange(len(group)))
    for name in NAMES:
        own = name.replace("/", "_")
        values = whole.array(f"prompt/{own}").values[expected][:, [0, 2]]
        np.testing.assert_allclose(trace.array(f"prompt/{own}").values, values, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(trace.residual_post.values, whole.residual_post.values[:, [0, 2]], atol=1e-6)
    without = mp.open_run(tmp_path / "b")["b"]
    if groups == ["visual"]:
        assert not len(without.prompt_positions) and "prompt/residual_post" not in without.captured
    assert not verify(tmp_path / "a") and not verify(tmp_path / "b")
