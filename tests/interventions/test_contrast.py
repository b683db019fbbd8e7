"""The second path reads as `generate` does, whatever it reads; equations on hand-made logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.answering import (
    FAMILIES,
    STEPS,
    attending,
    plain_tokens,
    read_whole,
    ready,
    run,
    sample_of,
    tiny,
)
from PIL import Image

from mmprobe.interventions import load_method
from mmprobe.interventions.base import MethodContext
from mmprobe.interventions.contrast import mask_implausible
from mmprobe.interventions.contrast_path import ContrastPath
from mmprobe.interventions.methods.icd import insert_instruction
from mmprobe.interventions.methods.pai import remove_images
from mmprobe.interventions.methods.vcd import add_noise, signal_power
from mmprobe.interventions.visual import find_pixels, with_images
from mmprobe.models import Batch
from mmprobe.models.prompt import build_batch

OTHERS = ["gemma3", "glm4v", "mllama", "llava_next"]


@pytest.fixture(scope="module", params=FAMILIES + OTHERS)
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def single(model, image_paths):
    return ready(model, sample_of(image_paths[:2]))


def test_it_reads_what_generate_reads(model, single):
    """On the answer's own prompt its logits are those of generate, digit by digit."""
    chats, batch = single
    out = model.hf.generate(
        **batch.inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_logits=True,
        pad_token_id=0,
    )  # fmt: skip
    generated = out.sequences[:, batch.inputs["input_ids"].shape[1] :]
    path = ContrastPath(model, batch.inputs)
    with torch.no_grad():
        found = [path.read_answer(generated[:, :step]) for step in range(STEPS)]
    for step, logits in enumerate(out.logits):
        torch.testing.assert_close(found[step], logits.float(), rtol=0, atol=0)


def test_several_tokens_at_once_are_read_as_one_by_one(model, single):
    chats, batch = single
    generated = plain_tokens(model, batch)
    with torch.no_grad():
        wanted, path = ContrastPath(model, batch.inputs), ContrastPath(model, batch.inputs)
        by_one = [wanted.read_answer(generated[:, :step]) for step in range(STEPS)][-1]
        path.read_answer(generated[:, :1])
        torch.testing.assert_close(path.read_answer(generated[:, : STEPS - 1]), by_one, rtol=1e-4, atol=1e-4)
        late = ContrastPath(model, batch.inputs)
        torch.testing.assert_close(late.read_answer(generated[:, : STEPS - 1]), by_one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vcd", "icd", "pai"])
def test_steps_equal_whole_passes_over_the_other_prompt(model, single, name):
    """Logits of every step, against passes without any cache over the answer's prompt and the other one."""
    if name == "pai" and model.has_cross_attention:
        pytest.skip("no visual tokens in the prompt")
    if model.family.name == "mllama":
        pytest.skip("the slow reference does not lengthen the inputs of this family")
    chats, batch = single
    method = load_method(name, **({"alpha": 0, "gamma": 1.6} if name == "pai" else {"alpha": 0.7}), beta=0)
    tokens, logits, _ = run(model, [method], chats, batch)
    others = {
        "vcd": lambda: add_noise(MethodContext(model, chats, batch), 500),
        "icd": lambda: build_batch(model, [insert_instruction(chats[0], method.instruction)]).inputs,
        "pai": lambda: build_batch(model, [remove_images(chats[0])]).inputs,
    }
    main = read_whole(model, batch.inputs, tokens)[:, -STEPS - 1 : -1]
    other = read_whole(model, others[name](), tokens)[:, -STEPS - 1 : -1]
    if name == "pai":
        main, other = main.log_softmax(-1), other.log_softmax(-1)
        wanted = 1.6 * (main - other) + other
    else:
        wanted = 1.7 * main - 0.7 * other
    torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=2e-3)
    assert torch.equal(tokens, logits.argmax(-1))
    assert (wanted - main).abs().max() > 0.01  # the other prompt does matter


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_next", "internvl"])
def test_padded_rows_answer_as_alone(family, image_paths):
    model = tiny(family)
    samples = [
        sample_of(image_paths[:2], "What is this?", "a"),
        sample_of(image_paths[1:], "Do the two pictures show the same, or is there any difference?", "b"),
    ]
    for name in ("vcd", "icd", "pai", "agla", "sage"):
        method = load_method(name)
        together, _, report = run(model, [method], *ready(model, *samples))
        for row, sample in enumerate(samples):
            alone, _, report_alone = run(model, [method], *ready(model, sample))
            assert torch.equal(together[row], alone[0]), name
            for key, value in report_alone(0)[name].items():
                assert report(row)[name][key] == (
                    pytest.approx(value, rel=1e-3) if isinstance(value, list) else value
                )


