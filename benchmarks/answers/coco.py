"""The 80 object categories of COCO, the everyday words for them, and the categories that images show.

We chose the lists. They leave out words that often name something else: a bare `glass`, `bag`, `light`,
`sign`, `board`, `screen` or `computer`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from mmprobe.errors import InputError
from mmprobe.files import check_readable

Span = tuple[int, int]

_LISTS = yaml.safe_load(Path(__file__).with_name("coco.yaml").read_text(encoding="utf-8"))
SYNONYMS: dict[str, tuple[str, ...]] = {name: tuple(words) for name, words in _LISTS["synonyms"].items()}

GENERIC: dict[str, frozenset[str]] = {word: frozenset(names) for word, names in _LISTS["generic"].items()}
"""Words that may name several categories, such as `bag` and `vehicle`, and these."""

_WORD = re.compile(r"[^\W\d_]+")
# `orange` names the fruit in `an orange and a plum`, not in `an orange and white cat`.
_FRUIT = re.compile(
    r"(?:^|\b(?:an?|the|one|each|this|that|of)\s)orange(?=\W*$|[.,;:!?]|\s(?:is|was|on|in|at|by|and (?:an?|the))\b)",
    re.IGNORECASE,
)


def make_plurals(phrase: str) -> tuple[str, ...]:
    """Return the plural forms of an English noun phrase that ends in its noun."""
    if phrase in _LISTS["irregular"]:
        return tuple(_LISTS["irregular"][phrase])
    if phrase in _LISTS["no_plural"]:
        return ()
    if re.search(r"(?:s|x|z|ch|sh)$", phrase):
        return (phrase + "es",)
    if re.search(r"[^aeiou]y$", phrase):
        return (phrase[:-1] + "ies",)
    return (phrase + "s",)


def _make_phrases() -> dict[str, str | None]:
    """Return phrase -> category for all phrases, singular and plural; None for no category."""
    table: dict[str, str | None] = {}
    for item in _LISTS["other_phrases"]:
        phrase, _, category = item.partition("=")
        for form in (phrase, *make_plurals(phrase)):
            table[form] = category or None
    for category, synonyms in SYNONYMS.items():
        for phrase in (category, *synonyms):
            for form in (phrase, *make_plurals(phrase)):
                table[form] = category
    return table


PHRASES: dict[str, str | None] = _make_phrases()
_MAX_WORDS = max(phrase.count(" ") for phrase in PHRASES) + 1
FIRST_WORDS = {phrase.split(" ")[0] for phrase in PHRASES if " " in phrase}
_WORD_SEPARATORS = frozenset((" ", "-", "  ", "\n", "'", "’"))
_PREPOSITION = re.compile(
    r"\b(?:of|on|in|at|with|near|by|beside|behind|under|above|next to|in front of|from)\b"
)


def find_phrases(
    text: str, table: Mapping[str, str | None], first_words: frozenset[str] | set[str]
) -> list[tuple[str, Span]]:
    """Return the phrases of a table in a text, as (category, span), in order.

    The longest phrase wins. Phrases do not overlap. Of two adjacent phrases (`dog bowl`, `baby elephant`,
    `square table`) only the last counts.
    """
    words = [(match.group().lower(), match.start(), match.end()) for match in _WORD.finditer(text)]
    phrases: list[tuple[str, Span]] = []
    index = 0
    follows_phrase = False
    while index < len(words):
        word, start, end = words[index]
        length = 0
        category = None
        if word in first_words:
            phrase = word
            phrase_end = end
            for offset in range(1, min(_MAX_WORDS, len(words) - index)):
                next_word, next_start, next_end = words[index + offset]
                if text[phrase_end:next_start] not in _WORD_SEPARATORS:
                    break
                phrase = f"{phrase} {next_word}"
                phrase_end = next_end
                if phrase in table:
                    length, category, end = offset + 1, table[phrase], phrase_end
        if not length and word in table:
            length, category = 1, table[word]
            before = words[index - 1][1] if index else start
            if word == category == "orange" and not _FRUIT.match(text, before):
                length = 0
        if length and category is not None:
            if follows_phrase and phrases and text[phrases[-1][1][1] : start] in (" ", "-"):
                phrases.pop()
            phrases.append((category, (start, end)))
        follows_phrase = bool(length and category is not None)
        index += length or 1
    return phrases


def find_objects(text: str) -> list[tuple[str, Span]]:
    """Return the COCO objects that an English text names, in order: (category, (start, end)) of each mention.

    Example:
        >>> [category for category, _ in find_objects("Two puppies and a hot dog on a wooden desk")]
        ['dog', 'hot dog', 'dining table']
    """
    return find_phrases(text, PHRASES, FIRST_WORDS)


def find_category(phrase: str) -> str | None:
    """Return the COCO category of a word or noun phrase, or None.

    Example:
        >>> [find_category(phrase) for phrase in ("the red cars on the table", "a slice of pizza", "curtain")]
        ['car', 'pizza', None]
    """
    bare = phrase.strip().lower().replace("_", " ")
    if bare in SYNONYMS:
        return bare
    head = _PREPOSITION.split(bare, maxsplit=1)[0]
    objects = find_objects(head) or find_objects(bare)[:1]
    return objects[-1][0] if objects else None


def read_coco_objects(
    path: str | Path, key: Literal["file_name", "id"] = "file_name"
) -> dict[str, frozenset[str]]:
    """Return the categories that each image of a COCO instances file shows, with crowds, by the field `key`.

    Raises InputError for another file, or two images of one key.
    """
    try:
        data = json.loads(check_readable(Path(path)).read_text(encoding="utf-8-sig"))
        names = {category["id"]: str(category["name"]) for category in data["categories"]}
        categories: dict[Any, set[str]] = {image["id"]: set() for image in data["images"]}
        for annotation in data["annotations"]:
            categories[annotation["image_id"]].add(names[annotation["category_id"]])
        items = [(str(image[key]), frozenset(categories[image["id"]])) for image in data["images"]]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (KeyError, TypeError, RecursionError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a COCO instances file with images, annotations and categories ({error!r:.80})"
        ) from None
    counts = Counter(name for name, _ in items)
    if len(counts) < len(items):
        name, count = counts.most_common(1)[0]
        raise InputError(f"{path}: {count} images have the {key} {name!r}; each must have its own")
    return dict(items)
