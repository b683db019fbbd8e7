"""Colours of things in photographs: what answers claim of them, and whether the claims follow where things get other colours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.asked import drive
from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import PALETTE, name_colour
from mmprobe.benchmarks.photo_pairs.masks import decode_mask, dilate, encode_mask
from mmprobe.benchmarks.photo_pairs.planner import Rules
from mmprobe.contents import DeclaredObject, list_objects
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.battery.misperceives import MOST_ALTERED, ask_altered, plan_alterations
from mmprobe.diagnosis.battery.quantity import find_counted
from mmprobe.diagnosis.claims import AttributeClaim, measure_attributes, read_contents
from mmprobe.diagnosis.photographs import find_mask
from mmprobe.diagnosis.schedule import Say
from mmprobe.diagnosis.truth import judge_answer
from mmprobe.samples import Sample

SIZE = (96, 128)
RGB = {
    "red": (200, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 60, 200),
    "yellow": (230, 220, 60),
    "gray": (120, 120, 120),
}
ASKED = "What color is the car?"
PLACES = {"car": (6, 8, 30, 22), "dog": (70, 10, 24, 24), "bowl": (40, 60, 26, 20)}  # x, y, width, height


def ellipse(x: int, y: int, width: int, height: int) -> np.ndarray:
    """Return the mask of an ellipse in a box."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    return ((columns - x - width / 2) / (width / 2)) ** 2 + ((rows - y - height / 2) / (height / 2)) ** 2 < 1


def take_photograph(
    folder, name: str, colours: dict[str, str], form: str = "polygon"
) -> tuple[Any, list[dict[str, Any]]]:
    """Write a photograph of textured things on a textured ground, and return its file and the annotations.

    Args:
        form: of the segmentation: polygon, runs, or box for none.
    """
    rng = np.random.default_rng(sum(map(ord, name)))
    pixels = rng.integers(135, 185, (*SIZE, 3))
    things = []
    for thing, colour in colours.items():
        box = PLACES[thing]
        mask = ellipse(*box)
        pixels[mask] = (np.array(RGB[colour]) * rng.uniform(0.85, 1, (*SIZE, 1)))[mask]
        angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        polygon = np.stack(
            [box[0] + box[2] / 2 * (1 + np.cos(angles)), box[1] + box[3] / 2 * (1 + np.sin(angles))], 1
        )
        segmentation = {
            "polygon": [polygon.round(2).ravel().tolist()],
            "runs": encode_mask(mask),
            "box": None,
        }[form]
        things.append({"category": thing, "bbox": list(box), "colour": colour, "segmentation": segmentation})
    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}.png")
    return folder / f"{name}.png", things


def photograph(
    folder, name: str = "a", question: str = ASKED, form: str = "polygon", **colours: str
) -> Sample:
    file, things = take_photograph(folder, name, colours or {"car": "red", "dog": "blue"}, form)
    return Sample(id=name, images=[file], question=question, metadata={"objects": things})


def wrongly(true: str, attribute: str = "colour") -> AttributeClaim:
    """Return a wrong claim about what is true."""
    return AttributeClaim(attribute=attribute, source="things", said="", true=true, wrong=True)


def answered(sample: Sample, text: str) -> ParsedAnswer:
    return ParsedAnswer(sample, [1], text, [text])


def claimed(sample: Sample, text: str) -> list[tuple[str, str, bool]]:
    return [(each.said, each.true, each.wrong) for each in measure_attributes(sample, text)]


