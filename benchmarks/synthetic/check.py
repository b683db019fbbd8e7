"""Check an answer against the scene it speaks of, statement by statement."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED

_SENTENCE = re.compile(r"[^.]+\.?")
_CAPTION_ITEM = re.compile(r"\ban? (\w+) (\w+) at (\w+)", re.IGNORECASE)
_YES_OR_NO = re.compile(r"^\W*(yes|no)\b\W*", re.IGNORECASE)
_DENIED = re.compile(r"there is no (\w+)", re.IGNORECASE)
_LOCATED = re.compile(r"the (\w+) is at (\w+)", re.IGNORECASE)
_COLOURED = re.compile(r"the (\w+) is (\w+)(?:\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """What holds of an answer.

    Attributes:
        exact: the whole answer is the true one, word for word.
        correct: its conclusion is right (yes or no, the number, the colour, the set of differences).
        faithful: it says something, and nothing in it is false of the pictures; what it leaves out does not count.
        errors: each false statement, and why.
    """

    exact: bool
    correct: bool
    faithful: bool
    errors: tuple[str, ...]


def _sentences(text: str) -> list[str]:
    found = (part.strip() for part in _SENTENCE.findall(text.replace("\n", " ")))
    return [part if part.endswith(".") else part + "." for part in found if part and part != "."]


def _yes(text: str) -> bool | None:
    word = _YES_OR_NO.match(text)
    return None if word is None else word.group(1).lower() == "yes"


def _listed(line: str) -> list[str]:
    return [item.strip() for item in line.strip().rstrip(".").split(",") if item.strip()]


@dataclass(frozen=True)
class _Facts:
    """The truth of one pair: for each image its objects (`red star B2`), and a sentence for each difference."""

    objects: list[set[str]]
    changes: set[str]


def check_answer(answer: str, truth: str, metadata: dict[str, Any]) -> Verdict:
    """Check one answer of the synthetic world.

    An answer that makes no statement of the kind asked for is not faithful: there is nothing to be faithful.

    Args:
        answer: what the model said.
        truth: the true answer.
        metadata: the sample's, with `type`, `objects` (for each image its objects, each `colour shape cell`)
            and `differences` (each with its `sentence`).

    Raises:
        ValueError: a question type that is not of this world.

    Example:
        >>> facts = {"type": "exists", "objects": [["red star B2"]], "differences": []}
        >>> check_answer("Yes, the star is at A1.", "Yes, the star is at B2.", facts).errors
        ('the star is not at A1',)
    """
    kind = metadata["type"]
    if kind not in _CHECKS:
        raise ValueError(f"unknown question type {kind!r}")
    changes = {difference["sentence"] for difference in metadata["differences"]} or {NOTHING_CHANGED}
    facts = _Facts([set(objects) for objects in metadata["objects"]], changes)
    answer = answer.strip()
    correct, errors = _CHECKS[kind](answer, truth, facts)
    return Verdict(answer == truth, correct, not errors, tuple(errors))


def _check_verdict(answer: str, truth: str) -> tuple[bool, list[str]]:
    said, wanted = _yes(answer), _yes(truth)
    if said == wanted:
        return True, []
    return False, ["neither yes nor no" if said is None else f"{'yes' if said else 'no'} is wrong"]


def _check_changes(text: str, facts: _Facts) -> tuple[bool, list[str]]:
    claimed = set(_sentences(text))
    return claimed == facts.changes, [f"not a change: {claim}" for claim in sorted(claimed - facts.changes)]


def _check_pair(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_verdict(answer, truth)
    return correct, errors + _check_changes(_YES_OR_NO.sub("", answer), facts)[1]


def _check_count(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct = answer.rstrip(".") == truth.rstrip(".")
    return correct, [] if correct else [f"wrong number: {answer}"]


def _check_find(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_changes(answer, facts)
    return correct, errors if _sentences(answer) else ["names no difference"]


def _check_exists(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_verdict(answer, truth)
    places = {tuple(thing.split()[1:]) for thing in facts.objects[0]}
    errors += [
        f"the {shape} is not at {cell}"
        for shape, cell in _LOCATED.findall(answer)
        if (shape, cell) not in places
    ]
    there = {shape for shape, _ in places}
    return correct, errors + [f"there is a {shape}" for shape in _DENIED.findall(answer) if shape in there]


def _check_colour(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    said = _COLOURED.findall(answer)
    true = {(shape, colour) for colour, shape, _ in (thing.split() for thing in facts.objects[0])}
    errors = [f"the {shape} is not {colour}" for shape, colour in said if (shape, colour) not in true]
    return bool(said) and said == _COLOURED.findall(truth), errors if said else ["names no colour"]


def _check_description(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    items = {" ".join(item) for item in _CAPTION_ITEM.findall(answer)}
    errors = [f"not in the picture: {item}" for item in sorted(items - facts.objects[0])]
    return items == facts.objects[0], errors if items else ["names nothing"]


def _check_steps(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    """Each listed object against its own picture, and the conclusion against the true differences."""
    parts = dict(re.findall(r"(Picture one|Picture two|Therefore):([^\n]*)", answer))
    errors = []
    for name, objects in zip(("Picture one", "Picture two"), facts.objects, strict=True):
        listed = set(_listed(parts.get(name, "")))
        errors += [f"not in {name.lower()}: {item}" for item in sorted(listed - objects)]
    correct, false = _check_changes(parts.get("Therefore", ""), facts)
    return correct, errors + false if parts else ["compares nothing"]


_CHECKS: dict[str, Callable[[str, str, _Facts], tuple[bool, list[str]]]] = {
    "same": _check_pair,
    "different": _check_pair,
    "count": _check_count,
    "find": _check_find,
    "exists": _check_exists,
    "colour": _check_colour,
    "describe": _check_description,
    "steps": _check_steps,
}
