"""The world of things: its data set is true of its pixels, its drawing is grid_sample's, and it depends on the seed alone."""

from __future__ import annotations

import json
import re
from colorsys import rgb_to_hsv

import numpy as np
import pytest
import torch
from PIL import Image

from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
from mmprobe.benchmarks.spd_faith.rule_labels import score_by_rules
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.benchmarks.things.scene import COLOURS, GRID, SHEET, THINGS, draw_scene, render
from mmprobe.errors import InputError
from mmprobe.samples import load_samples

PLACES = ["top left", "top center", "top right", "middle left", "center", "middle right"]
PLACES += ["bottom left", "bottom center", "bottom right"]
COUNTS = {"two": 2, "three": 3, "one": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("things") / "made"
    make_things(out, n=16, seed=5)
    return out


@pytest.fixture(scope="module")
def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def pixels(folder, name):
    return np.asarray(Image.open(folder / name)).astype(int)


def place_of(box):
    """The ninth of the image in which the middle of a box is."""
    x, y, width, height = box
    return PLACES[int((y + height / 2) // 64) * 3 + int((x + width / 2) // 64)]


def hue_distance(first, second):
    hues = [rgb_to_hsv(*(channel / 255 for channel in colour))[0] for colour in (first, second)]
    return abs((hues[0] - hues[1] + 0.5) % 1 - 0.5)


def colour_in(image, box):
    """The colour whose hue is nearest to that of the middle of a box, by its most saturated pixels."""
    x, y, width, height = box
    inside = image[y : y + height, x : x + width].reshape(-1, 3)
    spread = inside.max(1) - inside.min(1)
    vivid = np.median(inside[spread >= np.quantile(spread, 0.9)], axis=0)
    return min(COLOURS, key=lambda name: hue_distance(vivid, COLOURS[name]))


def true_answer(line, objects):
    """What is true of an image with these objects, read off the question's words."""
    text, kind = line["question"], line["metadata"]["type"]
    by_name = {each["name"]: each for each in objects}
    if kind == "count":
        return next(word for word, number in COUNTS.items() if number == len(objects))
    if kind == "describe":
        ordered = sorted(objects, key=lambda each: PLACES.index(place_of(each["bbox"])))
        items = [
            f"{'an' if each['colour'] == 'orange' else 'a'} {each['colour']} {each['name']} in the {place_of(each['bbox'])}"
            for each in ordered
        ]
        return f"The image shows {', '.join(items[:-1])}{' and ' if items[1:] else ''}{items[-1]}."
    asked = next(word for word in re.findall(r"\w+", text) if word in THINGS)
    if kind == "exist":
        return "yes" if asked in by_name else "no"
    if kind == "where":
        return place_of(by_name[asked]["bbox"])
    colour = by_name[asked]["colour"]
    if kind == "colorof":
        return "yes" if text == f"Is the {asked} {colour}?" else "no"
    if kind == "choice":
        return re.search(rf"^([A-D])\. {colour}$", text, re.MULTILINE)[1]
    assert kind == "color"
    return colour


def test_things_are_where_and_as_their_sample_says(folder, lines):
    for line in lines:
        for name, objects in zip(line["images"], line["metadata"]["objects"], strict=True):
            image = pixels(folder, name)
            for each in objects:
                assert each["place"] == place_of(each["bbox"])
                assert colour_in(image, each["bbox"]) == each["colour"], (line["id"], name, each)


def test_answers_about_one_image_are_true(lines):
    asked = [line for line in lines if len(line["images"]) == 1]
    for line in asked:
        assert line["answer"] == true_answer(line, line["metadata"]["objects"][0]), line["id"]
    answers = {
        (line["metadata"]["type"], line["answer"])
        for line in asked
        if line["metadata"]["type"] in ("exist", "colorof")
    }
    assert len(answers) == 4  # yes and no, of both


def test_answers_about_two_images_are_true(lines):
    counts = set()
    for line in lines:
        kind, objects = line["metadata"]["type"], line["metadata"]["objects"]
        if len(objects) == 1:
            continue
        first, second = ({each["name"]: each for each in listed} for listed in objects)
        changes = []
        for name, each in first.items():
            after = second.get(name)
            if after is None:
                changes.append(f"The {name} was removed.")
            elif after["colour"] != each["colour"]:
                changes.append(f"The {name} changed from {each['colour']} to {after['colour']}.")
            elif after["bbox"] != each["bbox"]:
                changes.append(
                    f"The {name} moved from the {place_of(each['bbox'])} to the {place_of(after['bbox'])}."
                )
        assert second.keys() <= first.keys() and second
        counts.add(len(changes))
        if kind == "list":
            listed = [f"{number}. {sentence}" for number, sentence in enumerate(changes, 1)]
            assert line["answer"].splitlines() == (
                listed or ["There are no differences between the two images."]
            )
        else:
            assert line["answer"] == ("yes" if (kind == "different") == bool(changes) else "no")
            assert line["polarity"] == kind
    assert counts == {0, 1, 2, 3}


def test_a_counterfactual_differs_in_its_regions_alone_and_makes_its_own_answer_true(folder, lines):
    for line in lines:
        metadata = line["metadata"]
        if "counterfactual" not in metadata:
            continue
        [name] = metadata["counterfactual"]
        before, after = pixels(folder, line["images"][0]), pixels(folder, name)
        outside = np.ones(before.shape[:2], bool)
        for region in line["regions"]:
            assert region["image"] == 0
            x, y, width, height = region["box"]
            outside[y : y + height, x : x + width] = False
        assert (before == after)[outside].all() and (before != after).any()

        changed = [each["box"] for each in line["regions"]]
        objects = metadata["objects"][0]
        kept = [each for each in objects if each["bbox"] not in changed]
        otherwise = [each for each in objects if each["bbox"] in changed]
        if metadata["type"] == "exist" and line["answer"] == "no":
            name = next(word for word in re.findall(r"\w+", line["question"]) if word in THINGS)
            otherwise = [{"name": name, "bbox": changed[0], "colour": colour_in(after, changed[0])}]
        elif metadata["type"] in ("exist", "count"):
            otherwise = []
        elif metadata["type"] == "where":
            otherwise = [{**otherwise[0], "bbox": changed[1]}]
        else:
            otherwise = [{**otherwise[0], "colour": colour_in(after, changed[0])}]
        assert metadata["counterfactual_answer"] == true_answer(line, kept + otherwise), line["id"]
        assert metadata["counterfactual_answer"] != line["answer"]


def test_images_of_a_pair_differ_in_its_regions_alone(folder, lines):
    for line in lines:
        if len(line["images"]) == 1:
            continue
        first, second = (pixels(folder, name) for name in line["images"])
        outside = np.ones(first.shape[:2], bool)
        for region in line["regions"]:
            x, y, width, height = region["box"]
            outside[y : y + height, x : x + width] = False
        assert (first == second)[outside].all()
        assert (first != second).any() == bool(line["regions"])


def test_things_are_drawn_as_grid_sample_draws_them():
    """The real model was trained on images that torch drew."""
    with Image.open(SHEET) as file:
        sheet = (
            np.asarray(file).reshape(8, 64, 8, 64, 2).transpose(0, 2, 1, 3, 4).reshape(64, 64, 64, 2) / 255
        )
    for seed in range(6):
        scene = draw_scene(np.random.default_rng(seed), 3)
        down = torch.linspace(0, 1, 192, dtype=torch.float64)[None, :, None]
        ends = [torch.tensor(each, dtype=torch.float64)[:, None, None] for each in (scene.top, scene.bottom)]
        canvas = (ends[0] * (1 - down) + ends[1] * down).expand(3, 192, 192)
        for thing in scene.things:
            shade, opacity = torch.from_numpy(sheet[THINGS.index(thing.name)]).permute(2, 0, 1)
            light = 0.45 + 0.55 * shade
            colour = torch.tensor(COLOURS[thing.colour], dtype=torch.float64)[:, None, None] / 255
            sprite = torch.cat([(1.1 * light).clamp(max=1) * colour * 0.85 + 0.15 * light, opacity[None]])
            half = thing.side / 192
            x = (thing.cell % GRID - 1) * 0.64 + thing.shift[0] / 96
            y = (thing.cell // GRID - 1) * 0.64 + thing.shift[1] / 96
            theta = torch.tensor([[[1 / half, 0, -x / half], [0, 1 / half, -y / half]]], dtype=torch.float64)
            grid = torch.nn.functional.affine_grid(theta, [1, 4, 192, 192], align_corners=False)
            [spread] = torch.nn.functional.grid_sample(sprite[None], grid, align_corners=False)
            canvas = canvas * (1 - spread[3:]) + spread[:3] * spread[3:]
        expected = (canvas.clamp(0, 1) * 255).permute(1, 2, 0).numpy()
        assert np.abs(render(scene) - expected).max() < 0.51, seed


def test_numbers_of_differences_are_those_asked_for(tmp_path):
    file = make_things(tmp_path / "made", n=6, seed=1, differences=(3, 3))
    samples = load_samples(file)
    assert {each.metadata["num_differences"] for each in samples if len(each.images) == 2} == {3}
    with pytest.raises(InputError, match="differences 0-4"):
        make_things(tmp_path / "more", n=1, seed=1, differences=(0, 4))


def test_spd_faith_reads_the_pairs(folder, lines):
    truth = SpdFaith().read(folder / "samples.jsonl")
    listed = {
        line["id"][:4]: line["metadata"]["differences"] for line in lines if line["id"].endswith("-list")
    }
    assert [pair.id for pair in truth.pairs] == list(listed)
    for pair in truth.pairs:
        assert [(each.type, each.before, each.after) for each in pair.differences] == [
            (each["type"], each["before"], each["after"]) for each in listed[pair.id]
        ]
    assert {kind for _, kind in truth.questions.values()} == {"same", "different", "list", "find"}


def make_false(difference, differences):
    """A difference of the same type that is not there: another value after it, or another thing that is removed."""
    named = {each["category"] for each in differences}
    if difference["type"] == "remove":
        thing = next(each for each in THINGS if each not in named)
        return f"The {thing} was removed."
    values = PLACES if difference["type"] == "position" else list(COLOURS)
    other = next(each for each in values if each not in (difference["before"], difference["after"]))
    description = difference["description"]
    return description.removesuffix(f"{difference['after']}.") + f"{other}."


def test_spd_faith_judges_each_true_sentence_true_and_each_false_one_false(folder, lines):
    """Nouns that COCO lacks, places and colours; one sentence of a change, and all of a pair."""
    benchmark = SpdFaith()
    truth = benchmark.read(folder / "samples.jsonl")
    listed = {
        line["id"][:4]: line["metadata"]["differences"] for line in lines if line["id"].endswith("-list")
    }
    kinds = set()
    for is_true in (True, False):
        responses = []
        for pair, differences in listed.items():
            told = [each["description"] if is_true else make_false(each, differences) for each in differences]
            told = told or ["There are no differences." if is_true else "The balloon was removed."]
            responses.append({"id": pair, "question_type": "list", "response": "\n".join(told)})
            responses.append({"id": pair, "question_type": "find", "response": told[0]})
            verdict = "No, the two images are not the same. " if differences or not is_true else "Yes. "
            responses.append({"id": pair, "question_type": "same", "response": verdict + " ".join(told)})
            kinds |= {each["type"] for each in differences}
        _, records = score_by_rules(truth.pairs, responses)
        errors = [
            error for record in records for own in record["answers"].values() for error in own["errors"]
        ]
        assert len(errors) > 60 and {error is None for error in errors} == {is_true}
        labels = benchmark.label(truth, records)
        assert len(labels) > 40 and set(labels.values()) == {is_true}
    assert kinds == {"position", "remove", "color"}