CAR_IS_BLUE, CAR_IS_RED = [("blue", "red", True)], [("red", "red", False)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A blue car is parked on the street.", CAR_IS_BLUE),
        ("You can see a small blue sports car near a tree.", CAR_IS_BLUE),
        ("The car is blue.", CAR_IS_BLUE),
        ("The car is dark blue, and a tree stands beside it.", CAR_IS_BLUE),
        ("The automobile in the foreground is painted blue.", CAR_IS_BLUE),
        ("The car's color is blue.", CAR_IS_BLUE),
        ("The colour of the car is blue.", CAR_IS_BLUE),
        ("There is a car, which is light blue.", CAR_IS_BLUE),
        ("The car has a blue color.", CAR_IS_BLUE),
        ("The car is navy blue.", CAR_IS_BLUE),
        ("Blue.", CAR_IS_BLUE),
        ("blue", CAR_IS_BLUE),
        ("It is blue.", CAR_IS_BLUE),
        ("**Blue**", CAR_IS_BLUE),
        ("<think>The car is green.</think>It's a dark red.", CAR_IS_RED),
        ("Bright red", CAR_IS_RED),
        ("The sedan is a dark red convertible.", CAR_IS_RED),
        ("The car is red, and the puppy is green.", [*CAR_IS_RED, ("green", "blue", True)]),
        ("A green dog sits beside the red car.", [("green", "blue", True), *CAR_IS_RED]),
        ("The car is green with white stripes.", []),
        ("A red and white car.", []),
        ("The car is red and white.", []),
        ("Red or blue.", []),
        ("The car is not blue.", []),
        ("The car might be blue.", []),
        ("Is the car blue?", []),
        ("There is no blue car in the picture.", []),
        ("I think that there is a blue car.", CAR_IS_BLUE),
        ("Is that a blue car?", []),
        ("A blue car or a blue bus is parked there.", []),
        ("The street is empty. Blue.", []),
        ("**Answer:** Blue", CAR_IS_BLUE),
        ("I'm not sure, blue.", []),
        ("Two blue cars.", []),
        ("A blue car and a green car.", []),
        ("A blue and a green car.", []),
        ("The blue car door is open.", []),
        ("The man's car is blue.", []),
        ("The sky is blue.", []),
        ("The car is parked beside a blue wall.", []),
        ("The car is behind a blue truck.", [("truck", "", True)]),
        ("Maroon.", []),  # a shade that some call red
        ("The car is fast.", []),
        ("", []),
    ],
)  # fmt: skip
def test_colours_are_claimed_in_the_words_that_models_write(tmp_path, text, found):
    assert claimed(photograph(tmp_path), text) == found


@pytest.mark.parametrize(
    ("question", "is_read"),
    [
        (ASKED, True),
        ("What is the colour of the automobile?", True),
        ("Which color is the car on the left?\nAnswer with a single word.", True),
        ("What is the car's color?", True),
        ("What color is the car door?", False),
        ("What color is the man's shirt?", False),
        ("What color are the car and the dog?", False),
        ("What color are the cars?", False),
        ("Is the car new?", False),
        ("Describe the image.", False),
    ],
)
def test_a_colour_alone_answers_a_question_for_the_color_of_one_thing(tmp_path, question, is_read):
    sample = photograph(tmp_path, question=question)
    assert claimed(sample, "It's blue.") == (CAR_IS_BLUE if is_read else [])


def test_two_things_of_a_name_and_things_without_a_colour_are_not_claimed(tmp_path):
    sample = photograph(tmp_path)
    car, dog = sample.metadata["objects"]

    def listing(*objects: Any) -> Sample:
        return sample.model_copy(update={"metadata": {"objects": list(objects)}})

    for twin in ("car", {"category": "van", "bbox": [0, 0, 5, 5]}, car | {"iscrowd": 1}):
        found = claimed(listing(car, twin, dog), "The car is blue, and the dog is green.")
        assert found == [("green", "blue", True)], twin
    assert claimed(listing(car | {"iscrowd": 1}, dog), "The car is blue.") == [], (
        "a crowd may have all colours"
    )
    assert claimed(listing(car | {"colour": None}), "The car is blue.") == []
    assert claimed(listing(car | {"colour": "checkered"}), "The car is blue.") == []
    assert claimed(listing(car | {"colour": "Dark grey"}), "The car is gray.") == [("gray", "gray", False)]
    assert claimed(listing(car | {"colour": "Dark grey"}), "The car is black.") == [("black", "gray", True)]
    named = listing({"name": "gizmo", "colour": "teal"}, car)
    assert claimed(named, "A red gizmo.") == [("red", "teal", True)], "a name that COCO lacks"
    assert claimed(named, "A green gizmo.") == [], "some call teal green"
    assert claimed(named, "A blue truck.") == [], "the gizmo may be a truck"


