"""Patching and knockout against plain torch hooks and an eager copy of the model with hand-written masks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.slow import first_fast
from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import TINY_TILES
from PIL import Image

import mmprobe as mp
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model, attention, hooks
from mmprobe.models.families import find_family
from mmprobe.probes import attention_knockout, attention_knockout_run, patch_components
from mmprobe.probes.answers import read_answer
from mmprobe.samples import Sample

BUILDERS: dict[str, Callable] = TINY_PATCHES | TINY_TILES
QUESTION = "Compare the two pictures."
EVERYTHING = ("template", "system", "visual", "user")
STEPS = 5


def family_model(name: str) -> Model:
    hf, processor = BUILDERS[name]()
    return Model(name, name, None, hf.eval(), processor, find_family(hf.config))


@pytest.fixture(scope="module")
def sample(image_paths) -> Sample:
    return Sample(id="a", images=image_paths[1:], question=QUESTION, system="Be brief.")


@pytest.fixture(scope="module")
def source(image_paths, tmp_path_factory) -> Sample:
    """Return a sample with other images of the same size and the same text."""
    folder, images = tmp_path_factory.mktemp("other"), []
    for path in image_paths[1:]:
        with Image.open(path) as image:
            noise = np.random.default_rng(9).integers(0, 255, (image.height, image.width, 3), np.uint8)
        images.append(folder / path.name)
        Image.fromarray(noise).save(images[-1])
    return Sample(id="b", images=images, question=QUESTION, system="Be brief.")


def manual_logprobs(hf: Any, model: Model, sample: Sample, ids: torch.Tensor) -> np.ndarray:
    """Return log-probabilities of the answer's tokens, with hand-built inputs (Qwen)."""
    inputs = model.prepare(sample)
    whole = torch.cat([inputs["input_ids"], ids[None]], 1)
    types = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(ids)))
    changed = {"input_ids": whole, "attention_mask": torch.ones_like(whole), "mm_token_type_ids": types}
    with torch.no_grad():
        logits = hf(**inputs | changed).logits[0]
    first = whole.shape[1] - len(ids)
    logprobs = logits.log_softmax(-1)[torch.arange(first - 1, whole.shape[1] - 1), ids]
    return logprobs.numpy()


