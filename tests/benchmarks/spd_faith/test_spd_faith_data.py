"""The truth from the synthetic world and from the published files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.spd_faith.benchmark import FIRST_QUESTION_TYPES, build_published_truth
from mmprobe.benchmarks.spd_faith.data import parse_row, read_pairs, read_synthetic_pairs, to_row
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples


def row(**changes: object) -> dict:
    plain = {
        "image_id": 7,
        "num_differences": 2,
        "differences": [
            {"type": "color", "category": "car", "description": "The car changed from red to blue. The dog is gone.",
             "bbox_x": 1, "bbox_y": 2, "bbox_w": 30, "bbox_h": 40.5},
            {"type": "remove", "category": "dog", "description": "", "bbox_x": None},
        ],
    }  # fmt: skip
    return plain | changes


def test_synthetic_pairs_know_their_differences(tmp_path: Path) -> None:
    samples = load_samples(make_pairs(tmp_path / "pairs", n=8, seed=3))
    pairs = read_synthetic_pairs(samples)
    assert [pair.id for pair in pairs] == [f"{k:04d}" for k in range(8)]
    assert sorted(name for pair in pairs for name in pair.question_ids) == sorted(
        sample.id for sample in samples
    )
    assert {pair.difficulty for pair in pairs} == {"easy", "medium", "hard"}
    assert all(len(pair.images) == 2 for pair in pairs)
    for pair in pairs:
        listed = next(sample for sample in samples if sample.id in pair.question_ids).metadata["differences"]
        assert [(difference.type, difference.category) for difference in pair.differences] == [
            (item["type"], item["shape"]) for item in listed
        ]
        for difference in pair.differences:
            if difference.type != "remove":
                assert f"from {difference.before} to {difference.after}." in difference.description
            else:
                assert difference.before is difference.after is None
    assert any(pair.differences for pair in pairs)


def test_samples_of_another_world_are_refused() -> None:
    with pytest.raises(InputError, match="sample 1: .*differences"):
        read_synthetic_pairs([Sample(id="1", question="?")])
    bad = {"differences": [{"type": "color"}], "scene": "scenes/1.json"}
    with pytest.raises(InputError, match="type, shape or sentence"):
        read_synthetic_pairs([Sample(id="1", question="?", metadata=bad)])


def test_a_published_row_whose_caption_is_in_its_first_description() -> None:
    pair = parse_row(row(difficulty="Hard"))
    car, dog = pair.differences
    assert (pair.id, pair.difficulty) == ("7", "hard")
    assert (car.type, car.category, car.box, car.before, car.after) == (
        "color",
        "car",
        (1, 2, 30, 40.5),
        "red",
        "blue",
    )
    assert (dog.type, dog.category, dog.box) == ("remove", "dog", None)
    assert [each.description for each in pair.differences] == [
        "The car changed from red to blue.",
        "The dog was removed.",
    ]
    assert parse_row(to_row(pair)) == pair


def test_columns_spellings_and_synonyms_are_understood() -> None:
    columns = {"type": ["Removal", "colour"], "category": ["TV monitor", "curtain"]}
    first, second = parse_row(row(differences=columns)).differences
    assert (first.type, first.category) == ("remove", "tv")
    assert (second.type, second.category) == ("color", "curtain")


def test_a_pair_may_have_no_differences() -> None:
    assert parse_row(row(num_differences=0, differences=[])).differences == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": None}, "image_id"),
        ({"image_id": "val 1"}, "image_id.*'val 1-different', a question's id, must be"),
        ({"image_id": "a/b"}, "image_id"),
        ({"image_id": "../x"}, "image_id"),
        ({"image_id": -3}, "image_id"),
        ({"image_id": "x" * 120}, "image_id"),
        ({"num_differences": 3}, "num_differences is 3, but 2"),
        ({"differences": "none"}, "list of objects"),
        ({"differences": {"type": ["color"], "category": []}}, "several lengths"),
        (
            {"num_differences": 1, "differences": [{"type": "add", "category": "car"}]},
            "difference 1: type is 'add'",
        ),
        ({"num_differences": 1, "differences": [{"type": "color", "category": " "}]}, "category"),
        (
            {"num_differences": 1, "differences": [{"type": "color", "category": "car", "bbox": [1, 2]}]},
            "four numbers",
        ),
        *(
            (
                {"num_differences": 1, "differences": [{"type": "color", "category": "car", "bbox": box}]},
                "four",
            )
            for box in (5, "1234", [1, 2, 3, float("nan")], [1, 2, 3, 10**400])
        ),
        ({"difficulty": 3}, "difficulty"),
    ],
)
def test_malformed_rows_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_row(row(**changes))


def test_a_file_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "easy.jsonl"
    lines = [row(image1="a.jpg", image2="b.jpg"), row(image_id="8")]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    first, second = read_pairs(file)
    assert first.images == (tmp_path / "a.jpg", tmp_path / "b.jpg")
    assert (second.id, second.images, second.difficulty) == ("8", (), "easy")


def test_an_exported_folder(tmp_path: Path) -> None:
    for split, name in (("easy", "1"), ("hard", "2")):
        folder = tmp_path / split / name
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({**row(), "image_id": name}))
        for end in ("original", "modified_final"):
            (folder / f"{name}_{end}.jpg").write_bytes(b"")
    pairs = read_pairs(tmp_path)
    assert [(pair.id, pair.difficulty) for pair in pairs] == [("1", "easy"), ("2", "hard")]
    assert pairs[0].images[1] == tmp_path / "easy" / "1" / "1_modified_final.jpg"
    assert [pair.id for pair in read_pairs(tmp_path / "hard")] == ["2"]
    (alone,) = read_pairs(tmp_path / "hard" / "2" / "metadata.json")
    assert alone == pairs[1]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither"):
        read_pairs(tmp_path)
    file = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match="no such file"):
        read_pairs(file)
    for text, message in (
        ("", "contains no pairs"),
        ('{"image_id": 1', "line 1: not JSON"),
        ("[1]", "must hold objects"),
        (json.dumps(row()) + "\n" + json.dumps(row()), "line 2: id '7' was used already"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            read_pairs(file)


def test_an_id_may_be_as_long_as_those_of_its_questions(tmp_path: Path) -> None:
    assert {
        len(sample.id) for sample in build_published_truth([parse_row(row(image_id="x" * 118))]).samples
    } == {len(kind) + 119 for kind in FIRST_QUESTION_TYPES}
    with pytest.raises(InputError, match="image_id"):
        parse_row(row(image_id="x" * 119))


def test_a_row_that_we_do_not_know_is_one_failed_row(tmp_path, caplog):
    file = tmp_path / "rows.jsonl"
    strange = row(image_id="8", differences=[{"type": "unknown", "category": "car"}], num_differences=1)
    lines = [row(), strange, row(image_id="9", num_differences=5)]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    truth = BENCHMARKS["spd-faith"]().read(file)
    assert [pair.id for pair in truth.pairs] == ["7"]
    assert [text.split(": ")[0].split(", diff")[0] for text in truth.failed_rows] == [
        f"{file}, line 2",
        f"{file}, line 3",
    ]
    assert "type is 'unknown'" in caplog.text and "num_differences is 5" in caplog.text
    metrics, _ = BENCHMARKS["spd-faith"]().score(truth, {"7-count": "2"})
    assert (metrics["failed_rows"].value, metrics["failed_rows"].n) == (pytest.approx(2 / 3), 3)
    file.write_text(json.dumps(strange))
    with pytest.raises(InputError, match="no row"):
        read_pairs(file)


@pytest.mark.parametrize(
    ("folder", "difficulty"), [("richard", None), ("easygoing/x", None), ("hard", "hard"), ("Easy/x", "easy")]
)
def test_the_difficulty_is_a_whole_part_of_the_path(tmp_path, folder, difficulty):
    file = tmp_path / folder / "rows.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(row()))
    assert read_pairs(file)[0].difficulty == difficulty
