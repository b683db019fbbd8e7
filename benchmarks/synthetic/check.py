"""Check an answer of the synthetic world against its scene, statement by statement."""

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
    """The result of the check of one answer.

    Attributes:
        exact: the answer equals the true answer, word for word.
        correct: the conclusion is right: yes or no, the number, the colour, or the set of differences.
        faithful: the answer states something, and no statement is false. Missing statements do not count.
        errors: each false statement with the reason.
    """

    exact: bool
    correct: bool
    faithful: bool
    errors: tuple[str, ...]


def _split_sentences(text: str) -> list[str]:
    parts = (part.strip() for part in _SENTENCE.findall(text.replace("\n", " ")))
    return [part if part.endswith(".") else part + "." for part in parts if part and part != "."]


def _starts_with_yes(text: str) -> bool | None:
    word = _YES_OR_NO.match(text)
    return None if word is None else word.group(1).lower() == "yes"


def _split_list(line: str) -> list[str]:
    return [item.strip() for item in line.strip().rstrip(".").split(",") if item.strip()]


@dataclass(frozen=True)
class _Facts:
    """The truth of one pair.

    Attributes:
        objects: for each image its objects, such as `red star B2`.
        changes: one sentence for each difference.
    """

    objects: list[set[str]]
    changes: set[str]


def check_answer(answer: str, truth: str, metadata: dict[str, Any]) -> Verdict:
    """Check one answer of the synthetic world. One that states nothing of the expected kind is not faithful.

    Raises ValueError where the synthetic world has no such question type.

    Example:
        >>> metadata = {"type": "exists", "objects": [["red star B2"]], "differences": []}
        >>> check_answer("Yes, the star is at A1.", "Yes, the star is at B2.", metadata).errors
        ('the star is not at A1',)
    """
    question_type = metadata["type"]
    if question_type not in _CHECKS:
        raise ValueError(f"unknown question type {question_type!r}")
    changes = {difference["sentence"] for difference in metadata["differences"]} or {NOTHING_CHANGED}
    facts = _Facts([set(objects) for objects in metadata["objects"]], changes)
    answer = answer.strip()
    correct, errors = _CHECKS[question_type](answer, truth, facts)
    return Verdict(answer == truth, correct, not errors, tuple(errors))


def _check_yes_no(answer: str, truth: str) -> tuple[bool, list[str]]:
    is_yes = _starts_with_yes(answer)
    if is_yes == _starts_with_yes(truth):
        return True, []
    return False, ["neither yes nor no" if is_yes is None else f"{'yes' if is_yes else 'no'} is wrong"]


def _check_changes(text: str, facts: _Facts) -> tuple[bool, list[str]]:
    claimed = set(_split_sentences(text))
    return claimed == facts.changes, [f"not a change: {claim}" for claim in sorted(claimed - facts.changes)]


def _check_pair(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_yes_no(answer, truth)
    return correct, errors + _check_changes(_YES_OR_NO.sub("", answer), facts)[1]


def _check_count(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct = answer.rstrip(".") == truth.rstrip(".")
    return correct, [] if correct else [f"wrong number: {answer}"]


def _check_find(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_changes(answer, facts)
    return correct, errors if _split_sentences(answer) else ["names no difference"]


def _check_exists(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    correct, errors = _check_yes_no(answer, truth)
    places = {tuple(obj.split()[1:]) for obj in facts.objects[0]}
    errors += [
        f"the {shape} is not at {cell}"
        for shape, cell in _LOCATED.findall(answer)
        if (shape, cell) not in places
    ]
    present = {shape for shape, _ in places}
    return correct, errors + [f"there is a {shape}" for shape in _DENIED.findall(answer) if shape in present]


def _check_colour(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    claims = _COLOURED.findall(answer)
    true = {(shape, colour) for colour, shape, _ in (obj.split() for obj in facts.objects[0])}
    errors = [f"the {shape} is not {colour}" for shape, colour in claims if (shape, colour) not in true]
    return bool(claims) and claims == _COLOURED.findall(truth), errors if claims else ["names no colour"]


def _check_description(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    items = {" ".join(item) for item in _CAPTION_ITEM.findall(answer)}
    errors = [f"not in the picture: {item}" for item in sorted(items - facts.objects[0])]
    return items == facts.objects[0], errors if items else ["names nothing"]


def _check_steps(answer: str, truth: str, facts: _Facts) -> tuple[bool, list[str]]:
    """Check each listed object against its image, and the conclusion against the true differences."""
    parts = dict(re.findall(r"(Picture one|Picture two|Therefore):([^\n]*)", answer))
    errors = []
    for name, objects in zip(("Picture one", "Picture two"), facts.objects, strict=True):
        claimed = set(_split_list(parts.get(name, "")))
        errors += [f"not in {name.lower()}: {item}" for item in sorted(claimed - objects)]
    correct, conclusion_errors = _check_changes(parts.get("Therefore", ""), facts)
    return correct, errors + conclusion_errors if parts else ["compares nothing"]


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
