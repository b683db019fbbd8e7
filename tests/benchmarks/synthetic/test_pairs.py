"""The written data set is true of its scenes and of its pixels, and depends on the seed alone."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.magic.synthetic import draw_questions as draw_magic
from mmprobe.benchmarks.mirage_effect.synthetic import draw_questions as draw_imageless
from mmprobe.benchmarks.synthetic.check import check_answer
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.errors import InputError
from mmprobe.samples import load_samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "made"
    make_pairs(out, n=48, seed=3)
    return out


@pytest.fixture(scope="module")
def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def objects_of(scene):
    """shape -> (colour, cell), in reading order."""
    objects = sorted(scene["objects"], key=lambda obj: (obj["row"], obj["column"]))
    return {obj["shape"]: (obj["colour"], f"{'ABCD'[obj['column']]}{obj['row'] + 1}") for obj in objects}


def changes_between(first, second):
    """The sentences that are true of two object lists."""
    changes = []
    for shape, (colour, cell) in first.items():
        if shape not in second:
            changes.append(f"The {shape} was removed.")
        elif second[shape][0] != colour:
            changes.append(f"The {shape} changed from {colour} to {second[shape][0]}.")
        elif second[shape][1] != cell:
            changes.append(f"The {shape} moved from {cell} to {second[shape][1]}.")
    assert set(second) <= set(first)
    return changes


def true_answer(line, first, second):
    changes = changes_between(first, second)
    description = " ".join(changes) or "Nothing changed."
    kind = line["metadata"]["type"]
    terse = [", ".join(f"{c} {s} {cell}" for s, (c, cell) in scene.items()) for scene in (first, second)]
    if kind == "same":
        return ("No. " if changes else "Yes. ") + description
    if kind == "different":
        return ("Yes. " if changes else "No. ") + description
    if kind == "count":
        number = {0: "are no differences", 1: "is 1 difference"}.get(
            len(changes), f"are {len(changes)} differences"
        )
        return f"There {number}."
    if kind == "find":
        return description
    if kind == "steps":
        return f"Picture one: {terse[0]}.\nPicture two: {terse[1]}.\nTherefore: {description}"
    if kind == "describe":
        items = [f"{'an' if c[0] == 'o' else 'a'} {c} {s} at {cell}" for s, (c, cell) in first.items()]
        text = ", ".join(items[:-1]) + f" and {items[-1]}."
        return "A" + text[1:]
    shape = re.fullmatch(r"(?:Is there a|What colour is the) (\w+)\?", line["question"])[1]
    if kind == "colour":
        return f"The {shape} is {first[shape][0]}."
    return f"Yes, the {shape} is at {first[shape][1]}." if shape in first else f"No, there is no {shape}."


def test_every_answer_is_true_of_the_scenes(folder, lines):
    kinds = Counter()
    for line in lines:
        scenes = json.loads((folder / line["metadata"]["scene"]).read_text(encoding="utf-8"))
        first, second = objects_of(scenes["first"]), objects_of(scenes["second"])
        assert line["answer"] == true_answer(line, first, second)
        assert [change["sentence"] for change in line["metadata"]["differences"]] == changes_between(
            first, second
        )
        objects = [[f"{c} {s} {cell}" for s, (c, cell) in scene.items()] for scene in (first, second)]
        assert line["metadata"]["objects"] == objects
        kinds[line["metadata"]["type"]] += 1
    assert kinds["exists"] == 96
    assert set(kinds) == {"same", "different", "count", "find", "exists", "colour", "describe", "steps"}


def test_no_pixel_outside_the_regions_differs_and_in_each_one_does(folder, lines):
    seen = 0
    for line in (line for line in lines if len(line["images"]) == 2):
        first, second = (np.asarray(Image.open(folder / image)).astype(int) for image in line["images"])
        changed = (first != second).any(-1)
        for image in (0, 1):
            outside = np.ones(changed.shape, bool)
            for region in line["regions"]:
                x, y, width, height = region["box"]
                if region["image"] == image:
                    assert changed[y : y + height, x : x + width].any()
                    outside[y : y + height, x : x + width] = False
                    seen += 1
            assert not changed[outside].any()
        assert changed.any() == bool(line["metadata"]["differences"])
    assert seen > 100


def test_a_question_about_one_image_has_only_its_regions(lines):
    for line in (line for line in lines if len(line["images"]) == 1):
        assert line["metadata"]["type"] in ("exists", "colour", "describe")
        assert line["images"][0].endswith("a.png")
        assert {region["image"] for region in line["regions"]} <= {0}


def test_same_and_different_share_a_pair_id_and_have_opposite_answers(lines):
    by_pair = defaultdict(dict)
    for line in lines:
        assert (
            ("pair_id" in line) == ("polarity" in line) == (line["metadata"]["type"] in ("same", "different"))
        )
        if "pair_id" in line:
            by_pair[line["pair_id"]][line["polarity"]] = line
    assert len(by_pair) == 48
    for pair in by_pair.values():
        assert set(pair) == {"same", "different"}
        same, different = pair["same"], pair["different"]
        assert {same["answer"].split(".")[0], different["answer"].split(".")[0]} == {"Yes", "No"}
        assert same["answer"].split(".", 1)[1] == different["answer"].split(".", 1)[1]
        assert same["images"] == different["images"]


def test_step_by_step_answers_are_long_enough_to_trace_and_short_enough_to_learn(lines):
    lengths = [
        len(re.findall(r"\w+|[^\w\s]", line["answer"]))
        for line in lines
        if line["metadata"]["type"] == "steps"
    ]
    # Shortest: two objects, one removed (11 + 7 + 2 + 5); longest: seven objects, three moved or recoloured.
    assert 25 <= min(lengths) < max(lengths) <= 31 + 31 + 2 + 3 * 8
    assert sorted(lengths)[len(lengths) // 2] >= 45


def test_every_true_answer_passes_its_own_check(lines):
    for line in lines:
        verdict = check_answer(line["answer"], line["answer"], line["metadata"])
        assert (verdict.exact, verdict.correct, verdict.faithful, verdict.errors) == (True, True, True, ())


def test_every_line_loads(folder, lines):
    samples = load_samples(folder / "samples.jsonl")
    assert [sample.id for sample in samples] == [line["id"] for line in lines]
    assert all(image.is_file() for sample in samples for image in sample.images)
    assert [sample.metadata for sample in samples] == [line["metadata"] for line in lines]


def test_differences_and_difficulties_come_in_turn(lines):
    pairs = {line["pair_id"]: line["metadata"] for line in lines if "pair_id" in line}
    assert Counter(facts["difficulty"] for facts in pairs.values()) == {"easy": 16, "medium": 16, "hard": 16}
    assert set(Counter(len(facts["differences"]) for facts in pairs.values())) == {0, 1, 2, 3}


@pytest.mark.parametrize("make", [make_pairs, make_things])
def test_the_seed_alone_decides_and_a_larger_number_only_adds_pairs(make, tmp_path):
    for name, (n, seed) in {"few": (3, 5), "many": (6, 5), "again": (6, 5), "other": (6, 6)}.items():
        make(tmp_path / name, n=n, seed=seed)
    few, many, again, other = (files_of(tmp_path / name) for name in ("few", "many", "again", "other"))
    assert many == again
    assert make is make_things or len(many) == 1 + 6 * 3
    assert all(other[name] != many[name] for name in other.keys() & many.keys())
    assert many.pop("samples.jsonl").startswith(few.pop("samples.jsonl"))
    assert few.items() < many.items()


@pytest.mark.parametrize("differences", [(0, 0), (1, 1), (2, 3), (3, 3)])
def test_differences_stay_in_the_asked_range(tmp_path, differences):
    file = make_pairs(tmp_path / "out", n=8, seed=1, differences=differences, difficulty="easy")
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        assert differences[0] <= len(line["metadata"]["differences"]) <= differences[1]
        assert line["metadata"]["difficulty"] == "easy"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n 0"),
        ({"n": -3}, "n -3"),
        ({"seed": -1}, "seed -1"),
        ({"differences": (0, 4)}, "differences 0-4"),
        ({"differences": (-1, 2)}, "differences -1-2"),
        ({"differences": (2, 1)}, "differences 2-1"),
        ({"difficulty": "extreme"}, "difficulty extreme"),
    ],
)
def test_a_number_out_of_range_leaves_nothing_behind(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        make_pairs(tmp_path / "out", **({"n": 2, "seed": 0} | wrong))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path):
    (tmp_path / "precious.txt").write_text("keep")
    with pytest.raises(InputError, match="not an empty folder"):
        make_pairs(tmp_path, n=1, seed=0)
    assert [path.name for path in tmp_path.rglob("*")] == ["precious.txt"]


def test_a_file_in_the_way_is_left_as_it_is(tmp_path):
    (tmp_path / "file").write_text("keep")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError) as error:
            make_pairs(out, n=1, seed=0)
        assert "\n" not in str(error.value)
    assert (tmp_path / "file").read_text() == "keep"


def test_an_empty_folder_may_be_filled(tmp_path):
    assert make_pairs(tmp_path, n=1, seed=0) == tmp_path / "samples.jsonl"


@pytest.mark.parametrize(
    ("draw", "stopped"),
    [
        (partial(make_pairs, seed=5), "mmprobe.benchmarks.synthetic.pairs.describe_edit"),
        (partial(draw_imageless, seed=5), "mmprobe.benchmarks.mirage_effect.synthetic.imageless_questions"),
        (partial(draw_magic, seed=5), "mmprobe.benchmarks.magic.synthetic.draw_regions"),
    ],
)
def test_an_interrupted_drawing_leaves_nothing_and_is_drawn_anew(draw, stopped, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(stopped, interrupt)
        with pytest.raises(KeyboardInterrupt):
            draw(out, 4)
    assert not files_of(out)
    (out / ".part" / "images").mkdir(parents=True)  # of a call that was killed
    (out / ".part" / "samples.jsonl").write_text("cut o")
    assert draw(out, 4) == out / "samples.jsonl"
    draw(tmp_path / "whole", 4)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert not (out / ".part").exists()


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_where_the_user_stands_and_what_is_beside_are_kept(tmp_path, monkeypatch):
    """No folder but the one that was asked for is touched, not even one that is named as if it were a part of it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "precious.txt").write_text("keep")
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path / "out")
    assert len(load_samples(make_pairs(".", n=1, seed=0))) == len(
        load_samples(tmp_path / "link" / "samples.jsonl")
    )
    assert (tmp_path / "out.part" / "precious.txt").read_text() == "keep"


def test_each_difference_names_its_own_regions(lines):
    several = 0
    for line in (line for line in lines if len(line["images"]) == 2):
        differences = line["metadata"]["differences"]
        assert [region for difference in differences for region in difference["regions"]] == line["regions"]
        assert all({region["image"] for region in change["regions"]} == {0, 1} for change in differences)
        several += len(differences) > 1
    assert several > 10
