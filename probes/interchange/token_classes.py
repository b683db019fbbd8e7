"""Classes of an answer's tokens: words that name things, colours, places and verdicts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mmprobe.samples import Sample

CLASSES = ("thing", "colour", "place", "verdict", "other")
_VERDICTS = frozenset({"yes", "no"})
_WORD = re.compile(r"\w+")
_OBJECT = re.compile(r"(\w+) (\w+) ([A-Z]\d+)")  # of the drawn world: red star B2


def declared_words(sample: Sample) -> dict[str, set[str]]:
    """Return the words of each class that a sample declares, in lower case; no word is guessed.

    - `metadata["words"]`: a list of words for each class
    - `metadata["objects"]` of the drawn world, such as `red star B2`: its colour, thing and place
    - `metadata["differences"]`: their `shape`, `category` or `object` are things
    - `polarity`: yes and no are verdicts

    Example:
        >>> sample = Sample(id="a", question="?", metadata={"objects": [["red star B2"]]})
        >>> declared_words(sample)["colour"], declared_words(sample)["place"]
        ({'red'}, {'b2'})
    """
    words: dict[str, set[str]] = {name: set() for name in CLASSES[:-1]}
    declared = sample.metadata.get("words")
    if isinstance(declared, dict):
        for name in words:
            entries = declared.get(name)
            words[name] |= {str(word).lower() for word in entries} if isinstance(entries, list) else set()
    objects, differences = (sample.metadata.get(name) for name in ("objects", "differences"))
    texts = (
        [text for image in objects if isinstance(image, list) for text in image]
        if isinstance(objects, list)
        else []
    )
    for match in filter(None, (_OBJECT.fullmatch(str(text)) for text in texts)):
        for name, word in zip(("colour", "thing", "place"), match.groups(), strict=True):
            words[name].add(word.lower())
    for difference in differences if isinstance(differences, list) else []:
        if isinstance(difference, dict):
            names = (str(difference[key]) for key in ("shape", "category", "object") if key in difference)
            words["thing"] |= {word.lower() for name in names for word in _WORD.findall(name)}
    if sample.polarity is not None:
        words["verdict"] |= _VERDICTS
    return words


def classify_tokens(texts: Sequence[str], sample: Sample) -> np.ndarray:
    """Return the class of each token of an answer, int [step], as an index of `CLASSES`.

    A token belongs to the class of a word that it is part of. A word of two classes belongs to the first.

    Args:
        texts: each token's own text.

    Example:
        >>> sample = Sample(id="a", question="?", polarity="same", metadata={"objects": [["red star B2"]]})
        >>> [CLASSES[index] for index in classify_tokens(["No", ". The", " st", "ar"], sample)]
        ['verdict', 'other', 'thing', 'thing']
    """
    words = declared_words(sample)
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    classes = np.full(len(texts), CLASSES.index("other"))
    for match in _WORD.finditer("".join(texts)):
        names = [name for name in words if match.group().lower() in words[name]]
        if names:
            classes[(starts < match.end()) & (ends > match.start())] = CLASSES.index(names[0])
    return classes
