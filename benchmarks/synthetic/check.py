"""Check answers of the synthetic world against their scenes, statement by statement, and label a run by it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES, is_drawn
from mmprobe.errors import InputError
from mmprobe.files import write_atomic
from mmprobe.samples import Sample

if TYPE_CHECKING:
    from mmprobe.cache import Run

_SENTENCE = re.compile(r"[^.]+\.?")
_CAPTION_ITEM = re.compile(r"\ban? (\w+) (\w+) at (\w+)", re.IGNORECASE)
_YES_OR_NO = re.compile(r"^\W*(yes|no)\b\W*", re.IGNORECASE)
# A sentence without any of these words, such as a polite one, claims nothing of pictures.
_CLAIMS = re.compile(
    rf"\b({'|'.join(SHAPES)}|{'|'.join(COLOURS)}|[a-d][1-4]|pictures?|images?|nothing|something|chang|mov|remov|differen|same)",
    re.IGNORECASE,
)
_DENIED = re.compile(r"there is no (\w+)", re.IGNORECASE)
_LOCATED = re.compile(r"the (\w+) is at (\w+)", re.IGNORECASE)
_COLOURED = re.compile(r"the (\w+) is (\w+)(?:\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class AnswerCheck:
    """The result of the check of one answer.

    Attributes:
        exact: the answer equals the true answer, word for word.
        correct: the conclusion is right: yes or no, the number, the colour, or the set of differences.
        faithful: the answer states something, and no statement is false. Missing statements do not count.
        errors: each false statement with the reason.
        spans: first character and the one after the last of what the answer says falsely.
    """

    exact: bool
    correct: bool
    faithful: bool
    errors: tuple[str, ...]
    spans: tuple[tuple[int, int], ...] = ()

    def label(self, name: str) -> dict[str, Any]:
        """Return the line of `labels.jsonl` for the answer to a sample of this id."""
        return {
            "id": name,
            "faithful": self.faithful,
            "correct": self.correct,
            "errors": self.errors,
            "false_spans": self.spans,
        }


class _Error(NamedTuple):
    """What is false, the words of the answer that say so, and words that precede these."""

    reason: str
    words: str = ""
    after: str = ""


_Checked = tuple[bool, list[_Error]]


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
    """The truth of a pair: the objects of each image, as `red star B2`, and one sentence a difference."""

    objects: list[set[str]]
    changes: set[str]


def check_answer(answer: str, truth: str, metadata: dict[str, Any]) -> AnswerCheck:
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
    reasons, spans = tuple(error.reason for error in errors), tuple(_find_spans(answer, errors))
    return AnswerCheck(answer == truth, correct, not errors, reasons, spans)


def _find_spans(answer: str, errors: Iterable[_Error]) -> Iterator[tuple[int, int]]:
    for error in errors:
        start = max(answer.lower().find(error.after.lower()), 0)
        place = answer.lower().find(error.words.lower(), start) if error.words else -1
        if place >= 0:
            yield place, place + len(error.words)


def _check_yes_no(answer: str, truth: str) -> _Checked:
    is_yes = _starts_with_yes(answer)
    if is_yes == _starts_with_yes(truth):
        return True, []
    if is_yes is None:
        return False, [_Error("neither yes nor no")]
    word = "yes" if is_yes else "no"
    return False, [_Error(f"{word} is wrong", word)]


def _find_claims(text: str) -> set[str]:
    """Return the sentences of a text that claim something of pictures."""
    return {sentence for sentence in _split_sentences(text) if _CLAIMS.search(sentence)}


def _check_changes(text: str, facts: _Facts) -> _Checked:
    claimed = _find_claims(text)
    false = sorted(claimed - facts.changes)
    return claimed == facts.changes, [_Error(f"not a change: {claim}", claim.rstrip(".")) for claim in false]


def _check_pair(answer: str, truth: str, facts: _Facts) -> _Checked:
    correct, errors = _check_yes_no(answer, truth)
    return correct, errors + _check_changes(_YES_OR_NO.sub("", answer), facts)[1]


def _check_count(answer: str, truth: str, facts: _Facts) -> _Checked:
    said = next((part for part in _split_sentences(answer) if "difference" in part), answer)
    correct = said.rstrip(".") == truth.rstrip(".")
    return correct, [] if correct else [
        _Error(f"wrong number: {said}", said if said in answer else said.rstrip("."))
    ]


def _check_find(answer: str, truth: str, facts: _Facts) -> _Checked:
    correct, errors = _check_changes(answer, facts)
    return correct, errors if _find_claims(answer) else [_Error("names no difference")]


def _check_exists(answer: str, truth: str, facts: _Facts) -> _Checked:
    correct, errors = _check_yes_no(answer, truth)
    places = {tuple(obj.split()[1:]) for obj in facts.objects[0]}
    errors += [
        _Error(f"the {shape} is not at {cell}", f"the {shape} is at {cell}")
        for shape, cell in _LOCATED.findall(answer)
        if (shape, cell) not in places
    ]
    present = {shape for shape, _ in places}
    denied = [shape for shape in _DENIED.findall(answer) if shape in present]
    return correct, errors + [_Error(f"there is a {shape}", f"there is no {shape}") for shape in denied]


def _check_colour(answer: str, truth: str, facts: _Facts) -> _Checked:
    claims = _COLOURED.findall(answer)
    true = {(shape, colour) for colour, shape, _ in (obj.split() for obj in facts.objects[0])}
    errors = [
        _Error(f"the {shape} is not {colour}", f"the {shape} is {colour}")
        for shape, colour in claims
        if (shape, colour) not in true
    ]
    return claims == _COLOURED.findall(truth) != [], errors if claims else [_Error("names no colour")]


def _check_description(answer: str, truth: str, facts: _Facts) -> _Checked:
    items = {" ".join(item) for item in _CAPTION_ITEM.findall(answer)}
    errors = [
        _Error(f"not in the picture: {item}", "{} {} at {}".format(*item.split()))
        for item in sorted(items - facts.objects[0])
    ]
    return items == facts.objects[0], errors if items else [_Error("names nothing")]


def _check_steps(answer: str, truth: str, facts: _Facts) -> _Checked:
    """Check each listed object against its image, and the conclusion against the true differences."""
    parts = dict(re.findall(r"(Picture one|Picture two|Therefore):([^\n]*)", answer))
    errors: list[_Error] = []
    for name, objects in zip(("Picture one", "Picture two"), facts.objects, strict=True):
        claimed = set(_split_list(parts.get(name, "")))
        false = sorted(claimed - objects)
        errors += [_Error(f"not in {name.lower()}: {item}", item, after=name) for item in false]
    correct, conclusion_errors = _check_changes(parts.get("Therefore", ""), facts)
    return correct, errors + conclusion_errors if parts else [_Error("compares nothing")]


_CHECKS: dict[str, Callable[[str, str, _Facts], _Checked]] = {
    "same": _check_pair,
    "different": _check_pair,
    "count": _check_count,
    "find": _check_find,
    "exists": _check_exists,
    "colour": _check_colour,
    "describe": _check_description,
    "steps": _check_steps,
}


def label_run(run: Run) -> dict[str, AnswerCheck]:
    """Check every answer against its scene, and write the verdicts to `labels.jsonl`, read when it is opened."""
    verdicts = {}
    for name in run.ids:
        trace = run[name]
        verdict = check_sample(trace.answer, trace.sample)
        if verdict is None:
            raise InputError(
                f"{run.path}: sample {name} lacks the contents of its images, which a check needs"
            )
        verdicts[name] = verdict
    lines = [json.dumps(verdict.label(name)) for name, verdict in verdicts.items()]
    write_atomic(run.path / "labels.jsonl", "".join(line + "\n" for line in lines))
    return verdicts


def check_sample(text: str, sample: Sample) -> AnswerCheck | None:
    """Check an answer to a sample of the synthetic world; return None for samples from elsewhere.

    Example:
        >>> check_sample("Yes.", Sample(id="a", question="Is there a star?")) is None
        True
    """
    if sample.answer is None or not {"type", "objects", "differences"} <= sample.metadata.keys():
        return None
    if not is_drawn(sample.metadata["objects"]):
        return None
    with suppress(ValueError):  # a question of another kind
        return check_answer(text, sample.answer, sample.metadata)
    return None
