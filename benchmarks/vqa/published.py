"""Metrics of questions about images as their data sets publish them: VQAv2's accuracy, ChartQA's tolerance, ANLS of documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

PublishedMetric = Literal["vqav2", "chartqa", "anls"]
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
NUMBERS = dict(
    zip(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        map(str, range(11)),
        strict=True,
    )
)
NUMBERS["none"] = "0"
CONTRACTED = [
    "ain't",
    "aren't",
    "can't",
    "could've",
    "couldn't",
    "didn't",
    "doesn't",
    "don't",
    "hadn't",
    "hasn't",
    "haven't",
    "he'd",
    "he's",
    "how'd",
    "how'll",
    "how's",
    "isn't",
    "it'd",
    "it'll",
    "ma'am",
    "mightn't",
    "might've",
    "mustn't",
    "must've",
    "needn't",
    "not've",
    "o'clock",
    "oughtn't",
    "shan't",
    "should've",
    "shouldn't",
    "somebody'll",
    "somebody's",
    "someone'd",
    "someone'll",
    "someone's",
    "something'd",
    "something'll",
    "that's",
    "there'd",
    "there're",
    "there's",
    "they'd",
    "they'll",
    "they're",
    "they've",
    "'twas",
    "wasn't",
    "we've",
    "weren't",
    "what'll",
    "what're",
    "what's",
    "what've",
    "when's",
    "where'd",
    "where's",
    "where've",
    "who'd",
    "who'll",
    "who's",
    "who've",
    "why'll",
    "why're",
    "why's",
    "won't",
    "would've",
    "wouldn't",
    "you'd",
    "you'll",
    "you're",
    "you've",
    "y'all",
    "couldn't've",
    "hadn't've",
    "he'd've",
    "it'd've",
    "mightn't've",
    "she'd've",
    "shouldn't've",
    "somebody'd've",
    "someone'd've",
    "something'd've",
    "there'd've",
    "they'd've",
    "we'd've",
    "who'd've",
    "wouldn't've",
    "y'all'll",
    "y'all'd've",
    "you'd've",
    "'ow's'at",
]
CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in CONTRACTED
    for place, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}
"""What each word with one apostrophe left out becomes, in VQA's evaluation code."""


def score_published(metric: PublishedMetric, response: str, answers: Sequence[str]) -> float:
    """Return a response's score from 0 to 1, given the answers of all annotators.

    Example:
        >>> score_published("vqav2", "two", ["2"] * 2 + ["3"] * 8)
        0.6
        >>> score_published("chartqa", "104", ["100"]), score_published("chartqa", "106", ["100"])
        (1.0, 0.0)
    """
    scorers: dict[str, Callable[[str, Sequence[str]], float]] = {
        "vqav2": score_vqav2,
        "chartqa": score_chartqa,
        "anls": score_anls,
    }
    return scorers[metric](response, answers)


def score_vqav2(response: str, answers: Sequence[str]) -> float:
    """Return the mean, over all annotators left out one at a time, of min(1, others who say the same / 3).

    Antol et al., 2015, VQA, section 4, and its evaluation code: of the annotators' answers only the punctuation is
    normalised, and nothing where all say the same; words of numbers and articles are normalised in the response alone.

    Example:
        >>> round(score_vqav2("A dog.", ["dog"] * 3 + ["cat"] * 7), 3)
        0.9
    """
    said = _normalise(_strip_punctuation(re.sub(r"[\n\t]", " ", response).strip()))
    given = list(map(_strip_punctuation, answers)) if len(set(answers)) > 1 else list(answers)
    same = sum(each == said for each in given)
    return sum(min(1.0, (same - (each == said)) / 3) for each in given) / len(given)


def _strip_punctuation(text: str) -> str:
    """Leave out punctuation beside a space, and all where a comma stands between digits; put a space for other punctuation."""
    out, in_number = text, re.search(r"\d,\d", text)
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if beside_space or in_number else " ")
    return re.sub(r"\.(?!\d)", "", out)


def _normalise(text: str) -> str:
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ("a", "an", "the"))


TOLERANCE = 0.05


def score_chartqa(response: str, answers: Sequence[str]) -> float:
    """Return 1 for a number within 5 % of a true one that is not 0, or for the same text whatever its case; else 0.

    Masry et al., 2022, ChartQA, section 5: relaxed accuracy. A per cent sign divides by 100, on both sides, as in
    the code that is in use (pix2struct).

    Example:
        >>> score_chartqa("52 %", ["0.5"]), score_chartqa("Blue", ["blue"]), score_chartqa("0.01", ["0"])
        (1.0, 1.0, 0.0)
    """
    return float(any(_is_near(response.strip(), answer.strip()) for answer in answers))


def _is_near(said: str, true: str) -> bool:
    number, right = _read_float(said), _read_float(true)
    if number is not None and right:
        return abs(number - right) / abs(right) <= TOLERANCE
    return said.lower() == true.lower()


def _read_float(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def score_anls(response: str, answers: Sequence[str]) -> float:
    """Return the largest 1 - d / longest over the answers, where d is the edit distance; 0 below a half.

    Biten et al., 2019, Scene text visual question answering, section 3.2. Case and repeated spaces do not count.

    Example:
        >>> score_anls("Paris ", ["paris"]), score_anls("Pari", ["paris"]), score_anls("London", ["paris"])
        (1.0, 0.8, 0.0)
    """
    said = " ".join(response.lower().split())
    return max((_similarity(said, " ".join(answer.lower().split())) for answer in answers), default=0.0)


def _similarity(first: str, second: str) -> float:
    longest = max(len(first), len(second))
    distance = edit_distance(first, second) / longest if longest else 0.0
    return 1 - distance if distance < 0.5 else 0.0


def edit_distance(first: str, second: str) -> int:
    """Return how many letters are inserted, deleted or exchanged to make one text of the other.

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        above, row[0] = row[0], number
        for place, other in enumerate(second, 1):
            above, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, above + (letter != other))
    return row[-1]
