"""AMBER against an independent count by the authors' rule on made files, by hand, and over drawn images."""

from __future__ import annotations

import json
import random
import sys
import types
from pathlib import Path

import pytest

from mmprobe.benchmarks import evaluate
from mmprobe.benchmarks.amber.benchmark import Amber
from mmprobe.benchmarks.amber.data import Annotation, Words
from mmprobe.benchmarks.amber.metrics import judge_description, list_finder, published_tools
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.errors import InputError

ASSOCIATION = {
    "person": ["man", "woman"],
    "grass": ["ground"],
    "ground": ["floor"],
    "dog": ["puppy"],
    "table": ["desk"],
    "sky": [],
    "cup": [],
}
SAFE = ["light", "line"]
TYPES = (
    *("discriminative-hallucination", "discriminative-attribute-state", "discriminative-attribute-number"),
    *("discriminative-attribute-action", "discriminative-relation", "relation"),
)


def are_similar(one: str, other: str) -> bool:
    """Made similarity, as a vector's would be: of a word to itself, and of some others."""
    return one == other or {one, other} in ({"desk", "cup"}, {"floor", "sky"}, {"puppy", "man"})


@pytest.fixture()
def data(tmp_path: Path) -> Path:
    """Made files in the published form: 30 descriptions and 60 questions."""
    rng = random.Random(7)
    folder = tmp_path / "data"
    (folder / "query").mkdir(parents=True)
    annotations: list[dict] = []
    for number in range(1, 91):
        if number <= 30:
            things = [rng.choice(list(ASSOCIATION)) for _ in range(3)]  # one may be listed twice
            rest = [each for each in ASSOCIATION if each not in things]
            fields = {"type": "generative", "truth": things, "hallu": rng.sample(rest, 2)}
        else:
            fields = {"type": TYPES[number % len(TYPES)], "truth": rng.choice(["yes", "no"])}
        annotations.append({"id": number, **fields})
    queries = [
        {"id": each["id"], "image": f"AMBER_{each['id'] % 30}.jpg", "query": "?"} for each in annotations
    ]
    for name, content in (
        ("annotations", annotations),
        ("relation", ASSOCIATION),
        ("query/query_all", queries),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "safe_words.txt").write_text("\n".join(SAFE))
    words = [*ASSOCIATION, *(word for words in ASSOCIATION.values() for word in words), *SAFE, "joy"]
    responses = [
        {
            "id": each["id"],
            "response": " ".join(rng.choices(words, k=6))
            if each["type"] == "generative"
            else rng.choice(["Yes", "No", "No", "yes", "No."]),
        }
        for each in annotations
    ]
    (tmp_path / "answers.json").write_text(json.dumps(responses))
    return folder


def count_by_hand(data: Path, answers: Path) -> dict[str, float]:
    """The authors' rule, counted another way: a table of slots for each image that nouns tick off."""
    annotations = {each["id"]: each for each in json.loads((data / "annotations.json").read_text())}
    vocabulary = set(ASSOCIATION) | {word for words in ASSOCIATION.values() for word in words}
    nouns = false = named = shown = told = expected = bad = captions = 0
    right = asked = no_right = no_said = no_true = 0
    for row in json.loads(answers.read_text()):
        known, text = annotations[row["id"]], row["response"]
        if known["type"] != "generative":
            asked += 1
            right += text.lower() == known["truth"] and text in ("Yes", "No")
            no_right += text == "No" and known["truth"] == "no"
            no_said += text == "No"
            no_true += known["truth"] == "no"
            continue
        ticks = {kind: [False] * len(known[kind]) for kind in ("truth", "hallu")}

        def look_up(word, kind, same, known=known):
            """The number of the first object that a word stands for: other words of all objects first."""
            for place, thing in enumerate(known[kind]):
                if any(same(word, other) for other in ASSOCIATION[thing]):
                    return place
            return next((place for place, thing in enumerate(known[kind]) if same(word, thing)), None)

        wrong = 0
        for word in text.split():
            if word not in vocabulary:
                continue
            nouns += 1
            place = look_up(word, "truth", str.__eq__)
            if place is not None:
                ticks["truth"][place] = True
                continue
            for same in (str.__eq__, are_similar):
                if (place := look_up(word, "hallu", same)) is not None:
                    ticks["hallu"][place] = True
            if (place := look_up(word, "truth", are_similar)) is not None:
                ticks["truth"][place] = True
            else:
                wrong += 1
        false, bad, captions = false + wrong, bad + bool(wrong), captions + 1
        named, shown = named + sum(ticks["truth"]), shown + len(ticks["truth"])
        told, expected = told + sum(ticks["hallu"]), expected + len(ticks["hallu"])
    precision, recall = no_right / no_said, no_right / no_true
    return {
        "chair": false / nouns,
        "cover": named / shown,
        "hal": bad / captions,
        "cog": told / expected,
        "accuracy": right / asked,
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall),
    }


