"""POPE: official files, questions by hand-checked rules, and scores computed by hand."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from mmprobe.benchmarks.answers.coco import read_coco_objects
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.pope.benchmark import Pope
from mmprobe.benchmarks.pope.data import SETTINGS, read_pope, read_pope_answers
from mmprobe.benchmarks.pope.synthetic import draw_pope, draw_synthetic_pope
from mmprobe.benchmarks.synthetic.pairs import make_pairs, read_synthetic_objects
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

ROWS = [
    {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"},
    {"question_id": 2, "image": "a.jpg", "text": "Is there an oven in the image?", "label": "no"},
]
OBJECTS = {
    "1.jpg": ["dog", "cat", "sofa", "dog"],
    "2.jpg": ["dog", "cat", "bus"],
    "3.jpg": ["dog", "car"],
    "4.jpg": ["bus", "car"],
    "5.jpg": [],
}


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def question(name, label, setting=None):
    return Sample(id=name, question="Is there a dog?", answer=label, metadata={"setting": setting})


def test_reads_an_official_file(tmp_path):
    samples = read_pope(lines(tmp_path / "coco_pope_popular.json", ROWS))
    assert [(sample.id, sample.question, sample.answer) for sample in samples] == [
        ("1", "Is there a dog in the image?", "yes"),
        ("2", "Is there an oven in the image?", "no"),
    ]
    assert samples[0].metadata == {"setting": "popular", "image": "a.jpg"}
    assert samples[0].images == []


def test_reads_a_folder_of_all_settings_with_images(tmp_path):
    for setting in SETTINGS:
        lines(tmp_path / f"coco_pope_{setting}.json", ROWS)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.jpg")
    samples = read_pope(tmp_path, images=tmp_path)
    assert [sample.id for sample in samples] == [
        f"{setting}-{number}" for setting in sorted(SETTINGS) for number in (1, 2)
    ]
    assert {tuple(sample.images) for sample in samples} == {(tmp_path / "a.jpg",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no lines"),
        ("[1]\n", "line 1: Input should be a valid dictionary"),
        ("{oops\n", "line 1: not JSON"),
        (json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[0]) + "\n", "line 2: question_id 1 was used"),
        (json.dumps(ROWS[0] | {"label": "maybe"}), "line 1: field 'label': Input should be 'yes' or 'no'"),
        (
            json.dumps({"question_id": 1, "image": "a.jpg", "label": "no"}),
            "line 1: field 'text': Field required",
        ),
        (json.dumps(ROWS[0] | {"question_id": "../x"}), "line 1: field 'id': must be"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path, text, message):
    path = tmp_path / "pope_random.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_pope(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_and_images(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_pope(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="file such"):
        read_pope(tmp_path)
    with pytest.raises(InputError, match=r"a\.jpg.*no such file"):
        read_pope(lines(tmp_path / "pope_random.json", ROWS), images=tmp_path)
    lines(tmp_path / "again_random.json", ROWS)
    with pytest.raises(InputError, match="file of random"):
        read_pope(tmp_path)


def test_official_answers_go_by_order(tmp_path):
    samples = read_pope(lines(tmp_path / "q_random.json", ROWS))
    answers = [{"question": row["text"], "answer": answer} for row, answer in zip(ROWS, "YN", strict=True)]
    assert read_pope_answers(lines(tmp_path / "a.json", answers), samples) == {"1": "Y", "2": "N"}
    with pytest.raises(InputError, match="1 answers to 2 questions"):
        read_pope_answers(lines(tmp_path / "a.json", answers[:1]), samples)
    with pytest.raises(InputError, match="line 1: answers another question"):
        read_pope_answers(lines(tmp_path / "a.json", answers[::-1]), samples)
    with pytest.raises(InputError, match="line 2: field 'answer'"):
        read_pope_answers(lines(tmp_path / "a.json", [answers[0], {"answer": 3}]), samples)


def objects_asked(rows, image):
    """Return the positives and the negatives of an image, in order."""
    image_rows = [row for row in rows if row["image"] == image]
    objects = [row["text"].removeprefix("Is there a").removeprefix("n").strip(" ?") for row in image_rows]
    assert [row["label"] for row in image_rows] == ["yes", "no"] * (len(image_rows) // 2)
    return objects[::2], objects[1::2]


def test_popular_negatives_by_hand():
    """Number of images that show an object: dog 3, bus 2, car 2, cat 2, sofa 1 (a repeated dog counts once)."""
    rows = draw_pope(OBJECTS, "popular", per_image=2, template="Is there a {}?")
    assert [row["question_id"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["image"] for row in rows} == {"1.jpg", "2.jpg", "3.jpg", "4.jpg"}
    assert objects_asked(rows, "1.jpg")[1] == ["bus", "car"]
    assert objects_asked(rows, "2.jpg")[1] == ["car", "sofa"]
    assert objects_asked(rows, "3.jpg")[1] == ["bus", "cat"]
    assert objects_asked(rows, "4.jpg")[1] == ["dog", "cat"]


def test_adversarial_negatives_by_hand():
    """The car shares images with dog 1 and bus 1; the bus with cat 1, dog 1 and car 1."""
    rows = draw_pope(OBJECTS, "adversarial", per_image=2, template="Is there a {}?")
    positives, negatives = objects_asked(rows, "4.jpg")
    assert set(positives) == {"bus", "car"}
    after = {("bus", "car"): ["cat", "dog"], ("car", "bus"): ["dog", "cat"]}
    assert negatives == after[tuple(positives)]
    rows = draw_pope(OBJECTS, "adversarial", per_image=1, template="Is there a {}?")
    for image, expected in {"1.jpg": {"dog": {"bus"}, "cat": {"bus"}, "sofa": {"bus", "car"}}}.items():
        (positive,), (negative,) = objects_asked(rows, image)
        assert negative in expected[positive]  # no absent object shares an image with the sofa: one is drawn


@pytest.mark.parametrize("setting", SETTINGS)
def test_questions_are_true_balanced_and_repeatable(setting):
    rng = np.random.default_rng(0)
    names = [f"thing{number}" for number in range(12)]
    objects = {f"{k}.jpg": rng.permutation(names)[: rng.integers(0, 11)].tolist() for k in range(60)}
    rows = draw_pope(objects, setting, seed=3, template="Is there a {}?")
    by_image = Counter(row["image"] for row in rows)
    assert set(by_image.values()) == {6}
    assert set(by_image) == {name for name, shown in objects.items() if 3 <= len(shown) <= 9}
    for image in by_image:
        positives, negatives = objects_asked(rows, image)
        assert len({*positives, *negatives}) == 6
        assert set(positives) <= set(objects[image])
        assert not set(negatives) & set(objects[image])
    assert rows == draw_pope(objects, setting, seed=3, template="Is there a {}?")
    assert rows != draw_pope(objects, setting, seed=4, template="Is there a {}?")
    assert len(draw_pope(objects, setting, limit=5)) == 30
    random = draw_pope(objects, "random", seed=3, template="Is there a {}?")
    assert [row["text"] for row in rows[::2]] == [row["text"] for row in random[::2]]


@pytest.mark.slow
def test_random_negatives_are_spread_evenly():
    objects = {f"{k}.jpg": ["a", "b", "c"] for k in range(2000)} | {"all.jpg": list("defgh")}
    rows = draw_pope(objects, "random", template="Is there a {}?")
    counts = Counter(obj for image in objects if image != "all.jpg" for obj in objects_asked(rows, image)[1])
    assert set(counts) == set("defgh")
    assert max(abs(count - 1200) for count in counts.values()) < 5 * math.sqrt(2000 * 0.24)


def test_articles_and_bad_settings():
    texts = {row["text"] for row in draw_pope({"1": ["oven"], "2": ["dog"]}, "random", per_image=1)}
    assert texts == {"Is there an oven in the image?", "Is there a dog in the image?"}
    with pytest.raises(InputError, match="random, popular, adversarial"):
        draw_pope(OBJECTS, "hard")
    with pytest.raises(InputError, match="no image shows 3 objects"):
        draw_pope({"1": ["dog"]}, "random")


def test_objects_of_coco(tmp_path):
    data = {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [{"image_id": 7, "category_id": category, "iscrowd": 0} for category in (18, 1, 18)],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(data))
    assert read_coco_objects(path) == {"a.jpg": {"dog", "person"}, "b.jpg": set()}
    assert read_coco_objects(path, key="id") == {"7": {"dog", "person"}, "9": set()}
    for broken in (
        "{}",
        "[]",
        "no",
        json.dumps(data | {"annotations": [{"image_id": 8, "category_id": 18}]}),
    ):
        path.write_text(broken)
        with pytest.raises(InputError, match="not a COCO instances file"):
            read_coco_objects(path)


# 3 true positives, 1 false positive, 2 true negatives, 1 false negative, one unknown of each label
LABELS = ["yes", "yes", "yes", "no", "no", "no", "yes", "yes", "no"]
ANSWERS = ["Yes.", "yes", "**YES**, clearly", "Yes", "No.", "no", "No", "Perhaps", ""]


def test_scores_by_hand():
    samples = [question(str(place), label) for place, label in enumerate(LABELS)]
    metrics, rows = Pope().score(samples, {str(place): answer for place, answer in enumerate(ANSWERS)})
    by_hand = {
        "accuracy": 5 / 9,
        "precision": 3 / 4,
        "recall": 3 / 5,
        "f1": 6 / 9,
        "yes_ratio": 4 / 9,
        "accuracy[read]": 5 / 7,
        "precision[read]": 3 / 4,
        "recall[read]": 3 / 4,
        "f1[read]": 3 / 4,
        "yes_ratio[read]": 4 / 7,
        "unknown": 2 / 9,
        "unread": 2 / 9,
    }
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(by_hand)
    n_of = {name: (metric.n, metric.coverage) for name, metric in metrics.items()}
    assert {n_of.pop(f"{name}[read]") for name in ("accuracy", "precision", "recall", "f1", "yes_ratio")} == {
        (7, 7 / 9)
    }
    assert set(n_of.values()) == {(9, 1)}, "unread answers are wrong"
    assert metrics["accuracy"].low < 5 / 9 < metrics["accuracy"].high
    assert metrics["accuracy"].unread == 2
    by_hand = {
        "accuracy": (5 / 9, 7 / 9),
        "precision": (3 / 5, 4 / 5),
        "recall": (3 / 5, 4 / 5),
        "yes_ratio": (4 / 9, 6 / 9),
    }
    assert {name: metrics[name].bounds for name in by_hand} == {
        name: pytest.approx(ends) for name, ends in by_hand.items()
    }
    assert [row["correct"] for row in rows] == [True, True, True, False, True, True, False, None, None]
    assert rows[7]["said"] == "unknown"


# What the authors' rule says to answers as models write them: only the first sentence, and whole words alone.
PUBLISHED = {
    "Yes, there is a dog.": "yes",
    "No, there is no dog.": "no",
    "There is not a dog in the image.": "no",
    "No": "no",
    "no dog": "no",
    "I do not see one, sorry.": "no",
    "Not at all. No": "yes",
    "NO": "yes",
    "No!": "yes",
    "No\nThere is none.": "yes",
    "Well. No, there is none.": "yes",
    "It isn't there.": "yes",
    "": "yes",
}


def test_the_published_rule_with_its_oddities():
    samples = [question(str(place), "no") for place in range(len(PUBLISHED))]
    answers = {str(place): text for place, text in enumerate(PUBLISHED)}
    benchmark = make_benchmark("pope", {"profile": "code"})
    metrics, rows = benchmark.score(samples, answers)
    assert [row["said"] for row in rows] == list(PUBLISHED.values())
    n_no = list(PUBLISHED.values()).count("no")
    assert metrics["accuracy"].value == pytest.approx(n_no / len(PUBLISHED))
    assert metrics["yes_ratio"].value == pytest.approx(1 - n_no / len(PUBLISHED))
    assert (metrics["unread"].value, metrics["accuracy"].coverage) == (0, 1)
    assert metrics["precision"].value == 0
    own, _ = Pope().score(samples, answers)
    assert own["unread"].value > 0 and own["accuracy[read]"].coverage < 1 == own["accuracy"].coverage


def test_scores_agree_with_scikit_learn():
    rng = np.random.default_rng(1)
    labels, said = rng.random(200) < 0.5, rng.random(200) < 0.7
    samples = [question(str(place), "yes" if label else "no") for place, label in enumerate(labels)]
    metrics, _ = Pope().score(samples, {str(place): "Yes" if yes else "No" for place, yes in enumerate(said)})
    for name, function in (
        ("accuracy", accuracy_score),
        ("precision", precision_score),
        ("recall", recall_score),
        ("f1", f1_score),
    ):
        assert metrics[name].value == pytest.approx(function(labels, said))
    assert metrics["yes_ratio"].value == pytest.approx(said.mean())


def test_what_is_not_answered_or_not_defined():
    samples = [question("a", "yes"), question("b", "no")]
    metrics, rows = Pope().score(samples, {"a": "No"})
    assert (metrics["accuracy"].value, metrics["accuracy"].n, metrics["accuracy"].coverage) == (0, 1, 0.5)
    assert metrics["precision"].value is None  # nothing was answered with yes
    assert (metrics["f1"].value, metrics["recall"].value) == (0, 0)
    assert rows[1]["said"] is None and rows[1]["correct"] is None
    metrics, _ = Pope().score(samples, {})
    assert {metric.value for metric in metrics.values()} == {None}
    metrics, _ = Pope().score(samples, {"a": "?", "b": "?"})
    assert (metrics["accuracy"].value, metrics["accuracy"].bounds, metrics["unread"].value) == (0, (0, 1), 1)
    with pytest.raises(InputError, match="'c' answers no question"):
        Pope().score(samples, {"c": "Yes"})
    with pytest.raises(InputError, match="neither yes nor no"):
        Pope().score([question("a", "red")], {})


def test_settings_are_scored_apart_too():
    samples = [
        question("a", "yes", "random"),
        question("b", "yes", "popular"),
        question("c", "no", "popular"),
    ]
    metrics, _ = Pope().score(samples, {"a": "Yes", "b": "No", "c": "No"})
    assert metrics["accuracy"].value == pytest.approx(2 / 3)
    assert (metrics["accuracy_random"].value, metrics["accuracy_popular"].value) == (1, 0.5)
    assert "accuracy_adversarial" not in metrics
    assert "accuracy_random" not in Pope().score(samples[:1], {})[0]


def test_the_synthetic_world(tmp_path):
    scenes = load_samples(make_pairs(tmp_path / "pairs", n=12, seed=5))
    objects = read_synthetic_objects(scenes)
    assert len(objects) == 24
    for setting in SETTINGS:
        samples = draw_synthetic_pope(scenes, setting)
        assert samples and len(samples) % 6 == 0
        for sample in samples:
            shape = sample.question.removeprefix("Is there a ").removesuffix("?")
            assert (shape in {name for _, name, _ in objects[sample.images[0]]}) == (sample.answer == "yes")
            assert sample.system == scenes[0].system and sample.images[0].is_file()
        metrics, _ = Pope().score(samples, {sample.id: f"{sample.answer}." for sample in samples})
        assert metrics["f1"].value == 1 and metrics["yes_ratio"].value == 0.5
    with pytest.raises(InputError, match="objects of its images"):
        draw_synthetic_pope([Sample(id="1", images=["a.png"], question="?")], "random")
