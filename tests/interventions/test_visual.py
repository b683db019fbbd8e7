"""Visual tokens among keys and pixels, on cases computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.answers import STEPS, generate_plain, make_sample, prepare, run_methods
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.interventions import load_method
from mmprobe.interventions.methods.attention_prompting import heat_maps
from mmprobe.interventions.methods.zoom_refine import find_crop
from mmprobe.interventions.prompt_method import AttentionRecorder
from mmprobe.interventions.visual import AttentionMap, TokenMask, find_pixels, paint_pixels, select_largest
from mmprobe.models import Prompt
from mmprobe.models.families import View

EMPTY = np.zeros(0, np.int32)


def make_prompt(views: list[View], sources: list[int], sizes: list[tuple[int, int]]) -> Prompt:
    return Prompt(EMPTY, EMPTY, EMPTY, views, sources, sizes)


# an image of 4 x 6 pixels with two views: the whole as 2 x 3 tokens, and its right half as one token;
# and an image of 2 x 2 pixels as one token
TWO_IMAGES = make_prompt(
    [View((2, 3), (0, 0, 6, 4)), View((1, 1), (3, 0, 3, 4)), View((1, 1), (0, 0, 2, 2))],
    [0, 0, 1],
    [(4, 6), (2, 2)],
)


def test_tokens_show_the_pixels_of_their_views():
    first, second = find_pixels(TWO_IMAGES, np.array([0, 1, 0, 1, 0, 0, 0, 1], bool))
    expected = np.zeros((4, 6), bool)
    expected[:2, 2:4] = True
    expected[2:, :2] = True
    assert np.array_equal(first, expected) and second.all()
    first, second = find_pixels(TWO_IMAGES, np.array([0, 0, 0, 0, 0, 0, 1, 0], bool))
    assert np.array_equal(first, np.tile(np.arange(6) >= 3, (4, 1))) and not second.any()


def test_a_view_is_cut_at_the_edges_of_its_image():
    """A square view of a wide image is padded, so its outer rows show nothing."""
    padded = make_prompt([View((3, 3), (0, -3, 9, 9))], [0], [(3, 9)])
    (pixels,) = find_pixels(padded, np.ones(9, bool))
    assert pixels.shape == (3, 9) and pixels.all()
    (pixels,) = find_pixels(padded, np.arange(9) < 3)
    assert not pixels.any()


def test_paint_pixels():
    image = Image.fromarray(np.array([[[0, 0, 0], [10, 20, 30]], [[10, 20, 30], [20, 40, 60]]], np.uint8))
    pixels = np.array([[False, True], [False, False]])
    assert paint_pixels(image, pixels, "mean").getpixel((1, 0)) == (10, 20, 30)
    assert paint_pixels(image, pixels, "black").getpixel((1, 0)) == (0, 0, 0)
    assert paint_pixels(image, pixels, "black").getpixel((1, 1)) == (20, 40, 60)


def test_select_largest():
    values = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert select_largest(values, 0.4).tolist() == [False, False, False, True, True]
    assert select_largest(values, 0).sum() == 1 and select_largest(values, 1).all()
    assert select_largest(values[:0], 0.5).shape == (0,)


def test_a_token_mask_is_aligned_with_the_keys_of_later_steps():
    mask = TokenMask(torch.tensor([[False, True, True, False]]))
    assert mask.align(4, 0).tolist() == [[False, True, True, False]]
    assert mask.align(6, 2).tolist() == [[False, True, True, False, False, False]]
    assert mask.align(4, 2).tolist() == [
        [True, False, False, False]
    ]  # the last four keys of a sliding window


@pytest.mark.parametrize("keys", [6, 4, 1])
def test_an_attention_map_is_the_mean_over_heads_and_layers(keys):
    prompt = SimpleNamespace(visual_positions=np.array([1, 2]), padding=1)
    context = SimpleNamespace(
        batch=SimpleNamespace(prompts=[prompt]),
        prompt_length=4,
        model=SimpleNamespace(device=torch.device("cpu")),
    )
    attention_map = AttentionMap(context)  # two generated tokens, six keys; keys 2 and 3 are visual
    full = torch.arange(1.0, 7)
    attention_map.add_layer(torch.stack([full[-keys:], 3 * full[-keys:]])[None, :, None], 2)
    attention_map.add_layer(torch.stack([full, full])[None, :, None], 2)
    first = {6: [2 * 3, 2 * 4], 4: [2 * 3, 2 * 4], 1: [0, 0]}[keys]
    assert attention_map.select_visual(0).tolist() == [(first[0] + 3) / 2, (first[1] + 4) / 2]


def test_recorded_attention_ends_with_the_answer(image_paths):
    """A row that ends after two steps has the same attention as alone."""
    model = load_tiny_model("qwen2_5_vl")
    samples = [
        make_sample(image_paths[:2]),
        make_sample(image_paths[1:], "Is there a star in one of these two?", "b"),
    ]
    first, second = generate_plain(model, prepare(model, *samples)[1]).tolist()
    assert first[1] != first[0] and first[1] not in second, "the test is void: both end together"
    model.hf.generation_config.eos_token_id = first[1]
    _, logits, report = run_methods(model, [AttentionRecorder()], *prepare(model, *samples))
    assert logits.shape[1] == STEPS
    for row, sample in enumerate(samples):
        _, _, alone = run_methods(model, [AttentionRecorder()], *prepare(model, sample))
        assert report(row)["attention-recorder"]["attention"] == pytest.approx(
            alone(0)["attention-recorder"]["attention"], rel=1e-4
        )


def test_a_sliding_window_past_the_images(image_paths):
    """Gemma 3's layers with a window of 16 lose the visual tokens; the other layers are still biased."""
    model = load_tiny_model("gemma3")
    chats, batch = prepare(model, make_sample(image_paths[:1], "Tell me what this picture shows, and why."))
    for name, parameters in (("sage", {"eta": 2, "k": 0.9, "refresh": 3}), ("pai", {"first_layer": 0})):
        _, logits, _ = run_methods(model, [load_method(name, **parameters)], chats, batch, 8)
        assert not logits.isnan().any() and (logits.amax(-1) > -1e4).all()


