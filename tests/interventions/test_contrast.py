"""The contrast path against `generate`, methods against slow references, and equations by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.answers import (
    FAMILIES,
    STEPS,
    compute_logits,
    generate_plain,
    make_sample,
    prepare,
    replace_attention,
    run_methods,
)
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.interventions import load_method
from mmprobe.interventions.base import MethodContext
from mmprobe.interventions.contrast import ContrastPath, mask_implausible, remove_images
from mmprobe.interventions.methods.icd import insert_instruction
from mmprobe.interventions.methods.vcd import add_noise, signal_power
from mmprobe.interventions.visual import find_pixels, with_images
from mmprobe.models import Batch
from mmprobe.models.prompt import build_batch

OTHERS = ["gemma3", "glm4v", "mllama", "llava_next"]


@pytest.fixture(scope="module", params=first_fast(FAMILIES + OTHERS))
def model(request):
    return load_tiny_model(request.param)


@pytest.fixture(scope="module")
def single(model, image_paths):
    return prepare(model, make_sample(image_paths[:2]))


def test_on_the_same_prompt_the_logits_are_those_of_generate(model, single):
    """They are equal digit by digit."""
    chats, batch = single
    out = model.hf.generate(
        **batch.inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_logits=True,
        pad_token_id=0,
    )  # fmt: skip
    generated = out.sequences[:, batch.inputs["input_ids"].shape[1] :]
    path = ContrastPath(model, batch.inputs)
    with torch.no_grad():
        logits = [path.read_answer(generated[:, :step]) for step in range(STEPS)]
    for step, expected in enumerate(out.logits):
        torch.testing.assert_close(logits[step], expected.float(), rtol=0, atol=0)


def test_tokens_may_be_read_one_by_one_or_together(model, single):
    chats, batch = single
    generated = generate_plain(model, batch)
    with torch.no_grad():
        one_by_one = ContrastPath(model, batch.inputs)
        expected = [one_by_one.read_answer(generated[:, :step]) for step in range(STEPS)][-1]
        path = ContrastPath(model, batch.inputs)
        path.read_answer(generated[:, :1])
        torch.testing.assert_close(
            path.read_answer(generated[:, : STEPS - 1]), expected, rtol=1e-4, atol=1e-4
        )
        late_path = ContrastPath(model, batch.inputs)
        torch.testing.assert_close(
            late_path.read_answer(generated[:, : STEPS - 1]), expected, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", ["vcd", "icd", "pai"])
def test_logits_equal_passes_without_a_cache(model, single, name):
    """The logits of every step, against passes over the answer's prompt and the contrast prompt."""
    if name == "pai" and model.has_cross_attention:
        pytest.skip("no visual tokens in the prompt")
    if model.family.name == "mllama":
        pytest.skip("compute_logits cannot lengthen the inputs of this family")
    chats, batch = single
    method = load_method(name, **({"alpha": 0, "gamma": 1.6} if name == "pai" else {"alpha": 0.7}), beta=0)
    tokens, logits, _ = run_methods(model, [method], chats, batch)
    contrast_inputs = {
        "vcd": lambda: add_noise(MethodContext(model, chats, batch), 500),
        "icd": lambda: build_batch(model, [insert_instruction(chats[0], method.instruction)]).inputs,
        "pai": lambda: build_batch(model, [remove_images(chats[0])]).inputs,
    }
    main = compute_logits(model, batch.inputs, tokens)[:, -STEPS - 1 : -1]
    other = compute_logits(model, contrast_inputs[name](), tokens)[:, -STEPS - 1 : -1]
    if name == "pai":
        main, other = main.log_softmax(-1), other.log_softmax(-1)
        expected = 1.6 * (main - other) + other
    else:
        expected = 1.7 * main - 0.7 * other
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=2e-3)
    assert torch.equal(tokens, logits.argmax(-1))
    assert (expected - main).abs().max() > 0.01, "the test is void: the contrast prompt changes nothing"


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "llava_next", "internvl"]))
def test_padded_rows_answer_as_alone(family, image_paths):
    model = load_tiny_model(family)
    samples = [
        make_sample(image_paths[:2], "What is this?", "a"),
        make_sample(image_paths[1:], "Do the two pictures show the same, or is there any difference?", "b"),
    ]
    for name in ("vcd", "icd", "pai", "agla", "sage"):
        method = load_method(name)
        together, _, report = run_methods(model, [method], *prepare(model, *samples))
        for row, sample in enumerate(samples):
            alone, _, report_alone = run_methods(model, [method], *prepare(model, sample))
            assert torch.equal(together[row], alone[0]), name
            for key, value in report_alone(0)[name].items():
                assert flatten(report(row)[name][key]) == pytest.approx(flatten(value), rel=1e-3), key


def flatten(value: Any) -> list[Any]:
    """Return the numbers of nested lists and dictionaries in one list."""
    items = list(value.items()) if isinstance(value, dict) else value
    if isinstance(items, list | tuple):
        return [number for item in items for number in flatten(item)]
    return [items]


