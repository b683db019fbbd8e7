"""Traces under the user's own torch hooks show what the hooks leave behind."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from torch import Tensor, nn

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.hooks import find_hooked_module, observe
from mmprobe.samples import Sample
from mmprobe.traces import CaptureSpec

STEPS = 9
RESIDUALS = ["residual/pre", "residual/mid", "residual/post"]
SPEC = CaptureSpec(datasets=[*RESIDUALS, "ffn/gate_sum", "tam/logit"], positions="all", dtype="float32")


@pytest.fixture(scope="module")
def random_qwen(random_qwen: Model) -> Model:
    """Return a copy without the hooks that transformers leaves on modules after `output_hidden_states`."""
    hf = type(random_qwen.hf)(copy.deepcopy(random_qwen.hf.config)).eval()
    hf.load_state_dict(random_qwen.hf.state_dict())
    hf.generation_config = copy.deepcopy(random_qwen.hf.generation_config)
    return replace(random_qwen, hf=hf)


@contextmanager
def steer(hf: Any, in_place: bool) -> Iterator[None]:
    """Within the block, hooks and pre-hooks change layers, norms and gates of a model."""
    decoder = hf.model.language_model
    layers = decoder.layers
    vector = torch.linspace(-3, 3, hf.config.get_text_config().hidden_size)

    def shift_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.add_(vector) if in_place else output + vector

    def shift_input(module: nn.Module, args: Any, options: Any) -> Any:
        values = args[0] if args else options.pop("hidden_states")
        return (values.mul_(0.5) if in_place else values * 0.5, *args[1:]), options

    def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.mul_(2) if in_place else output * 2

    with ExitStack() as stack:
        for handle in (
            layers[0].register_forward_hook(shift_output),
            layers[0].register_forward_hook(double),
            layers[2].register_forward_pre_hook(shift_input, with_kwargs=True),
            layers[0].post_attention_layernorm.register_forward_pre_hook(shift_input, with_kwargs=True),
            layers[1].mlp.act_fn.register_forward_hook(double),
            decoder.norm.register_forward_hook(shift_output),
        ):
            stack.callback(handle.remove)
        yield


def compute_reference(model: Model, sample: Sample, answer: Tensor, in_place: bool) -> dict[str, Any]:
    """Return the internals of one eager forward pass over prompt and answer, under the same hooks."""
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    inputs = model.prepare(sample)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer[None]], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["mm_token_type_ids"] = nn.functional.pad(inputs["mm_token_type_ids"], (0, len(answer)))
    values: dict[str, list[Tensor]] = defaultdict(list)
    mids: list[Tensor] = []
    decoder = hf.model.language_model
    for (
        layer
    ) in decoder.layers:  # the first hook to be called: its tensor is the stream, changed in place or not
        layer.post_attention_layernorm.register_forward_pre_hook(lambda m, a: mids.append(a[0]))
        layer.mlp.register_forward_pre_hook(lambda m, a: values["mid"].append(mids[-1].clone()))
    with steer(hf, in_place), torch.no_grad():
        for layer in decoder.layers:
            layer.register_forward_pre_hook(
                lambda m, a, k: values["pre"].append((a[0] if a else k["hidden_states"]).clone()),
                with_kwargs=True,
            )
            layer.register_forward_hook(lambda m, a, out: values["post"].append(out.clone()))
            layer.mlp.act_fn.register_forward_hook(lambda m, a, out: values["gate"].append(out.clone()))
        output = hf(**inputs, output_hidden_states=True)
    reference = {name: torch.cat(layers) for name, layers in values.items()}  # [layer, position, ...]
    return reference | {"hidden": output.hidden_states, "logits": output.logits[0]}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("batch_size", first_fast([2, 1]))
def test_a_trace_shows_what_hooks_leave_behind(
    random_qwen: Model, image_paths: list[Path], tmp_path: Path, in_place: bool, batch_size: int
) -> None:
    questions = ["Compare the two pictures step by step.", "Same?"]
    samples = [
        Sample(id=str(index), images=image_paths[index : index + 2], question=question)
        for index, question in enumerate(questions)
    ]
    with steer(random_qwen.hf, in_place):
        run = mp.trace(
            random_qwen, samples, tmp_path, capture=SPEC, max_new_tokens=STEPS, batch_size=batch_size
        )
    assert run.failures == [] and find_hooked_module(random_qwen.hf) is None
    for sample, trace in zip(samples, run, strict=True):
        answer = torch.from_numpy(trace.array("steps/id").values).long()
        reference = compute_reference(random_qwen, sample, answer, in_place)
        n_prompt = len(reference["logits"]) - STEPS
        queries = slice(n_prompt - 1, n_prompt - 1 + STEPS)
        for name in ("pre", "mid", "post"):
            expected = reference[name].transpose(0, 1).numpy()  # [position, layer, hidden]
            np.testing.assert_allclose(
                trace.array(f"residual/{name}"), expected[queries], rtol=1e-3, atol=1e-3
            )
            prompt = trace.array(f"prompt/residual_{name}")
            np.testing.assert_allclose(prompt, expected[:n_prompt], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(
            trace.ffn_gate_sum, reference["gate"][:, queries].sum(1), rtol=1e-3, atol=1e-3
        )
        logits = reference["logits"]
        logprobs = logits[queries].log_softmax(-1).gather(1, answer[:, None])[:, 0]
        np.testing.assert_allclose(trace.array("steps/logprob"), logprobs, rtol=1e-3, atol=1e-3)
        tam = trace.tam_logit.values  # [step, position], NaN after each query
        expected = logits[: tam.shape[1], answer].T.numpy()
        known = ~np.isnan(tam)
        assert known[0].sum() == n_prompt
        np.testing.assert_allclose(tam[known], expected[known], rtol=1e-3, atol=2e-3)
        if not in_place:  # transformers' own hidden states; its last one is after the final norm
            hidden = torch.cat(reference["hidden"]).transpose(0, 1).numpy()[queries]
            np.testing.assert_allclose(trace.residual_post[:, :2], hidden[:, 1:3], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(trace.residual_pre[:, :2], hidden[:, :2], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(trace.residual_pre[:, 2], hidden[:, 2] / 2, rtol=1e-3, atol=1e-3)


def test_hooks_of_all_modules_count(random_qwen: Model, tmp_path: Path) -> None:
    layers = random_qwen.hf.model.language_model.layers

    def shift(module: nn.Module, args: Any, output: Any) -> Any:
        return output + 5 if module is layers[0] else output

    spec = CaptureSpec(datasets=["residual/pre", "residual/post"], dtype="float32")
    handle = nn.modules.module.register_module_forward_hook(shift)
    try:
        sample = Sample(id="a", question="Is there a star?")
        run = mp.trace(random_qwen, [sample], tmp_path, capture=spec, max_new_tokens=3)
    finally:
        handle.remove()
    assert run.failures == []
    np.testing.assert_array_equal(run["a"].residual_post[:, :2], run["a"].residual_pre[:, 1:])


def test_modules_without_hooks_get_none(random_qwen: Model) -> None:
    layers = random_qwen.hf.model.language_model.layers
    with observe(layers[0], inputs=print, outputs=print):
        assert not layers[0]._forward_hooks and not layers[0]._forward_pre_hooks


def test_hooks_that_transformers_leaves_behind_do_not_count(tiny_spd: Model) -> None:
    hf = copy.deepcopy(tiny_spd.hf)
    with torch.no_grad():
        hf(**tiny_spd.prepare(Sample(id="a", question="Is there a star?")), output_hidden_states=True)
    assert any(module._forward_hooks for module in hf.modules())
    assert find_hooked_module(hf) is None


@pytest.mark.parametrize(
    ("name", "before"),
    [("lm_head", True), ("lm_head", False), ("model.language_model", False), ("model", False)],
)
def test_tam_is_refused_if_a_hook_may_change_the_logits(
    random_qwen: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, before: bool
) -> None:
    module, samples = random_qwen.hf.get_submodule(name), [Sample(id="a", question="Is there a star?")]
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = register(lambda *_: None)
    try:
        with pytest.raises(InputError, match=rf"tam/logit: not available \(a torch hook on {name} "):
            mp.trace(random_qwen, samples, tmp_path, capture=CaptureSpec(datasets=["tam/logit"]))
        run = mp.trace(random_qwen, samples, tmp_path, max_new_tokens=2)
    finally:
        handle.remove()
    assert re.search(rf"tam/logit, tam/prompt: not recorded.*{name}", caplog.text)
    assert not [name for name in run["a"].captured if name.startswith("tam/")]


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_engines_that_copy_the_model_refuse_hooks(random_qwen: Model, tmp_path: Path, engine: str) -> None:
    layer = random_qwen.hf.model.language_model.layers[1]
    handle = layer.register_forward_hook(lambda module, args, output: output + 1)
    try:
        samples = [Sample(id="a", question="Is there a star?")]
        with pytest.raises(InputError, match=rf"engine {engine}: .* torch hook .*layers\.1"):
            mp.trace(random_qwen, samples, tmp_path / "run", engine=engine)
    finally:
        handle.remove()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("positions", ["generated", "prompt"])
@pytest.mark.slow
def test_a_run_stops_if_the_stream_changes_unseen(
    random_qwen: Model, image_paths: list[Path], tmp_path: Path, positions: Any
) -> None:
    layer = random_qwen.hf.model.language_model.layers[1]
    plain = type(layer)

    class Steered(plain):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **options: Any) -> Any:
            return super().__call__(*args, **options) + 1

    samples = [Sample(id=name, images=image_paths[:2], question="Same?") for name in "abcd"]
    spec = CaptureSpec(datasets=["residual/pre", "residual/post"], positions=positions)
    layer.__class__ = Steered
    try:
        with pytest.raises(
            InputError, match=r"^layer 1: its resid_post is not resid_pre of layer 2"
        ) as error:
            mp.trace(random_qwen, samples, tmp_path, capture=spec, max_new_tokens=3, batch_size=2)
    finally:
        layer.__class__ = plain
    assert "\n" not in str(error.value)
    run = mp.open_run(tmp_path)
    assert len(run) == 0 and run.failures == []
    again = mp.trace(
        random_qwen, samples, tmp_path, capture=spec, max_new_tokens=3, batch_size=2, resume=True
    )
    assert again.ids == list("abcd")


def test_layers_between_which_a_family_adds_features_may_differ(
    image_paths: list[Path], tmp_path: Path
) -> None:
    spec = CaptureSpec(datasets=["residual/pre", "residual/post"], positions="all", dtype="float32")
    samples = [Sample(id="a", images=image_paths[:2], question="Same?")]
    run = mp.trace(load_tiny_model("qwen3_vl"), samples, tmp_path, capture=spec, max_new_tokens=3)
    assert run.failures == []
    post, pre = (run["a"].array(f"prompt/residual_{name}").values for name in ("post", "pre"))
    assert np.abs(post[:, 0] - pre[:, 1]).max() > 0
