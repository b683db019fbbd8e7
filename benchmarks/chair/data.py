"""Read captions, and the objects that images show, for CHAIR (arXiv:1809.02156); and the objects of a text by the authors' rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.chair.metrics import FindMentions
from mmprobe.errors import InputError
from mmprobe.files import read_json, read_text


def read_captions(path: str | Path) -> dict[str, str]:
    """Read captions in COCO's results form, a JSON list of `{"image_id": …, "caption": …}`."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a JSON list of objects with image_id and caption")
    captions: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or "image_id" not in row or not isinstance(row.get("caption"), str):
            raise InputError(f"{path}, entry {number}: has no image_id, or its caption is not a text")
        name = str(row["image_id"])
        if name in captions:
            raise InputError(f"{path}, entry {number}: image {name} has a caption already")
        captions[name] = row["caption"]
    return captions


def add_reference_captions(
    truth: Mapping[str, Collection[str]], path: str | Path, find_mentions: FindMentions
) -> dict[str, frozenset[str]]:
    """Add the objects that people's captions name, also without a mask, as the authors do."""
    data = read_json(path)
    combined = {name: set(objects) for name, objects in truth.items()}
    try:
        for annotation in data["annotations"]:
            name = str(annotation["image_id"])
            if name in combined:
                combined[name] |= {category for category, _ in find_mentions(annotation["caption"])}
    except (KeyError, TypeError):
        raise InputError(
            f"{path}: not a COCO captions file, whose annotations have image_id and caption"
        ) from None
    return {name: frozenset(objects) for name, objects in combined.items()}


# Of the authors' code: pairs of words that are read as one, and as which.
_DOUBLE_WORDS = {
    word: word
    for word in (
        *("motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal"),
        *("stop light", "fire hydrant", "stop sign", "parking meter", "suit case", "sports ball"),
        *("baseball bat", "baseball glove", "tennis racket", "wine glass", "hot dog", "cell phone"),
        *("mobile phone", "teddy bear", "hair drier", "potted plant", "laptop computer", "stove top oven"),
        *("home plate", "train track"),
    )
}
_DOUBLE_WORDS |= {
    f"{age} {animal}": animal
    for age in ("baby", "adult")
    for animal in (
        *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
        *("animal", "cub"),
    )
}
_DOUBLE_WORDS |= {f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")}
_DOUBLE_WORDS |= {"bow tie": "tie", "toilet seat": "toilet"}
_TOKEN = re.compile(r"[a-z0-9]+(?:[-/][a-z0-9]+)*")


def read_synonyms(path: str | Path) -> dict[str, str]:
    """Read the authors' list, `data/synonyms.txt`: a line a category, with `, ` between its words. Return word -> category."""
    category_of: dict[str, str] = {}
    for line in read_text(path).splitlines():
        words = line.strip().split(", ")
        category_of |= dict.fromkeys(filter(None, words), words[0])
    if not category_of:
        raise InputError(f"{path}: contains no lines of words with commas between them")
    return category_of


def published_finder(category_of: Mapping[str, str]) -> FindMentions:
    """Return what finds the objects of a text by the rules of the authors' code.

    Words are read in lower case and in the singular. Two words of a fixed table are one (`hot dog`, `baby elephant`), also
    where they do not name an object (`street light`). A text with `toilet` and `seat` names no seat. Each word of the list is a
    mention, whatever the sentence says of it: `no dog` and a second `dog` are mentions, too. Nothing longer than two words
    is found. The authors take the singular from the package `pattern`; here it is the word of the list or of the table
    whose plural occurs in the text.

    Example:
        >>> find = published_finder({"dog": "dog", "puppy": "dog", "hot dog": "hot dog"})
        >>> [category for category, _ in find("Two puppies, a hot dog and no dog.")]
        ['dog', 'hot dog', 'dog']
    """
    known = {word for name in (*category_of, *_DOUBLE_WORDS) for word in name.split(" ")}
    singular = {plural: word for word in known for plural in make_plurals(word)} | {
        word: word for word in known
    }

    def find(text: str) -> list[tuple[str, tuple[int, int]]]:
        tokens = [(singular.get(each[0], each[0]), each.span()) for each in _TOKEN.finditer(text.lower())]
        words: list[tuple[str, tuple[int, int]]] = []
        while tokens:
            (word, span), *rest = tokens
            if rest and (both := _DOUBLE_WORDS.get(f"{word} {rest[0][0]}")):
                words.append((both, (span[0], rest[0][1][1])))
                tokens = rest[1:]
            else:
                words.append((word, span))
                tokens = rest
        names = {word for word, _ in words}
        if {"toilet", "seat"} <= names:
            words = [each for each in words if each[0] != "seat"]
        return [(category_of[word], span) for word, span in words if word in category_of]

    return find
