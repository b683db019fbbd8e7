"""The native engine gives the tokens and the numbers of eager transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from transformers.generation import utils as generation

import mmprobe as mp
from mmprobe.models import Group, Model
from mmprobe.models.attention import _observers
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.engines import native

SYSTEM = "You answer questions about pictures of coloured shapes."
STEPS = 37


def make_sample(images: list[Path], name: str = "a") -> Sample:
    return Sample(id=name, images=images, system=SYSTEM, question="Compare the two pictures step by step.")


def eager_reference(model: Model, sample: Sample, answer: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the internals of one eager forward pass, from transformers' outputs and plain hooks."""
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    inputs = model.prepare(sample)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer[None]], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(answer)))
    recorded: dict[str, list[torch.Tensor]] = {"mid": [], "gate": [], "pre": [], "post": []}
    for layer in hf.model.language_model.layers:
        layer.register_forward_pre_hook(
            lambda m, a, k: recorded["pre"].append(a[0] if a else k["hidden_states"]), with_kwargs=True
        )
        layer.post_attention_layernorm.register_forward_pre_hook(lambda m, a: recorded["mid"].append(a[0]))
        layer.mlp.act_fn.register_forward_hook(lambda m, a, out: recorded["gate"].append(out))
        layer.register_forward_hook(
            lambda m, a, out: recorded["post"].append(out[0] if isinstance(out, tuple) else out)
        )
    with torch.no_grad():
        out = hf(**inputs, output_attentions=True, output_hidden_states=True)
    prompt = inputs["input_ids"].shape[1] - len(answer)
    queries = slice(prompt - 1, prompt - 1 + len(answer))
    stacked = {
        name: torch.stack(values)[:, 0, queries].transpose(0, 1).numpy() for name, values in recorded.items()
    }
    return stacked | {
        "attention": torch.stack(out.attentions)[:, 0, :, queries].permute(2, 0, 1, 3).numpy(),
        "logits": out.logits[0].numpy(),
        "prompt": np.array(prompt),
    }


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    """Shorten blocks, so that an answer has two whole blocks and a part of a third."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmprobe.traces.engines.native.BLOCK_STEPS", 16)
        yield


@pytest.fixture(scope="module", params=first_fast(["random_qwen", "tiny_spd"]))
def model(request: pytest.FixtureRequest) -> Model:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=[1, 2, 0], ids=["one image", "two images", "no image"])
def traced(
    request: pytest.FixtureRequest,
    model: Model,
    image_paths: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
):
    sample = make_sample(image_paths[1 : 1 + request.param])
    out = tmp_path_factory.mktemp("run") / "run"
    spec = load_capture("full").model_copy(update={"dtype": "float32"})
    run = mp.trace(model, [sample], out, capture=spec, max_new_tokens=STEPS)
    trace = run["a"]
    answer = torch.from_numpy(trace.steps["id"].values).long()
    return model, sample, trace, eager_reference(model, sample, answer)


def test_tokens_are_those_of_plain_generate(traced):
    model, sample, trace, _ = traced
    inputs = model.prepare(sample)
    output = model.hf.generate(**inputs, max_new_tokens=STEPS, do_sample=False)
    np.testing.assert_array_equal(trace.tokens["id"].values, output[0].numpy())
    np.testing.assert_array_equal(trace.steps["id"].values, output[0, inputs["input_ids"].shape[1] :].numpy())


def test_attention_mass_equals_eager(traced):
    _, _, trace, eager = traced
    group = trace.tokens["group"].values
    expected = np.stack([eager["attention"][..., group == code].sum(-1) for code in range(len(Group))], -1)
    np.testing.assert_allclose(trace.attention_mass.values, expected, atol=1e-5)
    np.testing.assert_allclose(trace.attention_mass.sum("group"), 1, atol=1e-5)


def test_leading_attention_equals_eager(traced):
    _, _, trace, eager = traced
    visual = np.flatnonzero(trace.tokens["group"].values == 2)
    expected = eager["attention"][..., : visual[0] if len(visual) else 0].sum(-1)
    np.testing.assert_allclose(trace.attention_leading.values, expected, atol=1e-5)


def test_visual_attention_equals_eager(traced):
    _, _, trace, eager = traced
    expected = eager["attention"][..., trace.tokens["group"].values == 2]
    np.testing.assert_allclose(trace.attention_visual_head.values, expected, atol=1e-5)
    np.testing.assert_allclose(trace.attention_visual.values, expected.mean(2), atol=1e-5)


@pytest.mark.parametrize("name", ["pre", "mid", "post"])
def test_residuals_equal_eager(traced, name):
    """The tolerance is 1e-5 of the vector's largest number, since kernels sum in another order."""
    _, _, trace, eager = traced
    error = np.abs(trace.array(f"residual/{name}").values - eager[name]).max(-1)
    assert (error / np.abs(eager[name]).max(-1)).max() < 1e-5