def test_plausible_by_hand():
    """log(0.5) + 2 is 1.307: the second token stays, the third goes."""
    main, combined = torch.tensor([[2.0, 1.4, 1.2]]), torch.tensor([[0.1, 0.2, 9.0]])
    assert mask_implausible(combined, main, 0.5).tolist() == [
        [pytest.approx(0.1), pytest.approx(0.2), -math.inf]
    ]
    assert torch.equal(mask_implausible(combined, main, 0), combined)


def test_vcd_by_hand():
    found = load_method("vcd", alpha=1, beta=0.1).combine(
        torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[2.5, 0.0, 0.0]])
    )
    assert found.tolist() == [[3.5, 4.0, -math.inf]]  # 2 z - z'; log(0.1) + 3 = 0.697


def test_icd_by_hand():
    found = load_method("icd", alpha=0.5, beta=0).combine(
        torch.tensor([[3.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    )
    assert found.tolist() == [[4.0, 1.0]]


def test_agla_by_hand():
    found = load_method("agla", alpha=2, beta=0.5).combine(
        torch.tensor([[3.0, 2.5, 2.0]]), torch.tensor([[1.0, 1.5, 9.0]])
    )
    assert found.tolist() == [[5.0, 5.5, -math.inf]]  # log(0.5) + 3 = 2.307


def test_pai_by_hand():
    """s = log(3/4, 1/4), u = log(1/2, 1/2), gamma 2: 2 s - u = log(9/8, 1/8); log(0.5 * 3/4) is above log(1/4)."""
    main, second = torch.log(torch.tensor([[3.0, 1.0]])), torch.log(torch.tensor([[5.0, 5.0]]))
    free = load_method("pai", gamma=2, beta=0).combine(main, second)
    np.testing.assert_allclose(free.exp().numpy(), [[9 / 8, 1 / 8]], rtol=1e-6)
    assert load_method("pai", gamma=2, beta=0.5).combine(main, second)[0, 1] == -math.inf


def test_the_noise_is_that_of_the_diffusion():
    """Multiplied out one by one, as the released code tabulates it; and on pixels, its spread is what it should be."""
    kept = 1.0
    for index in range(501):
        kept *= 1 - (1 / (1 + math.exp(6 - 12 * index / 999)) * (0.5e-2 - 1e-5) + 1e-5)
    assert signal_power(500) == pytest.approx(kept, rel=1e-6)
    model = tiny("llava")
    batch = Batch({"pixel_values": torch.full((2, 3, 64, 64), 2.0)}, [])
    found = add_noise(MethodContext(model, [None], batch), 500)["pixel_values"]
    assert found.mean().item() == pytest.approx(2 * kept**0.5, abs=0.02)
    assert found.std().item() == pytest.approx((1 - kept) ** 0.5, abs=0.02)
    assert torch.equal(found, add_noise(MethodContext(model, [None], batch), 500)["pixel_values"])
    assert not torch.equal(found, add_noise(MethodContext(model, [None], batch, seed=1), 500)["pixel_values"])


def test_pictures_in_several_sizes_are_all_noisy():
    low, high = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 64, 64)
    batch = Batch({"pixel_values": low, "high_res_pixel_values": high, "attention_mask": low}, [])
    found = add_noise(MethodContext(tiny("llava"), [None], batch), 500)
    spread = (1 - signal_power(500)) ** 0.5
    assert all(found[name].std().item() == pytest.approx(spread, abs=0.05) for name in list(found)[:2])
    assert not torch.equal(
        found["high_res_pixel_values"].flatten()[: low.numel()], found["pixel_values"].flatten()
    )
    assert found["attention_mask"] is low


def test_both_frames_of_a_picture_get_the_same_noise(image_paths):
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:1]))
    pixels = batch.inputs["pixel_values"]
    frames = pixels.reshape(len(pixels), 3, 2, 64)
    assert torch.equal(frames[:, :, 0], frames[:, :, 1])  # channels, frames, pixels
    changed = add_noise(MethodContext(model, chats, batch), 500)["pixel_values"].reshape(
        len(pixels), 3, 2, 64
    )
    assert torch.equal(changed[:, :, 0], changed[:, :, 1])
    assert not torch.equal(changed, frames)


