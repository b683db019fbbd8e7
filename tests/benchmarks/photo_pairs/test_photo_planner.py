"""The rules choose editable objects, free places and visible colours, and rate the difficulty."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mmprobe.benchmarks.photo_pairs.colours import PALETTE, list_new_colours, name_colour
from mmprobe.benchmarks.photo_pairs.masks import bounding_box, dilate, shift_mask
from mmprobe.benchmarks.photo_pairs.photos import Instance, Photo, Rejection
from mmprobe.benchmarks.photo_pairs.planner import (
    LIVING,
    Rules,
    find_editable,
    find_free_shift,
    find_occupied,
    plan_by_rules,
    rate_difficulty,
)
from mmprobe.benchmarks.spd_faith.data import name_place

SIZE = (60, 80)


def block(x, y, width, height, category="cup", crowd=False):
    mask = np.zeros(SIZE, dtype=bool)
    mask[y : y + height, x : x + width] = True
    return Instance(category, crowd, mask)


def photo(*instances, colour=(128, 128, 128)):
    return Photo("one", {}, np.full((*SIZE, 3), colour, np.uint8), instances)


def test_editable_objects():
    whole = photo(
        block(5, 5, 10, 10),
        block(30, 5, 2, 2),
        block(0, 30, 80, 30),
        block(50, 5, 20, 20, crowd=True),
        block(22, 5, 10, 10),
        block(31, 10, 10, 10),
    )
    editable, reasons = find_editable(whole, Rules())
    assert editable == [0]  # the fifth and the sixth share ten pixels, a tenth of each
    assert reasons == Counter({"overlap others": 2, "too small": 1, "too large": 1, "crowds": 1})
    assert find_editable(whole, Rules(overlap=0.2))[0] == [0, 4, 5]


def test_a_free_place_is_one_that_a_slow_search_finds_too():
    rules = Rules(margin=2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        objects = [block(int(rng.integers(2, 60)), int(rng.integers(2, 45)), 12, 9) for _ in range(4)]
        whole = photo(*objects)
        occupied = find_occupied(whole, [])
        x, y, width, height = bounding_box(objects[0].mask)
        free = set()
        grown = dilate(occupied, 2)
        for top in range(2, SIZE[0] - height - 1):
            for left in range(2, SIZE[1] - width - 1):
                if not grown[top - 2 : top + height + 2, left - 2 : left + width + 2].any():
                    free.add((left - x, top - y))
        shift = find_free_shift(whole, 0, occupied, np.random.default_rng(0), rules)
        assert (shift is None) == (not free)
        if shift is not None:
            assert shift in free
            level = {move for move in free if abs(move[1]) <= 0.15 * SIZE[0]}
            here = name_place((x, y, width, height), SIZE[::-1])
            other = {
                move
                for move in free
                if name_place((x + move[0], y + move[1], width, height), SIZE[::-1]) != here
            }
            assert shift in ((level & other) or other or level or free)
            moved = shift_mask(objects[0].mask, shift)
            assert moved.sum() == objects[0].mask.sum() and not (dilate(moved, 2) & occupied).any()


def test_what_the_edge_cuts_off_is_not_moved():
    rng = np.random.default_rng(0)
    for x, y in ((0, 20), (70, 20), (20, 0), (20, 50)):
        whole = photo(block(x, y, 10, 10))
        assert find_free_shift(whole, 0, find_occupied(whole, []), rng, Rules()) is None


@pytest.mark.slow
def test_plans_follow_the_seed_and_edit_each_object_once():
    objects = [block(4 + 19 * k, 8 + 30 * row, 10, 10) for k in range(4) for row in range(2)]
    whole = photo(*objects)
    kinds = Counter()
    for seed in range(300):
        edits = plan_by_rules(whole, (2, 5), np.random.default_rng(seed), Rules(margin=2))
        assert edits == plan_by_rules(whole, (2, 5), np.random.default_rng(seed), Rules(margin=2))
        assert 2 <= len(edits) <= 5 and len({edit.instance for edit in edits}) == len(edits)
        kinds.update(edit.type for edit in edits)
        moved = np.zeros(SIZE, dtype=int)
        for edit in edits:
            assert (edit.colour is not None) == (edit.type == "color")
            assert (edit.shift is not None) == (edit.type == "position")
            if edit.shift:
                moved += shift_mask(whole.instances[edit.instance].mask, edit.shift)
        assert moved.max() <= 1 and not (moved[find_occupied(whole, [])]).any()
    total = kinds.total()
    assert 0.33 < kinds["color"] / total < 0.5 and kinds["position"] > 0 and kinds["remove"] > 0


def test_what_lives_keeps_its_colour():
    whole = photo(block(20, 20, 12, 12, "dog"), block(50, 20, 12, 12, "person"))
    assert {"dog", "person"} <= LIVING
    for seed in range(50):
        edits = plan_by_rules(whole, (1, 2), np.random.default_rng(seed), Rules())
        assert {edit.type for edit in edits} <= {"remove", "position"}


def test_too_few_objects_are_told_with_their_reasons():
    whole = photo(block(20, 20, 12, 12), block(50, 20, 2, 2), block(60, 20, 2, 2))
    with pytest.raises(Rejection, match="^1 of 3 objects can be edited, 2 needed, 2 too small$") as caught:
        plan_by_rules(whole, (2, 3), np.random.default_rng(0), Rules())
    assert caught.value.stage == "plan"
    with pytest.raises(Rejection, match="^0 of 0 objects"):
        plan_by_rules(photo(), (1, 1), np.random.default_rng(0), Rules())


@pytest.mark.parametrize(
    ("count", "changed", "level"),
    [
        (6, 0.03, "easy"),
        (7, 0.03, "medium"),
        (16, 0.03, "medium"),
        (17, 0.03, "hard"),
        (38, 0.001, "hard"),
        (3, 0.2, "easy"),
        (3, 0.001, "medium"),
        (20, 0.2, "medium"),
        (10, 0.2, "medium"),
        (10, 0.0001, "medium"),
    ],
)
def test_difficulty_by_count_and_area(count, changed, level):
    assert rate_difficulty(count, changed, Rules()) == level


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((250, 250, 250), "white"),
        ((128, 130, 128), "gray"),
        ((10, 12, 9), "black"),
        ((200, 20, 20), "red"),
        ((190, 20, 40), "red"),
        ((240, 140, 20), "orange"),
        ((110, 70, 30), "brown"),
        ((240, 220, 40), "yellow"),
        ((40, 160, 60), "green"),
        ((50, 200, 215), "cyan"),
        ((30, 60, 200), "blue"),
        ((135, 50, 170), "purple"),
        ((245, 120, 190), "pink"),
    ],
)
def test_colours_by_name(rgb, name):
    pixels = np.full((3, 3, 3), rgb, np.uint8)
    assert name_colour(pixels, np.ones((3, 3), bool)) == name
    offered = list_new_colours(pixels, np.ones((3, 3), bool))
    assert name not in offered and len(offered) >= 3 and set(offered) <= set(PALETTE)


def test_places_are_ninths():
    assert [
        name_place((0, 0, 2, 2), SIZE[::-1]),
        name_place((39, 29, 2, 2), SIZE[::-1]),
        name_place((78, 29, 2, 2), SIZE[::-1]),
    ] == [
        "top left",
        "center",
        "right",
    ]