@pytest.mark.parametrize("name", ["qwen3_vl", "llava", "llava_next", "gemma3", "paligemma", "mllama"])
def test_teacher_forcing_gives_the_generated_log_probabilities(name, sample):
    model = family_model(name)
    out = model.hf.generate(
        **model.prepare(sample), max_new_tokens=STEPS, do_sample=False,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    ids = out.sequences[0, -STEPS:]
    expected = torch.stack(out.logits, 1)[0].log_softmax(-1).gather(1, ids[:, None])[:, 0]
    reading = read_answer(model, sample, max_new_tokens=STEPS)
    assert reading.row.ids.tolist() == ids.tolist()
    np.testing.assert_allclose(reading.logprobs()[0], expected, atol=1e-5)


def test_answers_as_text_and_as_ids(random_qwen, sample):
    ids = random_qwen.tokenizer("Yes, they are.", add_special_tokens=False)["input_ids"]
    as_text, as_ids = (
        read_answer(random_qwen, sample, "Yes, they are."),
        read_answer(random_qwen, sample, ids),
    )
    assert as_text.row.ids.tolist() == ids
    expected = manual_logprobs(random_qwen.hf, random_qwen, sample, torch.tensor(ids))
    np.testing.assert_allclose(as_text.logprobs()[0], expected, atol=1e-5)
    np.testing.assert_array_equal(as_text.logprobs()[0], as_ids.logprobs()[0])
    with pytest.raises(InputError, match="answer is empty"):
        read_answer(random_qwen, sample, "")


@pytest.mark.parametrize("name", ["random_qwen", "tiny_spd"])
def test_patching_all_inputs_of_the_first_layer_gives_the_other_prompt(name, sample, source, request):
    model = request.getfixturevalue(name)
    ds = patch_components(
        model, sample, source, "residual", tokens=["visual"], layers=[0], answer="The first one."
    )
    ids = torch.tensor(model.tokenizer("The first one.", add_special_tokens=False)["input_ids"])
    own, other = (manual_logprobs(model.hf, model, each, ids) for each in (sample, source))
    assert np.abs(own - other).max() > 1e-3
    np.testing.assert_allclose(ds.effect_by_step.sel(layer=0, tokens="visual"), own - other, atol=1e-4)
    np.testing.assert_allclose(ds.effect, ds.effect_by_step.sum("step"), atol=1e-4)


@pytest.mark.parametrize(
    ("stream", "layer"), [("residual", 1), ("residual", 2), ("resid_post", 0), ("resid_post", 1)]
)
def test_patching_equals_plain_hooks(random_qwen, sample, source, stream, layer):
    ds = patch_components(
        random_qwen, sample, source, stream, tokens=["visual"], layers=[layer], max_new_tokens=STEPS
    )
    ids = read_answer(random_qwen, sample, max_new_tokens=STEPS).row.ids
    hf = copy.deepcopy(random_qwen.hf)
    visual = torch.from_numpy(random_qwen.prompt(sample).visual_positions)
    with torch.no_grad():
        states = hf(**random_qwen.prepare(source), output_hidden_states=True).hidden_states
    source_rows = states[layer + (stream == "resid_post")][:, visual]
    patched = hf.model.language_model.layers[layer + (stream == "resid_post")]

    def put(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        changed = (args[0] if args else options["hidden_states"]).clone()
        changed[:, visual] = source_rows
        return ((changed, *args[1:]), options) if args else (args, options | {"hidden_states": changed})

    patched.register_forward_pre_hook(put, with_kwargs=True)
    expected = manual_logprobs(hf, random_qwen, sample, ids)
    assert np.abs(ds.effect_by_step).max() > 1e-3
    own = manual_logprobs(random_qwen.hf, random_qwen, sample, ids)
    np.testing.assert_allclose(own - ds.effect_by_step[0, 0], expected, atol=1e-5)


def eager_knockout_logprobs(
    model: Model, sample: Sample, ids: torch.Tensor, group: str, layers: list[int]
) -> np.ndarray:
    """Return log-probabilities from an eager copy whose masks block the group's keys for the answer."""
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    prompt = model.prompt(sample)
    length, first = len(prompt.ids) + len(ids), len(prompt.ids) - 1
    mask = torch.zeros(length, length)
    for query in range(length):
        for key in range(length):
            in_group = key <= first and prompt.group[key] == Group[group.upper()]
            if key > query or (in_group and query >= first and key != query):
                mask[query, key] = -torch.inf
    for layer in layers:
        hf.model.language_model.layers[layer].self_attn.register_forward_pre_hook(
            lambda module, args, options: (args, options | {"attention_mask": mask[None, None]}),
            with_kwargs=True,
        )
    return manual_logprobs(hf, model, sample, ids)


@pytest.mark.parametrize("group", first_fast(EVERYTHING))
def test_knockout_equals_eager_attention_with_a_mask(random_qwen, sample, group):
    reading = read_answer(random_qwen, sample, max_new_tokens=STEPS)
    for window, of_layer in ((1, {0: [0], 1: [1], 2: [2]}), (2, {0: [0, 1], 1: [1, 2], 2: [2]})):
        ds = attention_knockout(random_qwen, sample, group, window=window, max_new_tokens=STEPS)
        assert ds.layer.values.tolist() == [0, 1, 2]
        for layer, layers in of_layer.items():
            expected = eager_knockout_logprobs(random_qwen, sample, reading.row.ids, group, layers)
            np.testing.assert_allclose(ds.change_by_step.sel(layer=layer) + ds.logprob, expected, atol=2e-5)
    wide = attention_knockout(random_qwen, sample, group, [1], window=3, max_new_tokens=STEPS)
    expected = eager_knockout_logprobs(random_qwen, sample, reading.row.ids, group, [0, 1, 2])
    np.testing.assert_allclose(wide.change_by_step[0] + wide.logprob, expected, atol=2e-5)
    assert np.abs(wide.change) > 1e-3


def test_layers_may_be_numpy_values(random_qwen, sample):
    ds = attention_knockout(random_qwen, sample, layers=np.array([1, 0]), max_new_tokens=2)
    assert ds.layer.values.tolist() == [0, 1]


def test_knockout_in_sliding_window_layers_is_finite(sample):
    """The layers see 16 tokens, and a group may contain all of them."""
    ds = attention_knockout(family_model("gemma3"), sample, "user", max_new_tokens=STEPS)
    assert np.isfinite(ds.change_by_step).all()


def test_the_model_is_restored(random_qwen, sample, source):
    hf = random_qwen.hf
    config, layers = hf.config.get_text_config(), hf.model.language_model.layers

    def state() -> tuple[Any, ...]:
        patched = ["forward" in vars(module) for module in hf.modules()]
        return config._attn_implementation, dict(attention._blocked_keys), patched, answer()

    def answer() -> list[int]:
        return hf.generate(**random_qwen.prepare(sample), max_new_tokens=6, do_sample=False)[0].tolist()

    before = state()
    attention_knockout(random_qwen, sample, max_new_tokens=3)
    patch_components(random_qwen, sample, source, "residual", max_new_tokens=3)
    assert state() == before

    def fail(values: torch.Tensor) -> torch.Tensor:
        raise KeyError("inside")

    length = len(random_qwen.prompt(sample).ids)
    cut = torch.zeros(length, length, dtype=torch.bool)
    for listener in ({"inputs": fail}, {"outputs": fail}):
        with (
            pytest.raises(KeyError, match="inside"),
            attention.block_attention([config], {layers[0].self_attn: cut}),
            hooks.replace(layers[1], **listener),
        ):
            assert config._attn_implementation == attention.KERNEL
            hf(**random_qwen.prepare(sample))
        assert state() == before


@pytest.mark.parametrize("probe", ["attribute", "attention_knockout", "patch_components"])
def test_half_precision_does_not_round_log_probabilities(probe, random_qwen, sample, source):
    """Results equal those of a model with a single-precision unembedding."""
    half, fine = (replace(random_qwen, hf=copy.deepcopy(random_qwen.hf).bfloat16()) for _ in range(2))
    head = fine.hf.lm_head
    head.weight = torch.nn.Parameter(head.weight.float())
    head.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    vars(fine)["has_plain_logits"] = True  # the check needs weights and states of the same precision
    more = (
        {"corrupt": source} if probe == "patch_components" else {"steps": [0]} if probe == "attribute" else {}
    )
    half_precision, expected = (
        getattr(mp.probes, probe)(model, sample, answer="The first one.", **more) for model in (half, fine)
    )
    xr.testing.assert_allclose(half_precision, expected, atol=1e-5)
    assert not half.hf.lm_head._forward_hooks and half.hf.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.slow
def test_a_run_and_its_samples_agree(tiny_spd, tmp_path, image_paths):
    samples = [
        Sample(
            id=f"s{n}", images=[image_paths[0], image_paths[n % 3]], question=QUESTION, faithful=n % 2 == 0
        )
        for n in range(4)
    ]
    samples.append(Sample(id="blind", question="Is there a star?"))
    run = mp.trace(tiny_spd, samples, tmp_path / "run", max_new_tokens=4)
    ds = attention_knockout_run(tiny_spd, run, layers=[4, -1], minimum=2)
    again = attention_knockout_run(tiny_spd, samples, layers=[4, -1], max_new_tokens=4, minimum=2)
    np.testing.assert_allclose(ds.change_per_token, again.change_per_token)
    assert ds.layer.values.tolist() == [4, 7]
    assert ds.attrs["without_group"] == "blind" and ds.attrs["n_without_group"] == 1
    assert ds.n_label.values.tolist() == [4, 2, 2] and "note" not in ds.attrs
    by_sample = {s.id: attention_knockout(tiny_spd, s, layers=[4, 7], max_new_tokens=4) for s in samples[:4]}
    for name, of_sample in by_sample.items():
        steps = of_sample.sizes["step"]
        np.testing.assert_allclose(ds.change_per_token.sel(sample=name), of_sample.change / steps, rtol=1e-6)
    mean = np.mean([by_sample[name].change_by_step.mean("step") for name in ("s0", "s2")], 0)
    np.testing.assert_allclose(ds.change_by_label.sel(label="faithful"), mean, rtol=1e-6)
    other = replace(tiny_spd, hf=copy.deepcopy(tiny_spd.hf))
    other.hf.lm_head.weight = torch.nn.Parameter(other.hf.lm_head.weight.roll(1, 0))
    with pytest.raises(InputError, match="was not made by"):
        attention_knockout_run(other, run, layers=[0])


def test_errors_are_one_line(random_qwen, sample, source, image_paths):
    blind = Sample(id="blind", question=QUESTION)
    longer = sample.model_copy(update={"system": "Be brief, and do not guess."})
    turned = sample.model_copy(update={"images": sample.images[::-1]})
    for call, error, words in [
        (lambda: attention_knockout(random_qwen, sample, "pictures"), InputError, "choose from template"),
        (lambda: attention_knockout(random_qwen, sample, layers=[3]), InputError, "layer 3: the model has"),
        (lambda: attention_knockout(random_qwen, sample, window=4), InputError, "window 4"),
        (lambda: attention_knockout(random_qwen, blind), NotApplicable, "no visual tokens"),
        (lambda: attention_knockout_run(random_qwen, []), InputError, "has no samples"),
        (lambda: attention_knockout_run(random_qwen, [blind]), NotApplicable, "no sample has"),
        (lambda: patch_components(random_qwen, sample, source, "mid"), InputError, "kind 'mid': choose"),
        (lambda: patch_components(random_qwen, sample, longer), InputError, "texts of the same length"),
        (lambda: patch_components(random_qwen, sample, turned), InputError, "other grids"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)
    crossing = family_model("mllama")
    for call in (
        lambda: attention_knockout(crossing, sample),
        lambda: attention_knockout_run(crossing, [sample]),
        lambda: patch_components(crossing, sample, source, "residual", tokens=["visual"]),
    ):
        with pytest.raises(NotApplicable, match="cross-attention"):
            call()
