"""Words for COCO's categories are found in plain English."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.coco import SYNONYMS, find_category, find_objects


def categories(text: str) -> list[str]:
    return [category for category, _ in find_objects(text)]


def test_the_list_is_whole() -> None:
    assert len(SYNONYMS) == 80
    others = [word for words in SYNONYMS.values() for word in words]
    assert len(others) == len(set(others)), "a word of two categories"
    assert not set(others) & set(SYNONYMS)


@pytest.mark.parametrize("category", SYNONYMS)
def test_every_word_names_its_category(category: str) -> None:
    for word in (category, *SYNONYMS[category]):
        assert find_category(word) == category, word
        assert categories(f"There was a {word}.") == [category], word


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man with two dogs, three knives and some sheep", ["person", "dog", "knife", "sheep"]),
        ("a hot dog and a dog", ["hot dog", "dog"]),
        ("The teddy bear is no bear.", ["teddy bear", "bear"]),
        ("CELL-PHONES on a bus stop bench", ["cell phone", "bench"]),
        ("a glass of wine near a glass", ["wine glass"]),
        ("scattered carpets, catalogues and busy doges", []),
        ("a baby elephant and a baby", ["elephant", "person"]),
        ("a dog bowl", ["bowl"]),
        ("An orange and a banana", ["orange", "banana"]),
        ("an orange and white cat", ["cat"]),
        ("an orange cat, the car is orange", ["cat", "car"]),
        ("two oranges", ["orange"]),
        ("", []),
        ("一只狗", []),
    ],
)
def test_mentions(text: str, expected: list[str]) -> None:
    assert categories(text) == expected


def test_spans_are_the_words() -> None:
    text = "Two puppies, one wine glass."
    assert [text[slice(*span)] for _, span in find_objects(text)] == ["puppies", "wine glass"]


def test_the_head_of_a_phrase_is_its_category() -> None:
    assert find_category("a red car on the table") == "car"
    assert find_category("slice of pizza") == "pizza"
    assert find_category("Dining_Table") == "dining table"
    assert find_category("curtain") is None
