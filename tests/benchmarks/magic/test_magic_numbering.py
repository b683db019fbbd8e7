"""Numbered images from objects and saliency maps: written files, and refused input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.magic.benchmark import Magic
from mmprobe.benchmarks.magic.data import load_questions
from mmprobe.benchmarks.magic.numbering import number_regions
from mmprobe.benchmarks.magic.regions import draw_regions, intersection
from mmprobe.errors import InputError
from mmprobe.samples import image_sets

HOT = (60, 20, 30, 20)  # x, y, width, height
BARE = {"image": "a.png", "question": "Which?", "answer": "cat", "metadata": {"from": "me"}}


def write_questions(folder: Path, *lines: dict) -> Path:
    Image.new("RGB", (200, 100), (0, 90, 0)).save(folder / "a.png")
    levels = np.zeros((100, 200), np.uint16)
    levels[HOT[1] : HOT[1] + HOT[3], HOT[0] : HOT[0] + HOT[2]] = 60_000
    levels[70:90, 120:180] = 20_000  # below half of the largest, though above 255
    Image.fromarray(levels).save(folder / "hot.png")
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(BARE | line) + "\n" for line in lines))
    return file


def test_a_saliency_map_becomes_numbered_boxes(tmp_path):
    source = write_questions(tmp_path, {"id": "q", "saliency": ["hot.png"], "distractors": [[0, 0, 20, 20]]})
    file = number_regions(source, tmp_path / "out", seed=3)
    assert file == tmp_path / "out" / "samples.jsonl"
    (question,) = load_questions(file)
    (relevant,) = question.relevant()
    box = question.boxes[relevant - 1]
    assert (box.box, box.source) == (HOT, "saliency")
    others = [other for other in question.boxes if not other.relevant]
    assert sorted(other.source for other in others) == ["distractor", "random", "random"]
    assert not any(intersection(other.box, HOT) for other in others)
    assert question.image == tmp_path / "out" / "images" / "q.png" and question.metadata["from"] == "me"
    with Image.open(question.image) as drawn, Image.open(tmp_path / "a.png") as plain:
        expected = draw_regions(plain, [other.box for other in question.boxes])
        assert drawn.tobytes() == expected.tobytes() != plain.convert("RGB").tobytes()
    assert not list(tmp_path.glob("**/*.part"))


def test_boxes_depend_on_the_seed_and_the_questions_own_id(tmp_path):
    first_line, second_line = ({"id": name, "objects": [[10, 10, 30, 30]]} for name in ("q1", "q2"))
    source = write_questions(tmp_path, first_line, second_line)

    def boxes(lines: Path, out: str, seed: int) -> dict:
        return {q.id: q.boxes for q in load_questions(number_regions(lines, tmp_path / out, seed))}

    first = boxes(source, "first", 0)
    assert first["q1"] != first["q2"] and boxes(source, "again", 0) == first
    assert boxes(source, "other", 1)["q1"] != first["q1"]
    source.write_text(source.read_text().split("\n")[1])
    assert boxes(source, "alone", 0) == {"q2": first["q2"]}


def test_questions_about_one_image_are_one_set_of_images(tmp_path):
    lines = [{"id": name, "objects": [[10, 10, 30, 30]]} for name in ("q1", "q2", "q3")]
    source = write_questions(tmp_path, *lines[:2], lines[2] | {"image": "b.png"})
    Image.new("RGB", (200, 100), (9, 9, 9)).save(tmp_path / "b.png")
    truth = Magic().read(number_regions(source, tmp_path / "out"))
    first, second, other = image_sets(Magic().ask(truth)).tolist()
    assert first == second != other
    drawn = Magic().read(Magic().draw(tmp_path / "drawn", 2, 0))
    assert image_sets(Magic().ask(drawn)).tolist() == [0, 0, 0, 1, 1, 1]


def test_existing_boxes_are_kept(tmp_path):
    line = {"id": "q", "boxes": [{"box": [5, 5, 9, 9], "relevant": True, "names": ["B2"]}]}
    (question,) = load_questions(number_regions(write_questions(tmp_path, line), tmp_path / "out"))
    assert [box.model_dump(exclude_defaults=True) for box in question.boxes] == [
        {"box": (5, 5, 9, 9), "relevant": True, "names": ["B2"]}
    ]
    with Image.open(question.image) as kept, Image.open(tmp_path / "a.png") as plain:
        assert kept.tobytes() == plain.tobytes()


def test_thresholds_are_parameters(tmp_path):
    source = write_questions(tmp_path, {"id": "q", "saliency": ["hot.png"]})
    strict, loose = (
        load_questions(number_regions(source, tmp_path / f"{threshold}", threshold=threshold, count=1))[0]
        for threshold in (0.5, 0.2)
    )
    assert [len(question.relevant()) for question in (strict, loose)] == [1, 2]
    assert len(strict.boxes) == 2


def test_every_rule_of_the_algorithm_reaches_the_boxes(tmp_path):
    """One question at a time would hide a rule that acts on all: two questions, each moved by its own rules."""
    levels = np.zeros((100, 200), np.uint16)
    levels[20:40, 60:90] = 60_000
    levels[20:40, 75:77] = 0  # a gap that one closing fills
    lines = [
        {"id": "gap", "saliency": ["gap.png"]},
        # the small box covers half of itself, and a fifth of the union
        {"id": "pair", "objects": [[0, 0, 40, 40], [20, 0, 40, 20]], "distractors": [[150, 50, 50, 50]]},
    ]
    source = write_questions(tmp_path, *lines)
    Image.fromarray(levels).save(tmp_path / "gap.png")

    def sources(out: str, **rules) -> list[tuple[int, set[str]]]:
        questions = load_questions(number_regions(source, tmp_path / out, **rules))
        return [(len(q.relevant()), {box.source for box in q.boxes if not box.relevant}) for q in questions]

    assert sources("ours", overlap=0.4) == [(1, {"random"}), (1, {"distractor", "random"})]
    assert sources("raw", clean=0, overlap=0.4)[0] == (2, {"random"})
    assert sources("iou", rule="iou", overlap=0.4)[1] == (2, {"distractor", "random"})
    assert sources("small", areas=(0.002, 0.1), overlap=0.4)[1] == (1, {"random"})
    assert len(load_questions(number_regions(source, tmp_path / "one", limit=1))) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "q", "objects": [[0, 0, 200, 100]]}, "question q: no room"),
        ({"id": "q", "saliency": ["dark.png"]}, "question q: no relevant box"),
    ],
)
def test_questions_without_possible_boxes_are_named(line, message, tmp_path):
    source = write_questions(tmp_path, line)
    Image.new("L", (200, 100)).save(tmp_path / "dark.png")
    with pytest.raises(InputError, match=message):
        number_regions(source, tmp_path / "out")
    assert not (tmp_path / "out" / "samples.jsonl").exists()


def test_questions_without_possible_boxes_are_left_out_where_that_is_wanted(tmp_path):
    full, good = {"id": "full", "objects": [[0, 0, 200, 100]]}, {"id": "good", "objects": [[0, 0, 9, 9]]}
    left_out: dict[str, str] = {}
    file = number_regions(write_questions(tmp_path, full, good), tmp_path / "out", left_out=left_out)
    assert [question.id for question in load_questions(file)] == ["good"]
    assert list(left_out) == ["full"] and left_out["full"].startswith("no room")
    with pytest.raises(InputError, match="for none of its 1 questions"):
        number_regions(write_questions(tmp_path, full), tmp_path / "none", left_out={})


def test_the_questions_are_not_overwritten(tmp_path):
    source = write_questions(tmp_path, {"id": "q", "objects": [[0, 0, 9, 9]]})
    with pytest.raises(InputError, match="another folder"):
        number_regions(source, tmp_path)
