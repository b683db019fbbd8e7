"""Check an answer against the scene it speaks of, statement by statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED

_SENTENCE = re.compile(r"[^.]+\.?")
_CAPTION_ITEM = re.compile(r"\ban? (\w+) (\w+) at (\w+)", re.IGNORECASE)
_DENIED = re.compile(r"there is no (\w+)", re.IGNORECASE)
_LOCATED = re.compile(r"the (\w+) is at (\w+)", re.IGNORECASE)
_COLOURED = re.compile(r"the (\w+) is (\w+)(?:\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """What holds of an answer.

    Attributes:
        exact: the whole answer is the true one, word for word.
        correct: its conclusion is right (yes or no, the number, the colour, the set of differences).
        faithful: nothing in it is false of the pictures; what it leaves out does not count against it.
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
    word = re.match(r"\W*(yes|no)\b", text, re.IGNORECASE)
    return None if word is None else word.group(1).lower() == "yes"


def _listed(line: str) -> list[str]:
    return [item.strip() for item in line.strip().rstrip(".").split(",") if item.strip()]


def check_answer(answer: str, truth: str, metadata: dict[str, Any]) -> Verdict:
    """Check one answer of the synthetic world.

    Args:
        answer: what the model said.
        truth: the true answer.
        metadata: the sample's, with `type`, `objects` (for each image its objects, each `colour shape cell`)
            and `differences` (each with its `sentence`).

    Example:
        >>> facts = {"type": "exists", "objects": [["red star B2"]], "differences": []}
        >>> check_answer("Yes, the star is at A1.", "Yes, the star is at B2.", facts).errors
        ('the star is not at A1',)
    """
    kind = metadata["type"]
    answer, errors = answer.strip(), []
    changes = {difference["sentence"] for difference in metadata["differences"]} or {NOTHING_CHANGED}
    first = set(metadata["objects"][0])

    def check_changes(text: str) -> bool:
        claimed = set(_sentences(text))
        errors.extend(f"not a change: {claim}" for claim in sorted(claimed - changes))
        return claimed == changes

    if kind in ("same", "different"):
        said, wanted = _yes(answer), _yes(truth)
        correct = said == wanted
        if not correct:
            errors.append(
                "yes instead of no"
                if said
                else "no instead of yes"
                if said is False
                else "neither yes nor no"
            )
        check_changes(answer.split(".", 1)[1] if "." in answer else "")
    elif kind == "count":
        correct = answer.rstrip(".") == truth.rstrip(".")
        if not correct:
            errors.append(f"wrong number: {answer}")
    elif kind == "find":
        correct = check_changes(answer)
    elif kind == "exists":
        correct = _yes(answer) == _yes(truth)
        if not correct:
            errors.append(f"existence is wrong: {answer}")
        for shape, cell in _LOCATED.findall(answer):
            if not any(thing.split()[1:] == [shape, cell] for thing in first):
                errors.append(f"the {shape} is not at {cell}")
        there = {thing.split()[1] for thing in first}
        errors += [f"there is a {shape}" for shape in _DENIED.findall(answer) if shape in there]
    elif kind == "colour":
        said_colours = _COLOURED.findall(answer)
        correct = said_colours == _COLOURED.findall(truth)
        errors += [
            f"the {s} is not {c}"
            for s, c in said_colours
            if not any(t.startswith(f"{c} {s} ") for t in first)
        ]
        if not said_colours:
            errors.append("names no colour")
    elif kind == "describe":
        items = {" ".join(item) for item in _CAPTION_ITEM.findall(answer)}
        correct = items == first
        errors += [f"not in the picture: {item}" for item in sorted(items - first)]
    elif kind == "steps":
        parts = {
            name: text for name, text in re.findall(r"(Picture one|Picture two|Therefore):([^\n]*)", answer)
        }
        for name, objects in zip(("Picture one", "Picture two"), metadata["objects"], strict=True):
            false = set(_listed(parts.get(name, ""))) - set(objects)
            errors += [f"not in {name.lower()}: {item}" for item in sorted(false)]
        correct = check_changes(parts.get("Therefore", ""))
    else:
        raise ValueError(f"unknown question type {kind!r}")
    return Verdict(answer == truth, correct, not errors, tuple(errors))