def test_mask_implausible_by_hand():
    """log(0.5) + 2 is 1.307, so the second token stays and the third goes."""
    main, combined = torch.tensor([[2.0, 1.4, 1.2]]), torch.tensor([[0.1, 0.2, 9.0]])
    assert mask_implausible(combined, main, 0.5).tolist() == [
        [pytest.approx(0.1), pytest.approx(0.2), -math.inf]
    ]
    assert torch.equal(mask_implausible(combined, main, 0), combined)


def test_vcd_by_hand():
    logits = load_method("vcd", alpha=1, beta=0.1).combine(
        torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[2.5, 0.0, 0.0]])
    )
    assert logits.tolist() == [[3.5, 4.0, -math.inf]]  # 2 z - z'; log(0.1) + 3 = 0.697


def test_icd_by_hand():
    logits = load_method("icd", alpha=0.5, beta=0).combine(
        torch.tensor([[3.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    )
    assert logits.tolist() == [[4.0, 1.0]]


def test_agla_by_hand():
    logits = load_method("agla", alpha=2, beta=0.5).combine(
        torch.tensor([[3.0, 2.5, 2.0]]), torch.tensor([[1.0, 1.5, 9.0]])
    )
    assert logits.tolist() == [[5.0, 5.5, -math.inf]]  # log(0.5) + 3 = 2.307


def test_pai_by_hand():
    """s = log(3/4, 1/4) and u = log(1/2, 1/2), so 2 s - u = log(9/8, 1/8). log(0.5 * 3/4) is above log(1/4)."""
    main, second = torch.log(torch.tensor([[3.0, 1.0]])), torch.log(torch.tensor([[5.0, 5.0]]))
    unmasked = load_method("pai", gamma=2, beta=0).combine(main, second)
    np.testing.assert_allclose(unmasked.exp().numpy(), [[9 / 8, 1 / 8]], rtol=1e-6)
    assert load_method("pai", gamma=2, beta=0.5).combine(main, second)[0, 1] == -math.inf


def test_m3id_by_hand():
    """s = log(3/4, 1/4) and u = log(1/2, 1/2); after ten tokens with lambda = 0.1 the weight is e - 1."""
    main, second = torch.log(torch.tensor([[3.0, 1.0]])), torch.log(torch.tensor([[5.0, 5.0]]))
    said = load_method("m3id", decay=0.1, beta=0).combine(main, second, 10)
    np.testing.assert_allclose(
        said.exp().numpy(), [[0.75 * 1.5 ** (math.e - 1), 0.25 * 0.5 ** (math.e - 1)]], rtol=1e-6
    )
    np.testing.assert_allclose(
        load_method("m3id", beta=0).combine(main, second, 0).exp().numpy(), [[0.75, 0.25]], rtol=1e-6
    )
    certain = load_method("m3id", decay=0.1, certain=0.7).combine(main, second, 10)
    np.testing.assert_allclose(certain.exp().numpy(), [[0.75, 0.25]], rtol=1e-6)
    assert load_method("m3id", decay=0.1, certain=0.8, beta=0.5).combine(main, second, 10)[0, 1] == -math.inf


def test_the_noise_of_the_diffusion():
    """The power as the released code tabulates it, factor by factor; and mean and spread of noisy pixels."""
    power = 1.0
    for index in range(501):
        power *= 1 - (1 / (1 + math.exp(6 - 12 * index / 999)) * (0.5e-2 - 1e-5) + 1e-5)
    assert signal_power(500) == pytest.approx(power, rel=1e-6)
    model = load_tiny_model("llava")
    batch = Batch({"pixel_values": torch.full((2, 3, 64, 64), 2.0)}, [])
    pixels = add_noise(MethodContext(model, [None], batch), 500)["pixel_values"]
    assert pixels.mean().item() == pytest.approx(2 * power**0.5, abs=0.02)
    assert pixels.std().item() == pytest.approx((1 - power) ** 0.5, abs=0.02)
    assert torch.equal(pixels, add_noise(MethodContext(model, [None], batch), 500)["pixel_values"])
    assert not torch.equal(
        pixels, add_noise(MethodContext(model, [None], batch, seed=1), 500)["pixel_values"]
    )


def test_images_get_noise_in_all_their_sizes():
    low, high = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 64, 64)
    batch = Batch({"pixel_values": low, "high_res_pixel_values": high, "attention_mask": low}, [])
    inputs = add_noise(MethodContext(load_tiny_model("llava"), [None], batch), 500)
    spread = (1 - signal_power(500)) ** 0.5
    assert all(inputs[name].std().item() == pytest.approx(spread, abs=0.05) for name in list(inputs)[:2])
    assert not torch.equal(
        inputs["high_res_pixel_values"].flatten()[: low.numel()], inputs["pixel_values"].flatten()
    )
    assert inputs["attention_mask"] is low


def test_both_frames_of_an_image_get_the_same_noise(image_paths):
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:1]))
    pixels = batch.inputs["pixel_values"]
    frames = pixels.reshape(len(pixels), 3, 2, 64)
    assert torch.equal(frames[:, :, 0], frames[:, :, 1])  # channels, frames, pixels
    changed = add_noise(MethodContext(model, chats, batch), 500)["pixel_values"].reshape(
        len(pixels), 3, 2, 64
    )
    assert torch.equal(changed[:, :, 0], changed[:, :, 1])
    assert not torch.equal(changed, frames)


