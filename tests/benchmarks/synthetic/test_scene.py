"""Scenes, their pixels and their edits: checked pixel by pixel, over many random pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmprobe.benchmarks.synthetic.questions import describe_changes, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import (
    COLOURS,
    DIFFICULTIES,
    SHAPES,
    Background,
    Scene,
    SceneObject,
    draw_pair,
    draw_scene,
    edit_boxes,
    object_box,
    render,
)

CELL = 28
EVERY_KIND = [(difficulty, differences) for difficulty in DIFFICULTIES for differences in range(4)]


def pairs(difficulty, differences, many=25):
    return [draw_pair(np.random.default_rng([7, k]), difficulty, differences) for k in range(many)]


def in_boxes(boxes, shape=(112, 112)):
    mask = np.zeros(shape, bool)
    for x, y, width, height in boxes:
        mask[y : y + height, x : x + width] = True
    return mask


def differing(first, second):
    return (render(first) != render(second)).any(-1)


@pytest.mark.parametrize(("difficulty", "differences"), EVERY_KIND)
def test_no_pixel_outside_the_boxes_changes_and_in_every_box_one_does(difficulty, differences):
    for pair in pairs(difficulty, differences):
        changed = differing(pair.first, pair.second)
        boxes = [(image, box) for edit in pair.edits for image, box in edit_boxes(edit)]
        for image in (0, 1):
            assert not changed[~in_boxes(box for where, box in boxes if where == image)].any()
        for _, box in boxes:
            assert changed[in_boxes([box])].any()
            x, y, width, height = box
            assert 0 <= x < x + width <= 112
            assert 0 <= y < y + height <= 112


@pytest.mark.parametrize(("difficulty", "differences"), EVERY_KIND)
def test_a_pair_has_the_asked_number_of_edits_each_of_another_object(difficulty, differences):
    for pair in pairs(difficulty, differences):
        assert len(pair.edits) == differences
        assert len({edit.before.shape for edit in pair.edits}) == differences
        assert all(edit.before in pair.first.objects for edit in pair.edits)
        assert pair.first.background == pair.second.background
        assert len(pair.second.objects) >= 1
        expected = set(pair.first.objects) - {edit.before for edit in pair.edits}
        expected |= {edit.after for edit in pair.edits if edit.after is not None}
        assert set(pair.second.objects) == expected


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_an_edit_changes_one_thing_only(difficulty):
    seen = set()
    for edit in (edit for pair in pairs(difficulty, 2, many=60) for edit in pair.edits):
        before, after = edit.before, edit.after
        seen.add(edit.type)
        if edit.type == "remove":
            assert after is None
        elif edit.type == "color":
            assert after.colour != before.colour
            assert replace(after, colour=before.colour, rgb=before.rgb) == before
        else:
            assert after.cell != before.cell
            assert replace(after, row=before.row, column=before.column) == before
    assert seen == {"color", "remove", "position"}


@pytest.mark.parametrize(("difficulty", "differences"), EVERY_KIND)
def test_no_two_objects_share_a_cell_or_a_shape(difficulty, differences):
    for pair in pairs(difficulty, differences, many=60):
        for scene in (pair.first, pair.second):
            places = [(obj.row, obj.column) for obj in scene.objects]
            shapes = [obj.shape for obj in scene.objects]
            assert len(set(places)) == len(places)
            assert len(set(shapes)) == len(shapes)
            assert places == sorted(places)
            assert set(shapes) <= set(SHAPES)
            assert {obj.colour for obj in scene.objects} <= set(COLOURS)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_objects_stay_in_their_own_cell(difficulty):
    for k in range(15):
        scene = draw_scene(np.random.default_rng([11, k]), difficulty)
        for obj in scene.objects:
            without = replace(scene, objects=tuple(other for other in scene.objects if other is not obj))
            changed = differing(scene, without)
            cell = (obj.column * CELL, obj.row * CELL, CELL, CELL)
            assert changed.any()
            assert not changed[~in_boxes([cell])].any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", range(7, 13))
def test_a_box_is_the_smallest_around_its_object(shape, radius):
    # Black on white: even a pixel that the shape barely touches changes by more than rounding hides.
    obj = SceneObject(shape, "black", 1, 2, radius, (1, -1), (0, 0, 0))
    ground = Background((200, 200, 200), (0, 0), 5)
    rows, columns = np.nonzero(differing(Scene((obj,), ground), Scene((), ground)))
    x, y, width, height = object_box(obj)
    assert (x, y) == (columns.min(), rows.min())
    assert (x + width, y + height) == (columns.max() + 1, rows.max() + 1)


def test_shapes_are_told_apart_by_their_area():
    areas = {}
    for shape in SHAPES:
        obj = SceneObject(shape, "black", 1, 1, 12, (0, 0), (0, 0, 0))
        ground = Background((200, 200, 200), (0, 0), 5)
        drop = render(Scene((), ground)).astype(float) - render(Scene((obj,), ground))
        areas[shape] = drop[..., 0].sum() / 200
    exact = {
        "circle": np.pi * 144,
        "ring": np.pi * 144 * (1 - 0.55**2),
        "square": (1.7 * 12) ** 2,
        "diamond": 2 * 144,
        "cross": (2 * 0.68 * 2 - 0.68**2) * 144,
        "triangle": 1.85**2 * 0.54 * 144,
        "star": 10 * 0.5 * 0.4 * np.sin(np.pi / 5) * 144,
    }
    for shape, area in exact.items():
        assert areas[shape] == pytest.approx(area, rel=0.06), shape
    assert exact["diamond"] < areas["heart"] < exact["square"] * 1.1


def test_difficulty_orders_object_count_and_changed_area():
    counts, areas = [], []
    for difficulty in DIFFICULTIES:
        drawn = pairs(difficulty, 1, many=60)
        counts.append([len(pair.first.objects) for pair in drawn])
        areas.append(np.mean([differing(pair.first, pair.second).sum() for pair in drawn]))
    assert [(min(count), max(count)) for count in counts] == [(2, 3), (4, 5), (6, 7)]
    assert areas[0] > areas[1] > areas[2]


def test_the_same_seed_draws_the_same_and_another_does_not():
    one, two, other = (draw_pair(np.random.default_rng(seed), "hard", 3) for seed in (1, 1, 2))
    assert one == two
    assert render(one.second).tobytes() == render(two.second).tobytes()
    assert one != other


@pytest.mark.parametrize("differences", [-1, 4])
def test_a_number_of_differences_out_of_range_is_refused(differences):
    with pytest.raises(ValueError, match="differences must be 0 to 3"):
        draw_pair(np.random.default_rng(0), "easy", differences)


def test_questions_without_an_answer_are_refused():
    pair = draw_pair(np.random.default_rng(0), "easy", 0)
    absent = next(shape for shape in SHAPES if pair.first.find(shape) is None)
    with pytest.raises(ValueError, match="no differences to find"):
        make_question("find", pair)
    with pytest.raises(ValueError, match=f"no {absent}"):
        make_question("colour", pair, absent)
    assert describe_changes(pair) == "Nothing changed."


def test_random_existence_questions_ask_for_absent_shapes_half_of_the_time():
    pair, rng = draw_pair(np.random.default_rng(0), "easy", 0), np.random.default_rng(1)
    answers = [draw_question(rng, "exists", pair).answer.split(",")[0] for _ in range(400)]
    assert set(answers) == {"Yes", "No"}
    assert 160 < answers.count("No") < 240
    assert draw_question(rng, "find", pair).type == "count"
