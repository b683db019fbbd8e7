"""Patches among keys and pixels, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.answering import STEPS, plain_tokens, ready, run, sample_of, tiny
from PIL import Image

from mmprobe.interventions import load_method
from mmprobe.interventions.methods.attention_prompting import heat_maps
from mmprobe.interventions.methods.zoom_refine import find_crop
from mmprobe.interventions.two_pass_method import AttentionRecorder
from mmprobe.interventions.visual import AttentionMap, TokenMask, find_pixels, paint_pixels, select_largest
from mmprobe.models import Prompt
from mmprobe.models.families import View

EMPTY = np.zeros(0, np.int32)


def prompt_of(views: list[View], sources: list[int], sizes: list[tuple[int, int]]) -> Prompt:
    return Prompt(EMPTY, EMPTY, EMPTY, views, sources, sizes)


# one picture of 4 x 6 pixels seen as 2 x 3 cells and, its right half, as 1 x 1; another of 2 x 2 seen as one cell
TWO = prompt_of(
    [View((2, 3), (0, 0, 6, 4)), View((1, 1), (3, 0, 3, 4)), View((1, 1), (0, 0, 2, 2))],
    [0, 0, 1],
    [(4, 6), (2, 2)],
)


def test_cells_become_pixels_of_their_views():
    first, second = find_pixels(TWO, np.array([0, 1, 0, 1, 0, 0, 0, 1], bool))
    wanted = np.zeros((4, 6), bool)
    wanted[:2, 2:4] = True
    wanted[2:, :2] = True
    assert np.array_equal(first, wanted) and second.all()
    first, second = find_pixels(TWO, np.array([0, 0, 0, 0, 0, 0, 1, 0], bool))
    assert np.array_equal(first, np.tile(np.arange(6) >= 3, (4, 1))) and not second.any()


def test_a_view_larger_than_its_picture_is_cut():
    """A square view of a wide picture that was padded: its outer rows show nothing."""
    padded = prompt_of([View((3, 3), (0, -3, 9, 9))], [0], [(3, 9)])
    (found,) = find_pixels(padded, np.ones(9, bool))
    assert found.shape == (3, 9) and found.all()
    (found,) = find_pixels(padded, np.arange(9) < 3)
    assert not found.any()


def test_painting():
    picture = Image.fromarray(np.array([[[0, 0, 0], [10, 20, 30]], [[10, 20, 30], [20, 40, 60]]], np.uint8))
    pixels = np.array([[False, True], [False, False]])
    assert paint_pixels(picture, pixels, "mean").getpixel((1, 0)) == (10, 20, 30)
    assert paint_pixels(picture, pixels, "black").getpixel((1, 0)) == (0, 0, 0)
    assert paint_pixels(picture, pixels, "black").getpixel((1, 1)) == (20, 40, 60)


def test_the_largest_share():
    values = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert select_largest(values, 0.4).tolist() == [False, False, False, True, True]
    assert select_largest(values, 0).sum() == 1 and select_largest(values, 1).all()
    assert select_largest(values[:0], 0.5).shape == (0,)


def test_cells_among_the_keys_of_a_later_step():
    cells = TokenMask(torch.tensor([[False, True, True, False]]))
    assert cells.align(4, 0).tolist() == [[False, True, True, False]]
    assert cells.align(6, 2).tolist() == [[False, True, True, False, False, False]]
    assert cells.align(4, 2).tolist() == [[True, False, False, False]]  # a sliding layer's last four keys


@pytest.mark.parametrize("keys", [6, 4, 1])
def test_the_map_of_attention_is_the_mean_over_heads_and_layers(keys):
    prompt = SimpleNamespace(visual_positions=np.array([1, 2]), padding=1)
    asked = SimpleNamespace(
        batch=SimpleNamespace(prompts=[prompt]),
        prompt_length=4,
        model=SimpleNamespace(device=torch.device("cpu")),
    )
    found = AttentionMap(asked)  # two tokens generated, six keys in all, those of the patches are 2 and 3
    full = torch.arange(1.0, 7)
    found.add_layer(torch.stack([full[-keys:], 3 * full[-keys:]])[None, :, None], 2)
    found.add_layer(torch.stack([full, full])[None, :, None], 2)
    first = {6: [2 * 3, 2 * 4], 4: [2 * 3, 2 * 4], 1: [0, 0]}[keys]
    assert found.select_visual(0).tolist() == [(first[0] + 3) / 2, (first[1] + 4) / 2]


def test_the_map_of_an_answer_ends_with_it(image_paths):
    """A row that ends two steps in is watched as alone, where nothing is read behind its end."""
    model = tiny("qwen2_5_vl")
    samples = [
        sample_of(image_paths[:2]),
        sample_of(image_paths[1:], "Is there a star in one of these two?", "b"),
    ]
    first, second = plain_tokens(model, ready(model, *samples)[1]).tolist()
    assert first[1] != first[0] and first[1] not in second, "the case is void: both end together"
    model.hf.generation_config.eos_token_id = first[1]
    _, logits, report = run(model, [AttentionRecorder()], *ready(model, *samples))
    assert logits.shape[1] == STEPS
    for row, sample in enumerate(samples):
        _, _, alone = run(model, [AttentionRecorder()], *ready(model, sample))
        assert report(row)["attention-recorder"]["attention"] == pytest.approx(
            alone(0)["attention-recorder"]["attention"], rel=1e-4
        )


def test_a_sliding_window_that_has_left_the_pictures_behind(image_paths):
    """Gemma 3's layers with a window of 16 lose the patches; the others still shift."""
    model = tiny("gemma3")
    chats, batch = ready(model, sample_of(image_paths[:1], "Tell me what this picture shows, and why."))
    for name, parameters in (("sage", {"eta": 2, "k": 0.9, "refresh": 3}), ("pai", {"first_layer": 0})):
        _, logits, _ = run(model, [load_method(name, **parameters)], chats, batch, 8)
        assert not logits.isnan().any() and (logits.amax(-1) > -1e4).all()


