"""The lexical judge reads the drawn world exactly, the listed sentence forms, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mmprobe.benchmarks.answers.claims import Claim, parse_claims, parse_count
from mmprobe.benchmarks.answers.claims import read_claims as read_all
from mmprobe.benchmarks.synthetic.questions import describe_changes, make_question
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, Edit, ScenePair, draw_pair


def read_claims(text: str) -> list[tuple]:
    return [(claim.type, claim.category, claim.before, claim.after) for claim in parse_claims(text)]


def expected_claim(edit: Edit) -> tuple:
    if edit.after is None:
        return ("remove", edit.before.shape, None, None)
    if edit.type == "color":
        return ("color", edit.before.shape, edit.before.colour, edit.after.colour)
    return ("position", edit.before.shape, edit.before.cell, edit.after.cell)


@pytest.fixture(scope="module")
def pairs() -> list[ScenePair]:
    return [
        draw_pair(np.random.default_rng([5, k]), DIFFICULTIES[k % 3], k % 4) for k in range(400)
    ]  # every number of differences, every difficulty


def test_every_edit_of_the_synthetic_world_is_read_back(pairs: list[ScenePair]) -> None:
    for pair in pairs:
        assert read_claims(describe_changes(pair)) == [expected_claim(edit) for edit in pair.edits]


def test_whole_answers_of_the_synthetic_world_are_read_back(pairs: list[ScenePair]) -> None:
    for pair in pairs:
        for kind in ("same", "different", "steps"):
            assert read_claims(make_question(kind, pair).answer) == [
                expected_claim(edit) for edit in pair.edits
            ], make_question(kind, pair).answer
        assert read_claims(make_question("describe", pair).answer) == []
        assert read_claims(make_question("count", pair).answer) == []
        assert parse_count(make_question("count", pair).answer) == len(pair.edits)


def test_nothing_is_negated_in_the_synthetic_world(pairs: list[ScenePair]) -> None:
    claims = [claim for pair in pairs for claim in parse_claims(describe_changes(pair))]
    assert len(claims) == 600
    assert not any(claim.negated or claim.quantity for claim in claims)


REMOVED = [
    "In the second picture the dog is gone.",
    "The dog has been removed.",
    "The dog is no longer visible in the second image.",
    "There is no longer a dog on the sofa.",
    "There is no dog in the modified image.",
    "The second image is missing the dog.",
    "The second picture does not have a dog.",
    "The dog that was on the couch in the first image has disappeared.",
    "The dog is present in the first image but not in the second.",
    "A puppy appears only in the first picture.",
    "In the second image, the dog next to the car isn't there.",
    "Removed: dog",
    "- **Dog** (removed)",
    "1. Type: removal, Category: dog",
    "(remove, dog)",
    '```json\n[{"type": "remove", "category": "dog"}]\n```',
    "| remove | dog |",
    "The first image shows a dog on the bed. In the second image it is missing.",
    "Removed objects:\n- dog",
    "There's no dog in the second photo.",
    "Only the first image has a dog.",
    "There used to be a dog on the couch, but it's gone now.",
    "I cannot find a dog in image 2.",
    "You can see the dog in the first picture, but you can't see it in the second.",
    "Everything is identical except that the dog is gone.",
    "The dog being walked by the woman has been removed.",
    "The removed object is the dog.",
    "Type: object removal\nObject category: dog",
]


@pytest.mark.parametrize("text", REMOVED)
def test_a_removal_in_plain_english_is_right_or_unread(text: str) -> None:
    assert read_claims(text) in ([("remove", "dog", None, None)], [])


RECOLOURED = [
    "The car's colour changed from red to blue.",
    "The car changed color from red to blue",
    "the red car turned blue",
    "The red car is now blue.",
    "The car was red and is now blue.",
    "In the first image the car is red, while in the second image it is blue.",
    "In the first image, the car is red. In the second image, the car is blue.",
    "The car is blue instead of red.",
    "The color of the car: red → blue",
    "Yes. The color of the car next to the bus has changed from red to blue.",
    '{"type": "color", "category": "car", "before": "red", "after": "blue"}',
    "The automobile has been recolored from red to blue.",
    "The car is blue, not red.",
    "The car (red in image 1) is blue in image 2.",
    "The car looks blue in Image B vs. red in Image A.",
    "The second image shows a blue car where the first shows a red car.",
    "There is a red car in the first image. There is a blue car in the second image.",
    "The car was originally red but is now blue.",
    "**Color change**: The car is red in the first image but blue in the second.",
    "The car in the second picture is blue, whereas in the first picture it is red.",
]


@pytest.mark.parametrize("text", RECOLOURED)
def test_a_change_of_colour_in_plain_english_is_right_or_unread(text: str) -> None:
    assert read_claims(text) in ([("color", "car", "red", "blue")], [("color", "car", None, "blue")], [])


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("The dog has been removed.", [("remove", "dog", None, None)]),
        ("The dog is gone.", [("remove", "dog", None, None)]),
        ("The puppy disappeared in the second image.", [("remove", "dog", None, None)]),
        ("The dog and the cat were removed.", [("remove", "dog", None, None), ("remove", "cat", None, None)]),
        ("The old dog on the left was removed.", [("remove", "dog", None, None)]),
        ("The black and white cat was removed.", [("remove", "cat", None, None)]),
        ("The curtain was removed.", [("remove", "curtain", None, None)]),
        ("The car changed color from red to blue", [("color", "car", "red", "blue")]),
        ("The color of the car changed from red to blue.", [("color", "car", "red", "blue")]),
        ("The red car turned blue.", [("color", "car", "red", "blue")]),
        ("The cup moved from the left side to the right side.", [("position", "cup", "left", "right")]),
        ("The cup was moved to the upper left.", [("position", "cup", None, "top left")]),
        ("Here are the differences:\n1. Removed: dog\n2. Cup: moved", [("remove", "dog", None, None), ("position", "cup", None, None)]),
        ("I compare them.\nAnswer: The dog was removed.", [("remove", "dog", None, None)]),
        ('{"differences": [{"type": "color", "category": "car"}]}', [("color", "car", None, None)]),
    ],
)  # fmt: skip
def test_the_listed_sentence_forms_are_read(text: str, claims: list[tuple]) -> None:
    assert read_claims(text) == claims


def test_claims_count_beside_a_sentence_in_prose_unless_it_takes_them_back() -> None:
    reading = read_all("The dog was removed. The mood is calmer.")
    assert [claim.category for claim in reading.claims] == ["dog"]
    assert reading.unread == ["The mood is calmer."] and not reading.nothing
    taken_back = read_all("The dog was removed. Wait, it is behind the tree.")
    assert taken_back.claims == [] and len(taken_back.unread) == 1
    assert not read_all("Nothing changed. The mood is calmer.").nothing
    assert parse_claims("The dog was removed. The mood is calmer.") == [], "as a description it is unread"
    assert read_all("No. Nothing changed.").nothing and not read_all("Nothing new.").nothing


def test_the_number_of_objects_is_claimed() -> None:
    assert [claim.quantity for claim in parse_claims("Two dogs and the cat were removed.")] == [2, None]


@pytest.mark.parametrize(
    "text",
    [
        "The car did not change color.",
        "The car wasn't removed.",
        "The color of the car is the same in both images.",
        "The dog was replaced by a cat.",
        "The man moved to Paris.",
        "The dog was removed from its leash.",
        "The dog may have been removed.",
        "The dog or the cat was removed.",
        "The image was removed.",
        "The dog is not only in the first image.",
        "Dog: the leash is gone.",
        "The salt and pepper shaker was removed.",
        "System: new task.",
    ],
)
def test_denials_and_other_changes_are_unread(text: str) -> None:
    assert parse_claims(text) == [] and read_all(text).unread


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n\n ",
        "Nothing changed.",
        "Yes.",
        "No. The two pictures are the same.",
        "There are 3 differences.",
        "Was the dog removed?",
        "I will check whether the car changed color.",
        "Both images show a dog on a couch and a red car.",
        "<div><br/></div>",
        "**__``__**",
        "| --- | --- |",
        "狗在第二张图片中消失了。气氛更温馨。",
        "Der Hund wurde entfernt. Das Auto ist jetzt blau.",
        "😀" * 50,
    ],
)
def test_answers_that_claim_nothing(text: str) -> None:
    assert parse_claims(text) == []


def test_the_same_change_of_two_things_is_two_claims() -> None:
    assert len(read_claims("1. The bus changed color.\n2. The bus changed color.")) == 2
    assert len(read_claims("A dog was removed. Another dog was removed.")) == 2
    assert len(read_claims("The dog on the left is gone. The dog on the right is gone.")) == 2
    assert len(read_claims("The car turned blue. The car turned green.")) == 2


def test_markup_does_not_hide_a_claim() -> None:
    text = "### Differences:\n\n* **The <b>dog</b>** was `removed`.\n* The car changed from *red* to __blue__"
    assert read_claims(text) == [("remove", "dog", None, None), ("color", "car", "red", "blue")]


def test_a_claim_carries_its_sentence() -> None:
    assert parse_claims("1. The dog is gone.")[0] == Claim("remove", "dog", text="The dog is gone.")


@pytest.mark.slow
def test_an_endless_answer_takes_time_in_proportion() -> None:
    for text in ("The dog was removed. " * 5_000, "the dog and " * 8_000, "was removed " * 8_000, "(" * 20_000,
                 "color " * 12_000, "1. " * 25_000, "red to " * 12_000, "not " * 20_000, "{" * 50_000):  # fmt: skip
        start = time.process_time()
        assert len(parse_claims(text)) <= text.count("was removed.") + 1
        parse_count(text)
        assert time.process_time() - start < 5, text[:20]


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("In the second image, the dog is missing.", [("remove", "dog", None, None)]),
        ("After comparing the images, I noticed that the cup is no longer there.", [("remove", "cup", None, None)]),
        ("There is a cat in the first image, but not in the second.", [("remove", "cat", None, None)]),
        ("The second image lacks the bicycle.", [("remove", "bicycle", None, None)]),
        ("The clock on the wall is no longer present.", [("remove", "clock", None, None)]),
        ("In the first image, the car is red, while in the second image it is blue.", [("color", "car", "red", "blue")]),
        ("The car's color changed from red to blue.", [("color", "car", "red", "blue")]),
        ("- **Moved:** The cat has moved from the left to the right.", [("position", "cat", "left", "right")]),
        ("<think>Was it red?</think><CONCLUSION> The dog is gone. </CONCLUSION>", [("remove", "dog", None, None)]),
        ("In the first image, the dog is missing.", [(None, "dog", None, None)]),
        ("The dog is missing from the first image.", [(None, "dog", None, None)]),
        ("A dog was added in the second image.", [(None, "dog", None, None)]),
        ("A puppy appears only in the first picture.", [("remove", "dog", None, None)]),
        ("The car is red in the second image and blue in the first image.", [("color", "car", "blue", "red")]),
        ("The dog is not missing in the second image.", []),
        ("There is no cat in the first image, but not in the second.", []),
    ],
)  # fmt: skip
def test_differences_in_ordinary_prose(text: str, claims: list[tuple]) -> None:
    assert read_claims(text) == claims


def test_an_unknown_object_or_type_in_data_is_a_claim() -> None:
    listed = '[{"type": "remove", "category": "dog"}, {"type": "remove", "category": "lamp"}, {"type": "added", "category": "cat"}]'
    assert read_claims(listed) == [
        ("remove", "dog", None, None),
        ("remove", "lamp", None, None),
        (None, "cat", None, None),
    ]
    assert read_claims('[{"type": "remove"}]') == []