def test_in_two_images_a_claim_is_about_the_image_that_it_names(tmp_path):
    first, things = take_photograph(tmp_path, "first", {"car": "red", "dog": "blue"})
    second, others = take_photograph(tmp_path, "second", {"car": "green", "dog": "blue"})
    fields = {"images": [first, second], "metadata": {"objects": [things, others]}}
    sample = Sample(id="a", question="What is different?", **fields)
    assert claimed(sample, "The car is red.") == [], "in which image?"
    assert claimed(sample, "In the first image, the car is green.") == [("green", "red", True)]
    assert claimed(sample, "Image 2 shows a green car. The first picture has a red one.") == [
        ("green", "green", False)
    ]
    assert claimed(sample, "In the third image, the car is green.") == []
    assert claimed(sample, "The car changed from red to blue.") == [
        ("red", "red", False),
        ("blue", "green", True),
    ]
    assert {each.source for each in measure_attributes(sample, "The car changed from red to blue.")} == {
        "changes"
    }
    asked = sample.model_copy(update={"question": "What color is the car in the second image?"})
    assert claimed(asked, "Red") == [("red", "green", True)]
    assert claimed(asked, "In the first image, it is red.") == []
    assert claimed(asked, "The car in the first image is red.") == [("red", "red", False)]


@pytest.mark.parametrize("form", ["polygon", "runs"])
def test_a_thing_with_a_mask_gets_another_colour_and_nothing_else_changes(tmp_path, form):
    sample = photograph(tmp_path, form=form)
    wrong = [wrongly(colour) for colour in ("gray", "red", "green", "red", "green")]
    (plan,) = plan_alterations([answered(sample, "It is blue.")], wrong, ["colour"])
    assert (plan.before, plan.was, plan.thing.colour) == ("blue", "red", "green"), (
        "gray is not in the palette, red is true"
    )
    assert plan.contents == [[("green", "car", None), ("blue", "dog", None)]]
    own = np.asarray(Image.open(sample.images[0]).convert("RGB"))
    (image,) = plan.draw_images()
    changed = np.asarray(image)
    mask = ellipse(*PLACES["car"])
    assert name_colour(changed, mask) == "green" and name_colour(own, mask) == "red"
    assert (own != changed).any(2)[~dilate(mask, Rules().margin + 1)].sum() == 0
    center = np.s_[12:26, 14:28]
    texture = [pixels[center].astype(int).sum(2).ravel() for pixels in (own, changed)]
    assert np.corrcoef(*texture)[0, 1] > 0.9


def test_a_neighbour_keeps_its_pixels(tmp_path, monkeypatch):
    monkeypatch.setitem(PLACES, "dog", (34, 8, 24, 22))  # which touches the car
    sample = photograph(tmp_path)
    wrong = [wrongly("green")]
    (plan,) = plan_alterations([answered(sample, "Yellow.")], wrong, ["colour"])
    dog = decode_mask(sample.metadata["objects"][1]["segmentation"], *SIZE)
    own, changed = (
        np.asarray(each) for each in (Image.open(sample.images[0]).convert("RGB"), plan.draw_images()[0])
    )
    only = dog & ~decode_mask(sample.metadata["objects"][0]["segmentation"], *SIZE)
    assert (own[only] == changed[only]).all() and (own != changed).any()


