"""CHAIR: captions counted by hand, with shapes, COCO's categories and other words."""

from __future__ import annotations

import json
import re

import pytest

from mmprobe.benchmarks.answers.coco import find_objects
from mmprobe.benchmarks.chair.benchmark import Chair, ChairTruth
from mmprobe.benchmarks.chair.data import (
    add_reference_captions,
    published_finder,
    read_captions,
    read_synonyms,
)
from mmprobe.benchmarks.chair.synthetic import find_drawn, read_described
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples


def score(captions, objects, find_mentions):
    samples = [Sample(id=name, question="?") for name in objects]
    return Chair().score(ChairTruth(samples, objects, find_mentions), captions)


def find_pets(text):
    """Find dogs, cats and their synonyms puppy and kitten."""
    names = {"dog": "dog", "puppy": "dog", "cat": "cat", "kitten": "cat", "bus": "bus"}
    return [(names[match[0]], match.span()) for match in re.finditer("|".join(names), text)]


def test_scores_by_hand():
    """Seven mentions, three of them false; two of four captions have one; four true objects, three named."""
    truth = {"1": ["dog"], "2": ["cat", "dog"], "3": [], "4": ["bus"]}
    captions = {
        "1": "A puppy beside a dog and a cat.",  # dog, dog, cat: the cat is false
        "2": "A kitten and a dog.",
        "3": "A bus and a bus.",  # both false
        "4": "Nothing to be seen.",
    }
    metrics, rows = score(captions, truth, find_pets)
    by_hand = {"chair_s": 2 / 4, "chair_i": 3 / 7, "recall": 3 / 4, "names_objects": 3 / 4}
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(by_hand)
    assert metrics["chair_i"].n == 4 and metrics["chair_i"].coverage == 1
    assert metrics["chair_i"].direction == "lower" and metrics["recall"].direction == "higher"
    assert 0 <= metrics["chair_i"].low <= 3 / 7 <= metrics["chair_i"].high <= 1
    assert [row["hallucinated"] for row in rows] == [["cat"], [], ["bus", "bus"], []]
    assert rows[0]["mentions"] == ["dog", "dog", "cat"]


def test_nothing_named_is_undefined_and_no_crash():
    metrics, _ = score({"1": "", "2": "Hmm."}, {"1": ["dog"], "2": []}, find_pets)
    assert metrics["chair_i"].value is None
    assert (metrics["chair_s"].value, metrics["recall"].value, metrics["names_objects"].value) == (0, 0, 0)
    metrics, _ = score({"2": "A dog."}, {"2": []}, find_pets)
    assert (metrics["chair_i"].value, metrics["recall"].value) == (1, None)


def test_missing_and_unknown_captions():
    metrics, rows = score({"1": "A dog."}, {"1": ["dog"], "2": ["cat"]}, find_pets)
    assert (metrics["chair_i"].n, metrics["chair_i"].coverage, metrics["recall"].value) == (1, 0.5, 1)
    assert rows[1]["mentions"] is None
    with pytest.raises(InputError, match="'3' answers no question"):
        score({"3": "A dog."}, {"1": ["dog"]}, find_pets)
    assert {metric.value for metric in score({}, {}, find_pets)[0].values()} == {None}


def test_shapes_are_words_not_parts_of_words():
    text = "Stars, RINGS and crosses start a squared heartbeat; a circle."
    assert [name for name, _ in find_drawn(text)] == ["star", "ring", "cross", "circle"]
    assert [text[start:end] for _, (start, end) in find_drawn(text)][:2] == ["Stars", "RINGS"]


def test_the_synonyms_of_coco_work_here():
    metrics, rows = score(
        {"1": "A man walks two puppies past a couch."}, {"1": ["person", "dog"]}, find_objects
    )
    assert rows[0]["hallucinated"] == ["couch"]
    assert metrics["recall"].value == 1


def test_reads_captions(tmp_path):
    path = tmp_path / "captions.json"
    path.write_text(json.dumps([{"image_id": 42, "caption": "A dog."}, {"image_id": 43, "caption": ""}]))
    assert read_captions(path) == {"42": "A dog.", "43": ""}
    for broken, message in (
        ("{}", "not a JSON list"),
        ("oops", "not JSON that can be read"),
        ('[{"image_id": 1}]', "entry 1: has no"),
        ('[{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]', "entry 2: image 1 has"),
    ):
        path.write_text(broken)
        with pytest.raises(InputError, match=message):
            read_captions(path)
    with pytest.raises(InputError, match="no such file"):
        read_captions(tmp_path / "none.json")