def stand_in(monkeypatch):
    """Modules in place of NLTK and spaCy: each word is a noun, and words are similar as `are_similar` says."""
    tagger = types.ModuleType("nltk")
    tagger.word_tokenize = str.split
    tagger.pos_tag = lambda words: [(word, "NN") for word in words]
    stems = types.ModuleType("nltk.stem")
    stems.WordNetLemmatizer = lambda: types.SimpleNamespace(lemmatize=lambda word: word)
    vectors = types.ModuleType("spacy")

    class Read:
        def __init__(self, word):
            self.word = word

        def similarity(self, other):
            return 0.81 if are_similar(self.word, other.word) else 0.8

    vectors.load = lambda name: Read
    for name, module in (("nltk", tagger), ("nltk.stem", stems), ("spacy", vectors)):
        monkeypatch.setitem(sys.modules, name, module)
    published_tools.cache_clear()


def test_the_authors_rule_on_made_files(data, monkeypatch):
    stand_in(monkeypatch)
    benchmark = Amber(profile="code")
    truth = benchmark.read(data)
    answers = data.parent / "answers.json"
    metrics, records = benchmark.score(truth, benchmark.read_answers(answers, truth))
    expected = count_by_hand(data, answers)
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert all(0 < value < 1 for value in expected.values())
    assert len({record["type"] for record in records}) == 1 + len(TYPES)
    by_dimension = [
        metrics[f"accuracy[dimension={name}]"].n for name in ("existence", "attribute", "relation")
    ]
    assert by_dimension == [10, 30, 20]
    assert metrics["accuracy[attribute=number]"].n == 10
    published_tools.cache_clear()


def test_words_are_found_in_the_singular_and_looked_up_in_order():
    words = Words(ASSOCIATION, frozenset(SAFE))
    assert list_finder(words)("Two men, a desk and some dogs in the light.") == ["man", "desk", "dog"]
    # `ground` is another word for grass before it is the ground
    found = judge_description(
        ["ground", "light", "cup"], Annotation(["ground", "grass"], ["cup"]), words, str.__eq__
    )
    assert found["covered"] == ["grass"] and found["hallucinated"] == ["cup"] and found["expected"] == ["cup"]


def test_own_rules_read_sentences(data):
    benchmark = Amber()
    truth = benchmark.read(data)
    answers = {
        sample.id: "There is a dog." for sample in truth.samples if sample.metadata["type"] == "generative"
    }
    answers |= {sample.id: f"**{sample.answer}**, it is." for sample in truth.samples if sample.answer}
    metrics, _ = benchmark.score(truth, answers)
    assert metrics["accuracy"].value == metrics["f1"].value == 1
    shows_dog = [bool({"dog"} & set(each.truth)) for each in truth.annotations.values()]
    assert metrics["hal"].value == pytest.approx(1 - sum(shows_dog) / 30)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("annotations.json", "[]", "query_all.json, id 1: is not in annotations.json"),
        ("relation.json", "{}", "relation.json: lacks"),
        ("relation.json", '{"dog": "puppy"}', "relation.json: not a JSON object of lists of words"),
        ("query/query_all.json", "[]", "contains no questions"),
        ("query/query_all.json", '[{"id": 1}]', "query_all.json, entry 1"),
    ],
)
def test_damaged_files_are_refused(file, content, message, data):
    (data / file).write_text(content)
    with pytest.raises(InputError, match=message):
        Amber().read(data)


def test_the_published_rule_says_what_it_needs(monkeypatch, data):
    monkeypatch.setitem(sys.modules, "spacy", None)
    published_tools.cache_clear()
    truth = Amber().read(data)
    with pytest.raises(InputError, match="needs NLTK and spaCy"):
        make_benchmark("amber", {"profile": "code"}).score(truth, {"1": "A dog."})


@pytest.mark.slow
def test_drawn_things_and_the_embedded_model(tmp_path):
    data = make_things(tmp_path / "things", n=3, seed=2)
    benchmark = Amber()
    truth = benchmark.read(data)
    metrics, _ = benchmark.score(truth, {sample.id: sample.answer for sample in truth.samples})
    assert [metrics[name].value for name in ("chair", "cover", "hal", "cog", "accuracy")] == [0, 1, 0, 0, 1]
    assert set(truth.annotations) == {f"{pair:04d}-describe" for pair in range(3)}
    for annotation in truth.annotations.values():
        assert len(annotation.hallu) == 3 and not set(annotation.hallu) & set(annotation.truth)
    evaluation = evaluate("amber", "tiny-spd", tmp_path / "out", n=3, batch_size=8)
    assert evaluation.metrics["cover"].value > 0.5 and evaluation.metrics["accuracy"].n == 6