def test_colours_that_do_not_differ_and_things_without_a_mask_are_not_altered(tmp_path):
    sample = photograph(tmp_path)

    def planned(sample: Sample, text: str = "It is blue.", *values: str) -> list[str]:
        claims = [wrongly(value) for value in values or ("green",)]
        return [
            str(each.thing.colour) for each in plan_alterations([answered(sample, text)], claims, ["colour"])
        ]

    assert planned(sample) == ["green"]
    assert planned(sample, "It is blue.", "red") == planned(sample, "It is blue.", "blue") == [], (
        "true, or what is claimed"
    )
    assert planned(sample, "It is blue.", "gray", "white") == [], "no colours of the palette"
    assert planned(sample, "Nice.") == planned(sample, "The dog runs.") == []
    car, dog = sample.metadata["objects"]
    pixels = np.asarray(Image.open(sample.images[0]).convert("RGB")).copy()
    pixels[ellipse(*PLACES["car"])] = (43, 153, 56)  # annotated as red, but as green as the palette's
    Image.fromarray(pixels).save(tmp_path / "green.png")
    assert planned(sample.model_copy(update={"images": [tmp_path / "green.png"]})) == [], (
        "green would change nothing"
    )
    for own in (
        {"segmentation": None, "bbox": None},
        {"segmentation": [[0, 0, 900, 0, 900, 900]]},
        {"segmentation": {"size": [5, 5], "counts": [25]}},
        {"segmentation": {"size": list(SIZE), "counts": [SIZE[0] * SIZE[1]]}},
    ):
        other = sample.model_copy(update={"metadata": {"objects": [car | own, dog]}})
        assert planned(other) == [], own
        assert planned(other, "The car is yellow. The dog is red.") == ["green"], "then the next thing"
    claims = [wrongly("C3", name) for name in ("place", "shape")]
    assert plan_alterations([answered(sample, "It is blue.")], claims, ["place", "shape"]) == []


def test_grabcut_finds_what_is_in_a_box(tmp_path):
    pytest.importorskip("cv2")
    sample = photograph(tmp_path, form="box")
    pixels = np.asarray(Image.open(sample.images[0]).convert("RGB"))
    things = list_objects(sample)
    for thing, place in zip(things, ("car", "dog"), strict=True):
        mask, true = find_mask(pixels, thing), ellipse(*PLACES[place])
        assert (mask & true).sum() / (mask | true).sum() > 0.9
    wrong = [wrongly("green")]
    (plan,) = plan_alterations([answered(sample, "It is blue.")], wrong, ["colour"])
    assert name_colour(np.asarray(plan.draw_images()[0]), ellipse(*PLACES["car"])) == "green"
    large = pixels.repeat(12, 0).repeat(12, 1)
    for thing, place in zip(things, ("car", "dog"), strict=True):
        mask = find_mask(large, thing._replace(box=tuple(12 * side for side in thing.box)))
        true = ellipse(*PLACES[place]).repeat(12, 0).repeat(12, 1)
        assert mask.shape == large.shape[:2] and (mask & true).sum() / (mask | true).sum() > 0.9
    assert find_mask(large, DeclaredObject("car", 0, (9, 9, 2, 1100))) is None, "a line"
    flat = np.full_like(pixels, 150)
    assert find_mask(flat, things[0]) is None, "nothing is in the box"
    flat[20:50, 20:60] = 30
    for box in ((0, 0, SIZE[1], SIZE[0]), (500, 500, 9, 9), (20, 20, 1, 1), (20, 20, 40, 30)):
        assert find_mask(flat, DeclaredObject("car", 0, box)) is None, (
            "it fills the box, or nothing is in or around it"
        )


def test_no_mask_is_told_without_opencv(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    pixels = np.zeros((*SIZE, 3), np.uint8)
    assert find_mask(pixels, DeclaredObject("car", 0, (4, 4, 9, 9))) is None
    with_mask = DeclaredObject("car", 0, None, encode_mask(ellipse(4, 4, 9, 9)))
    assert find_mask(pixels, with_mask).sum() == ellipse(4, 4, 9, 9).sum()


class Looking:
    """A stand-in for a model that says the colour that its first image shows, or another one in its place. Tokens are characters."""

    def __init__(self, exchanged: dict[str, str]):
        self.exchanged, self.tokenizer = exchanged, self

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))

    def look(self, request: Say) -> list[int]:
        thing = re.search(r"the (\w+)", str(request.chat.messages[-1]["content"]))[1]
        colour = name_colour(np.asarray(request.chat.images[0]), ellipse(*PLACES[thing]))
        said = f"The {thing} in the first image is {self.exchanged.get(colour, colour)}."
        return [ord(letter) for letter in said]


