"""Masks from polygons and run lengths equal slow references and those of pycocotools."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.photo_pairs.masks import (
    BadMask,
    bounding_box,
    decode_mask,
    dilate,
    encode_mask,
    shift_mask,
    union,
)

# pycocotools.mask.encode of the mask below
COMPRESSED = "e<i0?00000Sd0[Ob\\O000000000000000000000000000X2T1TO"


def blocks():
    mask = np.zeros((40, 50), dtype=bool)
    mask[5:30, 10:14] = mask[8:12, 30:45] = mask[0:40, 47] = True
    return mask


def runs_of(mask):
    """COCO's run lengths, the slow way: walk down the columns, the first run of what is not in the mask."""
    counts, now = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != now:
            counts.append(0)
            now = pixel
        counts[-1] += 1
    return counts


def inside(x, y, polygon):
    """Whether a point is in a polygon: the textbook's ray to the left."""
    corners = list(zip(polygon[::2], polygon[1::2], strict=True))
    odd = False
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (y1 <= y) != (y2 <= y) and x1 + (y - y1) / (y2 - y1) * (x2 - x1) <= x:
            odd = not odd
    return odd


def test_polygons_are_filled_where_pixels_have_their_centres_in_them():
    rng = np.random.default_rng(5)
    for _ in range(30):
        polygon = rng.uniform(-1, 22, 2 * int(rng.integers(3, 9))).tolist()
        mask = decode_mask([polygon], 20, 21)
        slow = [[inside(x + 0.5, y + 0.5, polygon) for x in range(21)] for y in range(20)]
        assert mask.tolist() == slow


def test_several_polygons_are_one_object():
    first, second = [0, 0, 4, 0, 4, 2, 0, 2], [2, 1, 6, 1, 6, 4, 2, 4]
    expected = np.zeros((5, 8), dtype=bool)
    expected[0:2, 0:4] = expected[1:4, 2:6] = True
    assert (decode_mask([first, second], 5, 8) == expected).all()


def test_run_lengths_as_numbers_and_compressed():
    size = {"size": [40, 50]}
    assert (decode_mask(size | {"counts": runs_of(blocks())}, 40, 50) == blocks()).all()
    assert (decode_mask(size | {"counts": COMPRESSED}, 40, 50) == blocks()).all()
    rng = np.random.default_rng(2)
    noise = rng.random((7, 9)) < 0.5
    assert (decode_mask({"size": [7, 9], "counts": runs_of(noise)}, 7, 9) == noise).all()


def test_masks_become_the_run_lengths_of_pycocotools():
    assert encode_mask(blocks()) == {"size": [40, 50], "counts": COMPRESSED}
    rng = np.random.default_rng(3)
    for share in (0, 0.01, 0.5, 1):
        mask = rng.random((31, 57)) < share
        assert (decode_mask(encode_mask(mask), 31, 57) == mask).all()
    large = np.ones((400, 300), dtype=bool)
    large[100:, 200:] = False
    assert (decode_mask(encode_mask(large), 400, 300) == large).all(), (
        "numbers of several letters, below zero, too"
    )


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (None, "neither polygons"),
        ([], "neither polygons"),
        ([[1, 2, 3, 4]], "corners"),
        ([[1, 2, 3, 4, 5, 6, 7]], "corners"),
        ([[0] * 30_000], "corners"),
        ([[1, 2, 3, 4, float("nan"), 6]], "not a number"),
        ([[1, 2, 3, 4, float("inf"), 6]], "not a number"),
        ([[1, 2, 3, 4, True, 6]], "not a number"),
        ([[1, 2, 3, 4, "5", 6]], "not a number"),
        ([[1, 2, 30, 4, 5, 6]], "outside the image, which has 12 x 10"),
        ([[1, 2, -9, 4, 5, 6]], "outside the image"),
        ([["x"]], "corners"),
        ({"size": [12, 10], "counts": [120]}, "another size"),
        ({"counts": [120]}, "another size"),
        ({"size": [10, 12], "counts": [60, 59]}, "do not add up"),
        ({"size": [10, 12], "counts": [130, -10]}, "do not add up"),
        ({"size": [10, 12], "counts": [60.0, 60.0]}, "neither whole numbers"),
        ({"size": [10, 12], "counts": None}, "neither whole numbers"),
        ({"size": [10, 12], "counts": "é"}, "letter"),
        ({"size": [10, 12], "counts": "o" * 50}, "letter"),
        ({"size": [10, 12], "counts": "1o"}, "cut off"),
        ({"size": [10, 12], "counts": ""}, "do not add up"),
    ],
)
def test_what_is_no_mask_is_told(bad, why):
    with pytest.raises(BadMask, match=why):
        decode_mask(bad, 10, 12)


def test_growing_moving_joining_and_boxes():
    mask = np.zeros((9, 9), dtype=bool)
    mask[3, 4] = True
    grown = dilate(mask, 2)
    assert bounding_box(grown) == (2, 1, 5, 5) and grown.sum() == 25
    assert (dilate(mask, 0) == mask).all()
    assert np.argwhere(shift_mask(mask, (3, -2))).tolist() == [[1, 7]]
    assert not shift_mask(mask, (5, 0)).any() and not shift_mask(mask, (0, -4)).any()
    assert union([mask, shift_mask(mask, (1, 0))], (9, 9)).sum() == 2
    assert not union([], (2, 2)).any()