def test_a_contrast_path_keeps_the_rope_deltas_of_the_answer(image_paths):
    """A contrast path without images has other rope deltas; the model must keep those of the answer."""
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    generate_plain(model, batch)
    before = model.hf.model.rope_deltas.clone()
    assert before.abs().sum() > 0
    with torch.no_grad():
        ContrastPath(model, build_batch(model, [remove_images(chats[0])]).inputs).read_answer(
            torch.zeros(1, 0, dtype=torch.long)
        )
    assert torch.equal(model.hf.model.rope_deltas, before)


def test_agla_keeps_the_attended_patches(image_paths, monkeypatch):
    """The contrast path's image equals the original on the patches with the largest mean attention."""
    import mmprobe.interventions.methods.agla as agla

    model = load_tiny_model("llava")
    chats, batch = prepare(model, make_sample(image_paths[:1]))
    contrast_chats = []
    monkeypatch.setattr(
        agla, "build_batch", lambda model, chats: contrast_chats.extend(chats) or build_batch(model, chats)
    )
    _, _, report = run_methods(model, [load_method("agla", keep=0.25)], chats, batch, steps=2)
    config = model.hf.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, "eager"
    try:
        with torch.no_grad():
            rows = model.hf(**batch.inputs, output_attentions=True).attentions
    finally:
        config._attn_implementation = before
    attention = torch.stack(rows)[:, 0, :, -1].mean((0, 1))[
        torch.from_numpy(batch.prompts[0].visual_positions)
    ]
    expected = set(attention.topk(4).indices.tolist())
    original, masked = np.asarray(chats[0].images[0]), np.asarray(contrast_chats[0].images[0])
    for cell in range(16):
        row, column = divmod(cell, 4)
        block = slice(28 * row, 28 * row + 28), slice(28 * column, 28 * column + 28)
        assert np.array_equal(masked[block], original[block] if cell in expected else 0 * original[block]), (
            cell
        )
    assert report(0)["agla"]["kept"] == 4
    assert Image.fromarray(masked).size == (112, 112)


@pytest.mark.parametrize("family", first_fast(FAMILIES))
def test_pai_equals_a_reference_with_whole_matrices(family, image_paths):
    """The reference scores visual keys with e + 0.8 |e| for each step's query, from layer 1 on."""
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    method = load_method("pai", alpha=0.8, gamma=1.5, beta=0, first_layer=1)
    tokens, logits, _ = run_methods(model, [method], chats, batch)
    length = batch.inputs["input_ids"].shape[1]
    visual = torch.from_numpy(batch.prompts[0].visual_positions)

    def attend(layer, query, key, value, mask, scale):
        scores = query @ key.transpose(2, 3) * scale
        if layer >= 1:
            rows = scores[:, :, length - 1 :]
            rows[..., visual] += 0.8 * rows[..., visual].abs()
        return (scores + mask[..., : key.shape[2]]).softmax(-1) @ value

    with replace_attention(model, attend):
        main = compute_logits(model, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    text = build_batch(model, [remove_images(chats[0])]).inputs
    other = compute_logits(model, text, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    torch.testing.assert_close(logits, 1.5 * (main - other) + other, rtol=1e-3, atol=2e-3)
    plain = compute_logits(model, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    assert (main - plain).abs().max() > 0.02, "the test is void: the scores change nothing"


@pytest.mark.parametrize("family", first_fast(FAMILIES))
def test_agla_equals_a_reference_without_a_cache(family, image_paths):
    """The reference finds the relevant patches with whole matrices of weights."""
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    method = load_method("agla", alpha=1.3, beta=0, keep=0.4)
    tokens, logits, _ = run_methods(model, [method], chats, batch)
    rows = []

    def attend(layer, query, key, value, mask, scale):
        weights = (query @ key.transpose(2, 3) * scale + mask[..., : key.shape[2]]).softmax(-1)
        rows.append(weights[0, :, -1])
        return weights @ value

    with replace_attention(model, attend):
        compute_logits(model, batch.inputs, tokens[:, :0])
    prompt = batch.prompts[0]
    attention = torch.stack(rows).mean((0, 1))[torch.from_numpy(prompt.visual_positions)]
    relevant = np.zeros(len(attention), bool)
    relevant[attention.topk(round(0.4 * len(attention))).indices] = True
    masked = [
        Image.fromarray(np.asarray(image) * pixels[..., None].astype(np.uint8))
        for image, pixels in zip(chats[0].images, find_pixels(prompt, relevant), strict=True)
    ]
    other = compute_logits(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)[
        :, -STEPS - 1 : -1
    ]
    main = compute_logits(model, batch.inputs, tokens)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, main + 1.3 * other, rtol=1e-3, atol=3e-3)
