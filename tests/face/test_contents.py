"""What samples declare of their images: one declaration serves lenses, analyses, the image interchange and the diagnosis."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmprobe.contents import declared_objects, declared_words, named_things, read_differences
from mmprobe.samples import Sample, load_samples

SHOE = {"name": "Shoe", "colour": "orange", "place": "top left", "bbox": [8.5, 9, 40, 20.5]}
LION = {
    "category": "sea lion",
    "color": "Brown",
    "bbox": [60, 9, 40, 20],
    "segmentation": [[1, 2, 3, 4, 5, 6]],
}


def annotated(*images: object, **metadata: object) -> Sample:
    """Return a sample whose images hold these objects."""
    files = [f"{number}.png" for number in range(len(images))]
    return Sample(id="a", images=files, question="?", metadata={"objects": list(images)} | metadata)


def test_annotated_things_have_their_words_and_boxes():
    found = declared_objects(annotated([SHOE, LION, "dog", {"name": "cat"}], [LION]), [(192, 192)] * 2)
    assert [(thing.words, region.image, region.box) for thing, region in found] == [
        ({"colour": "orange", "thing": "shoe"}, 0, (8, 9, 41, 21)),
        ({"colour": "brown", "thing": "sea lion"}, 0, (60, 9, 40, 20)),
        ({"colour": "brown", "thing": "sea lion"}, 1, (60, 9, 40, 20)),
    ]


def test_a_single_image_may_list_its_things_at_once():
    sample = Sample(id="a", images=["a.png"], question="?", metadata={"objects": [SHOE, LION]})
    assert list(named_things(sample, [(192, 192)])) == ["shoe", "sea lion"]


def test_crowds_damaged_boxes_and_further_images_have_no_place():
    entries = [
        SHOE | {"iscrowd": 1},
        SHOE | {"bbox": [1, 2, 3]},
        SHOE | {"bbox": [1, 2, 0, 4]},
        SHOE | {"name": " "},
        3,
    ]
    sample = annotated(entries)
    assert declared_objects(sample, [(192, 192)]) == []
    more = sample.model_copy(update={"metadata": {"objects": [[], [SHOE]]}})
    assert declared_objects(more, [(192, 192)]) == []


def test_the_drawn_world_declares_its_cells():
    sample = annotated(["red star C4", "no object", "a b Z9"])
    assert [(thing.words, region.box) for thing, region in declared_objects(sample, [(112, 112)])] == [
        ({"colour": "red", "thing": "star"}, (56, 84, 28, 28))
    ]


def test_an_answer_is_about_what_differs_before_what_is_there():
    change = {"shape": "Dog", "regions": [{"image": 0, "box": [1, 2, 3, 4]}]}
    both = annotated([SHOE], differences=[change])
    assert {name: [each.box for each in own] for name, own in named_things(both, [(99, 99)]).items()} == {
        "dog": [(1, 2, 3, 4)]
    }
    assert [thing.name for thing, _ in declared_objects(both, [(99, 99)])] == ["shoe"]
    changed = annotated(3, differences=[change])
    assert [(thing.words, region.box) for thing, region in declared_objects(changed, [(99, 99)])] == [
        ({"thing": "dog"}, (1, 2, 3, 4))
    ]


def test_words_come_from_all_declarations():
    words = {"thing": ["Hat"], "mood": ["glad"], "colour": "pink"}
    sample = annotated([SHOE], ["blue heart A4"], words=words, differences=[{"category": "traffic light"}])
    assert declared_words(sample) == {
        "thing": {"shoe", "heart", "hat", "traffic", "light"},
        "colour": {"orange", "blue"},
        "place": {"top", "left", "a4"},
        "verdict": set(),
    }
    assert declared_words(sample.model_copy(update={"polarity": "same"}))["verdict"] == {"yes", "no"}


BOX, OTHER = [0, 0, 9, 9], [10, 10, 5, 5]


def things(*differences: object, regions: list | None = None) -> dict[str, list[tuple[int, tuple]]]:
    """Return image and box of the regions of each thing, of a sample with two images."""
    boxes = [{"image": image, "box": BOX} for image in (0, 1)] if regions is None else regions
    sample = Sample(
        id="a",
        images=["a.png", "b.png"],
        question="?",
        regions=boxes,
        metadata={"differences": list(differences)},
    )
    return {name: [(box.image, box.box) for box in own] for name, own in read_differences(sample).items()}


def test_each_difference_has_its_own_regions():
    one = {"shape": "Star", "regions": [{"image": 1, "box": OTHER}]}
    two = {"category": "traffic light", "box": BOX}
    assert things(one, two) == {
        "star": [(1, tuple(OTHER))],
        "traffic light": [(0, tuple(BOX)), (1, tuple(BOX))],
    }
    assert things(one, one | {"regions": [{"image": 0, "box": BOX}]}) == {
        "star": [(1, tuple(OTHER)), (0, tuple(BOX))]
    }


def test_only_a_single_difference_owns_all_regions():
    assert things({"object": "cat"}) == {"cat": [(0, tuple(BOX)), (1, tuple(BOX))]}
    assert things({"object": "cat"}, {"object": "dog"}) == {"cat": [], "dog": []}
    assert things({"object": "cat", "box": BOX}, {"object": "cat"}) == {"cat": []}, (
        "one of the cats is unknown"
    )


def test_regions_that_the_sample_lacks_or_that_are_malformed_are_unknown():
    damaged = [{"shape": "a", "regions": [{"image": 5, "box": BOX}]}, {"shape": "b", "box": [1, "x"]}]
    assert things(*damaged) == {"a": [], "b": []}


@pytest.mark.parametrize("differences", [2, "two", None, ["a star"], [{"shape": ""}]])
def test_metadata_of_ones_own_need_not_list_differences(differences):
    assert read_differences(Sample(id="a", question="?", metadata={"differences": differences})) == {}


def test_what_is_wrong_with_objects_is_said_when_a_file_is_read(tmp_path, caplog):
    Image.new("RGB", (99, 60)).save(tmp_path / "a.png")
    good = {"name": "dog", "bbox": [0, 0.5, 99.4, 59]}
    for objects, images, word in (
        ([[good, {"name": "dog", "bbox": [0, 0, 60, 99]}]], 1, "99 x 60"),
        ([[{"name": "dog", "bbox": [0, 0, 10]}]], 1, "width, height"),
        ([[{"bbox": [0, 0, 10, 10]}]], 1, "no name"),
        ([[good]], 2, "1 lists for 2"),
        ([[good], "dog"], 2, "lists and others"),
        ([[good]], 1, None),
        ([good], 1, None),
        ([[good], []], 2, None),
        ([["red star B2"], ["blue star A1"]], 1, None),  # a question about one image of a drawn pair
    ):
        caplog.clear()
        line = {"id": "a", "images": ["a.png"] * images, "question": "?", "metadata": {"objects": objects}}
        (tmp_path / "samples.jsonl").write_text(json.dumps(line))
        assert len(load_samples(tmp_path / "samples.jsonl")) == 1
        told = [record.getMessage() for record in caplog.records]
        assert not told if word is None else word in told[0] and "line 1" in told[0], objects