def test_float16_only_rounds(random_qwen, image_paths, tmp_path):
    spec = load_capture("full").model_copy(update={"dtype": "float32"})
    single = mp.trace(
        random_qwen, [make_sample(image_paths)], tmp_path / "single", capture=spec, max_new_tokens=5
    )["a"]
    half = mp.trace(
        random_qwen, [make_sample(image_paths)], tmp_path / "half", capture="full", max_new_tokens=5
    )["a"]
    for name in (
        "attention/visual",
        "attention/visual_head",
        "residual/pre",
        "residual/mid",
        "residual/post",
        "tam/logit",
    ):
        assert half.array(name).dtype == np.float16
        np.testing.assert_array_equal(half.array(name).values, single.array(name).values.astype(np.float16))


def test_gates_equal_eager(traced):
    _, _, trace, eager = traced
    expected = eager["gate"].sum(0)
    error = np.abs(trace.ffn_gate_sum.values - expected).max(-1)
    assert (error / np.abs(expected).max(-1)).max() < 1e-5, (
        "of the layer's largest sum: float32 adds up in another order"
    )
    np.testing.assert_allclose(trace.array("ffn/gate_first"), eager["gate"][0], atol=1e-5)
    clear = np.abs(eager["gate"]) > 1e-6  # closer to 0, signs depend on rounding
    np.testing.assert_array_equal(trace.ffn_active.values[clear], (eager["gate"] > 0)[clear])


def test_updates_equal_their_formulas(traced):
    """The formulas are those of SPD-Faith Bench, equation 5, computed by numpy in double precision."""
    _, _, trace, eager = traced
    pre, mid, post = (eager[name].astype(float) for name in ("pre", "mid", "post"))

    def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    p, q = softmax(mid - pre), softmax(post - mid)
    np.testing.assert_allclose(trace.update_cos_mha.values, cosine(pre, mid), atol=1e-5)
    np.testing.assert_allclose(trace.update_cos_ffn.values, cosine(mid, post), atol=1e-5)
    np.testing.assert_allclose(trace.update_kl.values, (p * np.log(p / q)).sum(-1), atol=1e-4, rtol=1e-4)


def test_logprob_and_entropy_equal_eager(traced):
    _, _, trace, eager = traced
    first = int(eager["prompt"]) - 1
    logits = torch.from_numpy(eager["logits"][first:-1])
    distribution = torch.distributions.Categorical(logits=logits)
    token_ids = torch.from_numpy(trace.steps["id"].values)
    np.testing.assert_allclose(trace.steps["logprob"].values, distribution.log_prob(token_ids), atol=1e-4)
    np.testing.assert_allclose(trace.steps["entropy"].values, distribution.entropy(), atol=1e-4)


def test_tam_logits_equal_eager_logits(traced):
    """The values after a step's query are NaN."""
    _, _, trace, eager = traced
    ids, prompt = trace.steps["id"].values, int(eager["prompt"])
    stored = trace.tam_logit.values
    for step, token in enumerate(ids):
        query = prompt - 1 + step
        expected = eager["logits"][: query + 1, token]
        np.testing.assert_allclose(
            stored[step, : query + 1], expected, rtol=0, atol=1e-5 * np.abs(expected).max()
        )
        assert np.isnan(stored[step, query + 1 :]).all()