def test_reference_captions_add_to_the_truth(tmp_path):
    path = tmp_path / "captions.json"
    annotations = [{"image_id": 1, "caption": "A kitten."}, {"image_id": 9, "caption": "A bus."}]
    path.write_text(json.dumps({"annotations": annotations}))
    assert add_reference_captions({"1": {"dog"}, "2": set()}, path, find_pets) == {
        "1": {"dog", "cat"},
        "2": set(),
    }
    path.write_text("[]")
    with pytest.raises(InputError, match="not a COCO captions file"):
        add_reference_captions({}, path, find_pets)


def test_the_synthetic_world(tmp_path):
    samples = load_samples(make_pairs(tmp_path / "pairs", n=6, seed=2))
    truth = read_described(samples)
    true = {sample.id: sample.answer for sample in samples if sample.id in truth}
    assert len(truth) == 6
    metrics, _ = score(true, truth, find_drawn)
    assert (metrics["chair_s"].value, metrics["chair_i"].value, metrics["recall"].value) == (0, 0, 1)
    with pytest.raises(InputError, match="asks for a description"):
        read_described([Sample(id="1", question="?")])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([("1", "a.jpg"), ("2", "a.jpg")], "2 images have the file_name 'a.jpg'"),
        ([("1", "a.jpg"), (1, "b.jpg")], "2 images have the id '1'"),
        ([("val 1", "a.jpg")], "an image's id 'val 1' must be"),
        ([("../x", "a.jpg")], "an image's id '../x' must be"),
        ([(-3, "a.jpg")], "an image's id '-3' must be"),
    ],
)
def test_instances_whose_images_cannot_be_told_apart_or_named(images, message, tmp_path):
    content = {"images": [{"id": name, "file_name": file} for name, file in images]}
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content | {"annotations": [], "categories": []}))
    with pytest.raises(InputError, match=message):
        Chair().read(path)


SYNONYMS = """person, girl, boy, people
dog, puppy
hot dog
wine glass
bear, cub
teddy bear, teddy
chair, seat
toilet
tie
train
"""
PUBLISHED = {
    "A girl with two puppies and a dog.": ["person", "dog", "dog"],
    "A hot dog beside wine glasses.": ["hot dog", "wine glass"],
    "A baby bear and a teddy bear.": ["bear", "teddy bear"],
    "There is no dog.": ["dog"],
    "A toilet with its seat up, and a seat.": ["toilet"],
    "The toilet seat is up.": ["toilet"],
    "People in a passenger train wear bow ties.": ["person", "train", "tie"],
    "A bowl of soup.": [],
    "A dog walks on the train tracks.": ["dog"],
}


def test_the_published_rules_with_their_oddities(tmp_path):
    (tmp_path / "synonyms.txt").write_text(SYNONYMS)
    find = published_finder(read_synonyms(tmp_path / "synonyms.txt"))
    for text, categories in PUBLISHED.items():
        assert [category for category, _ in find(text)] == categories, text


def test_the_profile_of_the_code_takes_the_list_of_the_authors(tmp_path):
    (tmp_path / "synonyms.txt").write_text(SYNONYMS)
    data = {
        "images": [{"id": 7, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}],
        "annotations": [{"image_id": 7, "category_id": 1}],
    }
    (tmp_path / "instances_val.json").write_text(json.dumps(data))
    captions = {"annotations": [{"image_id": 7, "caption": "A boy on a toilet seat."}]}
    (tmp_path / "captions_val.json").write_text(json.dumps(captions))
    options = {"profile": "code", "synonyms": str(tmp_path / "synonyms.txt")}
    benchmark = make_benchmark("chair", options)
    truth = benchmark.read(tmp_path)
    assert truth.objects == {"7": {"person", "toilet"}}
    metrics, _ = benchmark.score(truth, {"7": "A girl and a dog. No dog barks."})
    assert (metrics["chair_s"].value, metrics["chair_i"].value) == (1, pytest.approx(2 / 3))
    with pytest.raises(InputError, match="go together"):
        make_benchmark("chair", {"profile": "code"})
    (tmp_path / "synonyms.txt").write_text("dog\n")
    with pytest.raises(InputError, match="lacks its category 'person'"):
        make_benchmark("chair", options).read(tmp_path)
