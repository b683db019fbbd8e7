"""Edits change only their object, and the check finds every other change."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2", reason="the extra photos is not installed")

from mmprobe.benchmarks.photo_pairs.check import check_files, check_pixels, editable_pixels, grow_to_blocks
from mmprobe.benchmarks.photo_pairs.colours import PALETTE, list_new_colours, name_colour
from mmprobe.benchmarks.photo_pairs.edits import apply_edits, get_inpainter
from mmprobe.benchmarks.photo_pairs.masks import shift_mask
from mmprobe.benchmarks.photo_pairs.photos import Instance, Photo, Rejection
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit
from mmprobe.errors import InputError

SIZE, MARGIN = (96, 128), 5


def scene(*places, colours=((200, 40, 40), (40, 60, 200), (120, 120, 120))):
    """Noise of grey with blocks of colour that have stripes."""
    pixels = np.random.default_rng(1).integers(140, 180, (*SIZE, 3)).astype(np.uint8)
    instances = []
    for (x, y), colour in zip(places, colours, strict=False):
        mask = np.zeros(SIZE, dtype=bool)
        mask[y : y + 20, x : x + 20] = True
        pixels[mask] = colour
        pixels[y : y + 20 : 4, x : x + 20] = np.array(colour) * 0.8
        instances.append(Instance("cup", False, mask))
    return Photo("one", {}, pixels, tuple(instances))


def edited(photo, *edits, inpainter=None):
    return apply_edits(photo, list(edits), inpainter or get_inpainter("opencv"), MARGIN)


def same_outside(photo, changed, *masks):
    """The slow way: pixel by pixel, the distance to the nearest pixel of the masks."""
    places = np.argwhere(np.any(masks, axis=0))
    for row, column in np.argwhere((photo.pixels != changed).any(2)):
        if np.abs(places - (row, column)).max(1).min() > MARGIN:
            return False
    return True


def test_a_new_colour_keeps_texture_and_everything_else():
    photo = scene((10, 10), (60, 40))
    changed = edited(photo, PhotoEdit("color", 0, colour="green"))
    mask = photo.instances[0].mask
    assert name_colour(changed, mask) == "green"
    assert same_outside(photo, changed, mask)
    inner = changed[12:28, 12:28].astype(int).sum(2)
    before = photo.pixels[12:28, 12:28].astype(int).sum(2)
    assert np.corrcoef(inner.ravel(), before.ravel())[0, 1] > 0.9  # stripes stay stripes


@pytest.mark.parametrize("colour", [(250, 250, 250), (128, 128, 128), (12, 12, 12), (90, 60, 30)])
def test_grey_white_and_black_things_take_every_colour_offered(colour):
    photo = scene((40, 30), colours=(colour,))
    mask = photo.instances[0].mask
    offered = list_new_colours(photo.pixels, mask)
    assert len(offered) >= 4
    for name in offered:
        changed = edited(photo, PhotoEdit("color", 0, colour=name))
        assert name_colour(changed, mask) == name
        check_pixels(photo, [PhotoEdit("color", 0, colour=name)], changed, MARGIN)
    assert set(offered) <= set(PALETTE)


def test_a_removed_object_is_filled_from_around():
    photo = scene((50, 40), (5, 5))
    changed = edited(photo, PhotoEdit("remove", 0))
    mask = photo.instances[0].mask
    assert same_outside(photo, changed, mask)
    assert changed[mask].min() > 120 and changed[mask].max() < 200  # no red is left
    assert (changed[photo.instances[1].mask] == photo.pixels[photo.instances[1].mask]).all()


def test_a_neighbour_within_the_margin_stays_as_it_is():
    photo = scene((30, 30), (51, 30))
    for edit in (PhotoEdit("remove", 0), PhotoEdit("color", 0, colour="green")):
        changed = edited(photo, edit)
        assert (changed[photo.instances[1].mask] == photo.pixels[photo.instances[1].mask]).all()


def test_a_moved_object_is_pasted_and_its_place_filled():
    photo = scene((10, 40))
    edit = PhotoEdit("position", 0, shift=(60, -8))
    changed = edited(photo, edit)
    mask = photo.instances[0].mask
    assert same_outside(photo, changed, mask, shift_mask(mask, (60, -8)))
    assert (changed[35:49, 73:87] == photo.pixels[43:57, 13:27]).all()  # inside of the soft edge
    assert changed[mask].min() > 120
    check_pixels(photo, [edit], changed, MARGIN)


def test_edits_compose():
    photo = scene((10, 40), (60, 10), (60, 60))
    edits = [
        PhotoEdit("position", 0, shift=(85, 0)),
        PhotoEdit("color", 1, colour="yellow"),
        PhotoEdit("remove", 2),
    ]
    changed = edited(photo, *edits)
    differs = check_pixels(photo, edits, changed, MARGIN)
    assert (differs == (changed != photo.pixels).any(2)).all()
    for edit in edits:
        alone = edited(photo, edit)
        near = editable_pixels(photo, edit, MARGIN)
        assert np.abs(alone[near].astype(int) - changed[near]).mean() < 1


def test_an_inpainter_of_ones_own_cannot_reach_beyond_the_hole():
    photo = scene((50, 40))

    def careless(pixels, hole):
        assert hole.dtype == bool and hole[photo.instances[0].mask].all()
        pixels[:] = 77
        return pixels

    changed = edited(photo, PhotoEdit("remove", 0), inpainter=careless)
    assert (changed[photo.instances[0].mask] == 77).all()
    assert same_outside(photo, changed, photo.instances[0].mask)


@pytest.mark.parametrize("bad", [np.zeros((5, 5, 3), np.uint8), np.zeros((*SIZE, 3)), "no picture"])
def test_an_inpainter_that_gives_no_such_picture_is_told(bad):
    with pytest.raises(Rejection, match="inpainter gave"):
        edited(scene((50, 40)), PhotoEdit("remove", 0), inpainter=lambda pixels, hole: bad)


def test_the_check_sees_a_single_pixel():
    photo, edit = scene((50, 40)), PhotoEdit("remove", 0)
    changed = edited(photo, edit)
    changed[3, 7, 1] ^= 1
    with pytest.raises(Rejection, match="^1 pixels .*outside") as caught:
        check_pixels(photo, [edit], changed, MARGIN)
    assert caught.value.stage == "check"
    with pytest.raises(Rejection, match="outside"):  # a correct edit that is not in the list
        check_pixels(photo, [], edited(photo, edit), MARGIN)


def test_the_check_sees_that_nothing_was_done():
    photo = scene((50, 40))
    with pytest.raises(Rejection, match="the cup's remove .*0% of"):
        check_pixels(photo, [PhotoEdit("remove", 0)], photo.pixels.copy(), MARGIN)


def as_jpeg(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return np.array(Image.open(file).convert("RGB"))


def test_files_of_jpeg_are_equal_but_for_the_blocks_that_edits_touch():
    photo, edit = scene((51, 43)), PhotoEdit("color", 0, colour="yellow")
    changed = edited(photo, edit)
    before, after = as_jpeg(photo.pixels, subsampling=0), as_jpeg(changed, subsampling=0)
    check_files(photo, [edit], before, after, MARGIN)
    outside = (before != after).any(2) & ~editable_pixels(photo, edit, MARGIN)
    assert outside.any()  # why whole blocks are allowed
    after[0, 0] ^= 1
    with pytest.raises(Rejection, match="1 pixels"):
        check_files(photo, [edit], before, after, MARGIN)


def test_blocks():
    mask = np.zeros((20, 18), dtype=bool)
    mask[7, 8] = mask[19, 17] = True
    expected = np.zeros_like(mask)
    expected[0:8, 8:16] = expected[16:20, 16:18] = True
    assert (grow_to_blocks(mask) == expected).all()


def test_inpainters_by_name(monkeypatch):
    with pytest.raises(InputError, match="opencv or lama"):
        get_inpainter("magic")
    monkeypatch.setitem(__import__("sys").modules, "simple_lama_inpainting", None)
    with pytest.raises(InputError, match="simple-lama-inpainting"):
        get_inpainter("lama")
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(InputError, match=re.escape("mmprobe[photos]")):
        get_inpainter("opencv")


def test_lama_is_cropped_back(monkeypatch):
    """A stand-in for the package: like it, gives back an image that is padded to multiples of 8."""
    import types

    class SimpleLama:
        def __call__(self, image, mask):
            assert mask.mode == "L" and mask.size == image.size
            wide, tall = (-(-side // 8) * 8 for side in image.size)
            return Image.new("RGB", (wide, tall), (1, 2, 3))

    module = types.SimpleNamespace(SimpleLama=SimpleLama)
    monkeypatch.setitem(__import__("sys").modules, "simple_lama_inpainting", module)
    fill = get_inpainter("lama")
    filled = fill(np.zeros((13, 21, 3), np.uint8), np.ones((13, 21), bool))
    assert filled.shape == (13, 21, 3) and (filled == (1, 2, 3)).all()
