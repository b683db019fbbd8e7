"""MagiC's drawn set: true answers, true regions, and chains with one wrong step."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.magic.benchmark import Magic
from mmprobe.benchmarks.magic.data import make_heal_cases
from mmprobe.benchmarks.magic.regions import intersection
from mmprobe.benchmarks.magic.synthetic import draw_questions, step_is_true
from mmprobe.errors import InputError

COLUMNS = "ABCD"


def cell_of(name: str) -> tuple[int, int, int, int]:
    return COLUMNS.index(name[0]) * 28, (int(name[1]) - 1) * 28, 28, 28


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return Magic().read(Magic().draw(tmp_path_factory.mktemp("magic") / "data", 9, 7))


def test_answers_and_regions_follow_from_the_objects(truth):
    assert [question.type for question in truth.questions] == ["colour", "exists", "absent"] * 9
    for question in truth.questions:
        objects = [thing.split() for thing in question.metadata["objects"]]
        shape_asked = question.question.rstrip("?").split()[-1]
        matches = [(colour, cell) for colour, shape, cell in objects if shape == shape_asked]
        relevant = {box.box for box in question.boxes if box.relevant}
        if question.type == "absent":
            assert not matches and question.answer == "no"
            assert relevant == {cell_of(cell) for _, _, cell in objects}
        else:
            ((colour, cell),) = matches
            assert (
                relevant == {cell_of(cell)}
                and question.answer == {"colour": colour, "exists": "yes"}[question.type]
            )
        others = [box for box in question.boxes if not box.relevant]
        assert len(others) == 3
        assert not any(intersection(other.box, box) for other in others for box in relevant)
        for box in question.boxes:
            assert box.names == [cell for _, _, cell in objects if cell_of(cell) == box.box]


def test_images_show_the_boxes(truth):
    for question in truth.questions[:3]:
        with Image.open(question.image) as image:
            pixels = np.asarray(image)
        for x, y, w, h in (box.box for box in question.boxes):
            edge = pixels[y : y + h, x + w - 1]
            assert (edge == (255, 0, 0)).all(1).mean() > 0.5  # the number of another box may cover the rest


def test_chains_hold_one_wrong_step_that_can_be_healed(truth):
    for question in truth.questions:
        facts = question.metadata["objects"]
        first, wrong, *_ = question.steps
        assert step_is_true(first.text, facts) is True and step_is_true(wrong.text, facts) is False
        assert step_is_true(wrong.correction, facts) is True
        (case,) = make_heal_cases(question)
        assert case.injected == [first.text, wrong.text] and case.corrections == [wrong.correction]


def test_a_set_depends_on_its_seed_and_grows_at_its_end(truth, tmp_path):
    again = Magic().read(Magic().draw(tmp_path / "again", 2, 7))
    assert [q.model_dump(exclude={"image"}) for q in again.questions] == [
        q.model_dump(exclude={"image"}) for q in truth.questions[:6]
    ]
    assert again.questions[0].image.read_bytes() == truth.questions[0].image.read_bytes()
    other = Magic().read(Magic().draw(tmp_path / "other", 2, 8))
    assert other.questions != again.questions
    with pytest.raises(InputError, match="not an empty folder"):
        draw_questions(tmp_path / "other", 2, 8)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("The star is at B2.", True),
        ("the STAR is at b2", True),
        ("The star is at B3.", False),
        ("Yes, the ring is at A1, and the star is at A1.", False),
        ("The star is red.", True),
        ("The star is not blue.", None),
        ("There is no heart.", True),
        ("No, there is no star.", False),
        ("The moon is red.", None),
        ("I look at R2.", None),
    ],
)
def test_steps_about_the_synthetic_world(step, expected):
    assert step_is_true(step, ["red star B2", "blue ring A1"]) is expected