def test_heat_is_the_mean_of_views_from_0_to_1():
    prompt = make_prompt([View((1, 2), (0, 0, 4, 2)), View((1, 1), (2, 0, 2, 2))], [0, 0], [(2, 4)])
    (heat,) = heat_maps(prompt, np.array([0.0, 4.0, 0.0]))
    assert heat.shape == (2, 4) and heat.min() == 0 and heat.max() == 1
    assert (heat[:, 0] == 0).all()
    # interpolated values are 0, 1, 3 and 4, and the mean with the second view halves the right ones
    assert heat[0, 3] == pytest.approx(1) and heat[0, 2] == pytest.approx(3 / 4)
    assert not heat_maps(prompt, np.ones(3))[0].any()


def test_heat_of_tiles_narrower_than_a_pixel():
    tiles = [View((2, 2), (0.5 * column, 0.5 * row, 0.5, 0.5)) for row in (0, 1) for column in (0, 1)]
    prompt = make_prompt([*tiles, View((2, 2), (0, 0, 1, 1))], [0] * 5, [(1, 1)])
    assert [heat.shape for heat in heat_maps(prompt, np.arange(20.0))] == [(1, 1)]


def test_the_crop_holds_the_attended_pixels():
    assert find_crop(TWO_IMAGES, np.array([0, 9, 0, 8, 0, 0, 0, 0.0]), 0.25) == (0, (0, 0, 4, 4))
    assert find_crop(TWO_IMAGES, np.array([0, 0, 0, 0, 0, 0, 0, 5.0]), 0.1) == (1, (0, 0, 2, 2))
    padded = make_prompt([View((3, 3), (0, -3, 9, 9))], [0], [(3, 9)])
    assert find_crop(padded, np.array([9.0, 8, 0, 0, 1, 0, 0, 0, 0]), 0.2) == (0, (0, 0, 9, 3))