def test_tam_prompt_logits_equal_eager_logits(traced):
    _, _, trace, eager = traced
    group, ids = trace.tokens["group"].values, trace.tokens["id"].values
    expected = eager["logits"][np.flatnonzero(group == 2)][:, ids[group == 3]].T
    largest = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(trace.tam_prompt.values, expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.slow
def test_sampling_draws_the_same_tokens_as_generate(random_qwen, image_paths, tmp_path):
    sample = make_sample(image_paths[:2])
    run = mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=STEPS, temperature=0.9, seed=11)
    torch.manual_seed(11)
    inputs = random_qwen.prepare(sample)
    output = random_qwen.hf.generate(**inputs, max_new_tokens=STEPS, do_sample=True, temperature=0.9)
    np.testing.assert_array_equal(run["a"].tokens["id"].values, output[0].numpy())
    greedy = random_qwen.hf.generate(**inputs, max_new_tokens=STEPS, do_sample=False)
    assert not torch.equal(output, greedy), "sampling must differ from greedy here, or the test shows nothing"


def test_images_are_found_from_another_folder(random_qwen, image_paths, tmp_path, monkeypatch):
    monkeypatch.chdir(image_paths[0].parent)
    sample = Sample(id="a", images=[image_paths[0].name], question="?")
    run = mp.trace(random_qwen, [sample], tmp_path / "run", max_new_tokens=1)
    monkeypatch.chdir(tmp_path)
    assert run.sample("a").images == [image_paths[0]]
    assert random_qwen.prompt(run.sample("a")).grids == [(4, 4)]


@pytest.fixture(scope="module", params=first_fast(["plain", "sage"]))
def trace_full(request, random_qwen, image_paths):
    """A function that traces one answer in a folder."""

    def trace(folder):
        options = {"capture": "full", "max_new_tokens": 6, "method": request.param}
        run = mp.trace(random_qwen, [make_sample(image_paths[:1])], folder, **options)
        assert not run.failures, run.failures
        return run["a"]

    return trace