def test_the_positions_of_the_answer_are_left_alone(image_paths):
    """A second path without pictures counts positions otherwise; the model's own note of them stays."""
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:2]))
    plain_tokens(model, batch)
    before = model.hf.model.rope_deltas.clone()
    assert before.abs().sum() > 0
    with torch.no_grad():
        ContrastPath(model, build_batch(model, [remove_images(chats[0])]).inputs).read_answer(
            torch.zeros(1, 0, dtype=torch.long)
        )
    assert torch.equal(model.hf.model.rope_deltas, before)


def test_agla_leaves_the_attended_patches(image_paths, monkeypatch):
    """The second path's picture is the original where the last prompt query's mean attention is in the top share."""
    import mmprobe.interventions.methods.agla as agla

    model = tiny("llava")
    chats, batch = ready(model, sample_of(image_paths[:1]))
    made = []
    monkeypatch.setattr(
        agla, "build_batch", lambda model, chats: made.extend(chats) or build_batch(model, chats)
    )
    _, _, report = run(model, [load_method("agla", keep=0.25)], chats, batch, steps=2)
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
    wanted = set(attention.topk(4).indices.tolist())
    original, masked = np.asarray(chats[0].images[0]), np.asarray(made[0].images[0])
    for cell in range(16):
        row, column = divmod(cell, 4)
        block = slice(28 * row, 28 * row + 28), slice(28 * column, 28 * column + 28)
        assert np.array_equal(masked[block], original[block] if cell in wanted else 0 * original[block]), cell
    assert report(0)["agla"]["kept"] == 4
    assert Image.fromarray(masked).size == (112, 112)


@pytest.mark.parametrize("family", FAMILIES)
def test_pai_equals_whole_matrices_of_changed_scores(family, image_paths):
    """Scores e + 0.8 |e| of visual keys at each step's query from layer 1 on, before a whole softmax, no cache."""
    model = tiny(family)
    chats, batch = ready(model, sample_of(image_paths[:2]))
    method = load_method("pai", alpha=0.8, gamma=1.5, beta=0, first_layer=1)
    tokens, logits, _ = run(model, [method], chats, batch)
    length = batch.inputs["input_ids"].shape[1]
    visual = torch.from_numpy(batch.prompts[0].visual_positions)

    def attend(layer, query, key, value, mask, scale):
        scores = query @ key.transpose(2, 3) * scale
        if layer >= 1:
            rows = scores[:, :, length - 1 :]
            rows[..., visual] += 0.8 * rows[..., visual].abs()
        return (scores + mask[..., : key.shape[2]]).softmax(-1) @ value

    with attending(model, attend):
        main = read_whole(model, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    text = build_batch(model, [remove_images(chats[0])]).inputs
    other = read_whole(model, text, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    torch.testing.assert_close(logits, 1.5 * (main - other) + other, rtol=1e-3, atol=2e-3)
    plain = read_whole(model, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    assert (main - plain).abs().max() > 0.02  # the changed scores do matter


@pytest.mark.parametrize("family", FAMILIES)
def test_agla_equals_whole_passes_over_what_is_relevant(family, image_paths):
    """The relevant patches found by whole matrices of weights, the second path read without a cache."""
    model = tiny(family)
    chats, batch = ready(model, sample_of(image_paths[:2]))
    method = load_method("agla", alpha=1.3, beta=0, keep=0.4)
    tokens, logits, _ = run(model, [method], chats, batch)
    rows = []

    def attend(layer, query, key, value, mask, scale):
        weights = (query @ key.transpose(2, 3) * scale + mask[..., : key.shape[2]]).softmax(-1)
        rows.append(weights[0, :, -1])
        return weights @ value

    with attending(model, attend):
        read_whole(model, batch.inputs, tokens[:, :0])
    prompt = batch.prompts[0]
    attention = torch.stack(rows).mean((0, 1))[torch.from_numpy(prompt.visual_positions)]
    relevant = np.zeros(len(attention), bool)
    relevant[attention.topk(round(0.4 * len(attention))).indices] = True
    masked = [
        Image.fromarray(np.asarray(picture) * shown[..., None].astype(np.uint8))
        for picture, shown in zip(chats[0].images, find_pixels(prompt, relevant), strict=True)
    ]
    other = read_whole(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)[
        :, -STEPS - 1 : -1
    ]
    main = read_whole(model, batch.inputs, tokens)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, main + 1.3 * other, rtol=1e-3, atol=3e-3)