def test_heat_is_the_mean_of_views_between_0_and_1():
    one = prompt_of([View((1, 2), (0, 0, 4, 2)), View((1, 1), (2, 0, 2, 2))], [0, 0], [(2, 4)])
    (heat,) = heat_maps(one, np.array([0.0, 4.0, 0.0]))
    assert heat.shape == (2, 4) and heat.min() == 0 and heat.max() == 1
    assert (heat[:, 0] == 0).all()
    assert heat[0, 3] == pytest.approx(1) and heat[0, 2] == pytest.approx(
        3 / 4
    )  # 0, 1, 3, 4, the right half halved
    assert not heat_maps(one, np.ones(3))[0].any()


def test_heat_of_tiles_narrower_than_a_pixel():
    tiles = [View((2, 2), (0.5 * column, 0.5 * row, 0.5, 0.5)) for row in (0, 1) for column in (0, 1)]
    one = prompt_of([*tiles, View((2, 2), (0, 0, 1, 1))], [0] * 5, [(1, 1)])
    assert [heat.shape for heat in heat_maps(one, np.arange(20.0))] == [(1, 1)]


def test_the_crop_holds_what_was_attended():
    assert find_crop(TWO, np.array([0, 9, 0, 8, 0, 0, 0, 0.0]), 0.25) == (0, (0, 0, 4, 4))
    assert find_crop(TWO, np.array([0, 0, 0, 0, 0, 0, 0, 5.0]), 0.1) == (1, (0, 0, 2, 2))
    padded = prompt_of([View((3, 3), (0, -3, 9, 9))], [0], [(3, 9)])
    assert find_crop(padded, np.array([9.0, 8, 0, 0, 1, 0, 0, 0, 0]), 0.2) == (0, (0, 0, 9, 3))