@pytest.fixture(scope="module")
def expected(trace_full, tmp_path_factory):
    return trace_full(tmp_path_factory.mktemp("expected") / "run")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 16},
        {"return_dict_in_generate": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_generation_settings_of_a_checkpoint_change_nothing(
    random_qwen, trace_full, expected, tmp_path, monkeypatch, settings
):
    """Without a cache, for example, each step reads the whole answer, and TAM counts the prompt twice."""
    config = copy.deepcopy(random_qwen.hf.generation_config)
    for name, value in settings.items():
        setattr(config, name, value)
    monkeypatch.setattr(random_qwen.hf, "generation_config", config)
    trace = trace_full(tmp_path / "run")
    for name in expected.captured:
        np.testing.assert_array_equal(trace.array(name).values, expected.array(name).values, name)


def test_no_hook_is_left_behind(random_qwen, image_paths, tmp_path):
    """Hooks of transformers itself may stay: another test of this model may have asked for hidden states."""
    hf = random_qwen.hf

    def hooks() -> list[tuple[list[int], list[int]]]:
        return [(list(part._forward_hooks), list(part._forward_pre_hooks)) for part in hf.modules()]

    before = hooks()
    mp.trace(random_qwen, [make_sample(image_paths[:1])], tmp_path / "run", capture="full", max_new_tokens=3)
    assert hf.config.get_text_config()._attn_implementation == "sdpa"
    assert hooks() == before
    assert not any("forward" in vars(module) for module in hf.modules())
    assert not len(_observers)


def test_hooks_of_others_still_run_and_stay(random_qwen, image_paths, tmp_path):
    """They are a user's hook, and a forward that another library replaced, as accelerate does."""
    assert random_qwen.has_plain_logits  # computed once, with a forward pass that the hook would count
    layer, calls = random_qwen.hf.model.language_model.layers[1], []
    handle = layer.register_forward_hook(lambda *_: calls.append("hook"))
    original = layer.forward
    layer.forward = replaced_forward = lambda *args, **options: (
        calls.append("forward") or original(*args, **options)
    )
    try:
        mp.trace(random_qwen, [make_sample(image_paths[:1])], tmp_path / "run", max_new_tokens=2)
        assert vars(layer)["forward"] is replaced_forward
    finally:
        handle.remove()
        del layer.forward
    assert calls == ["forward", "hook"] * 2


def test_only_the_captured_layers_are_recorded(random_qwen, image_paths, tmp_path):
    sample = make_sample(image_paths[:1])
    spec = mp.CaptureSpec(datasets=["attention/mass", "residual/mid", "ffn/gate_sum"], layers=[0, -1])
    some = mp.trace(random_qwen, [sample], tmp_path / "some", capture=spec, max_new_tokens=5)["a"]
    every = mp.trace(random_qwen, [sample], tmp_path / "every", capture="full", max_new_tokens=5)["a"]
    assert some.attention_mass["layer"].values.tolist() == [0, 2]
    np.testing.assert_array_equal(some.attention_mass.values, every.attention_mass.sel(layer=[0, 2]).values)
    np.testing.assert_array_equal(some.residual_mid.values, every.residual_mid.sel(layer=[0, 2]).values)
    np.testing.assert_allclose(
        some.ffn_gate_sum.values, every.ffn_gate_sum.sel(layer=[0, 2]).values, rtol=1e-5
    )
    with pytest.raises(mp.InputError, match="residual/pre was not captured"):
        _ = some.residual_pre


@pytest.mark.parametrize("tokens", [1, 15, 16, 17])
@pytest.mark.slow
def test_answers_of_about_one_block_are_complete(random_qwen, image_paths, tmp_path, tokens):
    trace = mp.trace(random_qwen, [make_sample(image_paths[:1])], tmp_path / "run", max_new_tokens=tokens)[
        "a"
    ]
    assert trace.attention_mass.sizes["step"] == tokens == trace.steps.sizes["step"]
    assert trace.tam_logit.shape == (tokens, trace.tokens.sizes["token"])
    assert not np.isnan(trace.attention_mass.values).any()


@pytest.mark.slow
def test_a_step_beyond_the_end_is_dropped(random_qwen, image_paths, tmp_path, monkeypatch):
    """On Apple's GPUs transformers stops one step late, which can be at the end of a block."""
    sample = make_sample(image_paths[:2])
    with torch.inference_mode():
        out = random_qwen.hf.generate(**random_qwen.prepare(sample), max_new_tokens=12, do_sample=False)
    tokens = out[0, len(random_qwen.prompt(sample).ids) :].tolist()
    end = next(step for step, token in enumerate(tokens) if step > 2 and token not in tokens[:step])
    monkeypatch.setattr(random_qwen.hf.generation_config, "eos_token_id", tokens[end])
    monkeypatch.setattr(native, "BLOCK_STEPS", end + 2)
    plain = mp.trace(random_qwen, [sample], tmp_path / "plain", capture="full", max_new_tokens=12)["a"]
    late, passes = generation.DeferredStopCheck, []
    monkeypatch.setattr(late, "is_supported", staticmethod(lambda *_, **__: True))
    monkeypatch.setattr(
        torch, "Event", lambda **_: SimpleNamespace(record=lambda: passes.append(1), synchronize=int)
    )
    trace = mp.trace(random_qwen, [sample], tmp_path / "late", capture="full", max_new_tokens=12)["a"]
    assert len(passes) > trace.steps.sizes["step"] == end + 1, "a pass more than steps"
    for name in plain.captured:
        np.testing.assert_array_equal(trace.array(name).values, plain.array(name).values, err_msg=name)