@pytest.mark.parametrize(
    ("exchanged", "right"),
    [({}, True), ({"red": "green", "green": "red", "yellow": "blue", "blue": "yellow"}, False)],
)
def test_a_model_that_sees_says_the_new_colour_and_one_that_exchanges_colours_does_not(
    tmp_path, exchanged, right
):
    """Answers about one and about two photographs; images are drawn when they are asked for, each for its own answer."""
    answers = []
    for number in range(MOST_ALTERED + 3):
        thing, colour = (("car", "red"), ("dog", "green"), ("bowl", "yellow"))[number % 3]
        colours = {name: "blue" for name in PLACES} | {thing: colour}
        sample = photograph(
            tmp_path, str(number), f"What color is the {thing} in the first image?", **colours
        )
        if number % 2:
            second, things = take_photograph(tmp_path, f"{number} second", {"car": "gray", "dog": "gray"})
            both = [sample.metadata["objects"], things]
            sample = sample.model_copy(
                update={"images": [*sample.images, second], "metadata": {"objects": both}}
            )
        answers.append(
            answered(sample, f"The {thing} in the first image is {exchanged.get(colour, colour)}.")
        )
    claims = [claim for each in answers for claim in measure_attributes(each.sample, each.text)]
    assert len(claims) == len(answers) and all(claim.wrong != right for claim in claims)
    wrong = [wrongly(value) for value in ("red", "green", "yellow")]
    plans = plan_alterations(answers, wrong, ["colour"])
    assert len(plans) == MOST_ALTERED and {len(each.contents) for each in plans} == {1, 2}
    assert {"red", "yellow"} <= {each.thing.colour for each in plans} <= {"red", "green", "yellow"}
    for each in plans:
        shown = each.draw_images()
        assert len(shown) == len(each.answer.sample.images)
        for path, image in list(zip(each.answer.sample.images, shown, strict=True))[1:]:
            assert (np.asarray(Image.open(path).convert("RGB")) == np.asarray(image)).all()
        assert each.contents[1:] == read_contents(each.answer.sample)[1:]
    model = Looking(exchanged)
    found = [drive(ask_altered(model, each), model.look)[0] for each in plans]
    assert [each["said"] for each in found] == [exchanged.get(each["true"], each["true"]) for each in found]
    assert all((each["said"] == each["true"]) == right for each in found)
    assert all(each["true"] not in (each["was"], each["before"]) for each in found)


def test_what_cannot_be_altered_is_replaced_by_another_answer(tmp_path):
    """Half of the photographs show things whose masks do not fit; only their opening tells."""
    answers = []
    for number in range(2 * MOST_ALTERED):
        sample = photograph(tmp_path, str(number))
        if number % 2 == 0:
            things = [
                each | {"segmentation": {"size": [5, 5], "counts": [25]}}
                for each in sample.metadata["objects"]
            ]
            sample = sample.model_copy(update={"metadata": {"objects": things}})
        answers.append(answered(sample, "It is blue."))
    wrong = [wrongly("green")]
    plans = plan_alterations(answers, wrong, ["colour"])
    assert [each.answer.sample.id for each in plans] == [
        str(number) for number in range(1, 2 * MOST_ALTERED, 2)
    ]
    assert set(PALETTE) >= {each.thing.colour for each in plans}


def test_a_crowd_is_not_counted(tmp_path):
    sample = photograph(tmp_path, question="How many cars are there?")
    car, dog = sample.metadata["objects"]
    assert find_counted(sample).true == 1
    crowd = sample.model_copy(update={"metadata": {"objects": [car | {"iscrowd": 1}, dog]}})
    assert find_counted(crowd) is None
    assert find_counted(crowd.model_copy(update={"question": "How many dogs are there?"})).true == 1


def test_answers_about_photographs_with_listed_changes_are_not_judged_as_drawn(tmp_path):
    """Pairs of photographs have the keys of drawn ones in their metadata."""
    sample = photograph(tmp_path, question="Is the car red?")
    metadata = {
        "type": "same",
        "differences": [],
        "objects": [sample.metadata["objects"], sample.metadata["objects"]],
    }
    pair = sample.model_copy(update={"answer": "Yes.", "metadata": metadata, "images": sample.images * 2})
    assert judge_answer(pair, "Yes, it is.") is True
