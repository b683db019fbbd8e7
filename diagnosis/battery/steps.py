"""Steps replaced: does the conclusion change with them, or with the images alone?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.attributes import follows_from_steps
from mmprobe.diagnosis.battery.images import list_others
from mmprobe.diagnosis.battery.reading import AnswerReading, read_answers
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample

FURTHER = 12  # sets of images that are asked about for further conclusions
_PART = re.compile(r"(?<=[,;:]) ")
_SENTENCE = re.compile(r"(?<=[.!?]) ")


class _ChangedSteps(NamedTuple):
    """Steps before the conclusion of an answer."""

    row: int
    kind: str
    steps: list[int]


def drop_part(text: str, last: bool) -> str | None:
    """Return steps of which one lacks a part: the first line its first part, or the last line its last one.

    Commas, semicolons and colons separate the parts of a line. What precedes a colon is kept. None if the
    line has fewer than two parts.

    Example:
        >>> drop_part("One: a star, a ring.\\nTwo: a star, a ring.\\n", last=True)
        'One: a star, a ring.\\nTwo: a star.\\n'
    """
    lines = text.split("\n")
    number = max((place for place, line in enumerate(lines) if _PART.search(line)), default=-1) if last else 0
    label, colon, rest = lines[number].rpartition(": ")
    parts = [part.rstrip(",;") for part in _PART.split(rest)]
    if number < 0 or len(parts) < 2:
        return None
    end = "." if rest.endswith(".") else ""
    kept = parts[:-1] if last else parts[1:]
    lines[number] = label + colon + ", ".join(kept).rstrip(".") + end
    return "\n".join(lines)


def _shorten(steps: str) -> dict[str, str]:
    """Return steps that lack a part, a line or a sentence of a single line, by what they lack."""
    lines, sentences = steps.split("\n"), _SENTENCE.split(steps)  # the last ones lead to the conclusion
    if len(lines) == 1 and len(sentences) > 2:
        return {"a sentence": " ".join([*sentences[:-2], sentences[-1]])}
    shorter = {"first part": drop_part(steps, last=False), "last part": drop_part(steps, last=True)}
    if len(lines) > 2:
        shorter["a line"] = "\n".join([*lines[:-2], lines[-1]])
    return {kind: text for kind, text in shorter.items() if text is not None}


def plan_conclusions(answers: Sequence[ParsedAnswer]) -> dict[str, Sample]:
    """Return further questions that ask for steps and a conclusion, by the id of the sample whose images they are about.

    They are questions that the model answered with steps, asked about up to `FURTHER` sets of images that no such question was about.
    A question counts if it was asked about two sets of images or more: else it may be about what is in one of them. Conversations
    are left out.

    Example:
        >>> steps = ParsedAnswer(Sample(id="a", images=["a.png"], question="Why?"), [1, 2], "It is red.\\nRed.", ["It is red.\\n", "Red."])
        >>> again = steps._replace(sample=Sample(id="b", images=["b.png"], question="Why?"))
        >>> other = ParsedAnswer(Sample(id="c", images=["c.png"], question="Is it red?"), [1], "No.", ["No."])
        >>> [(name, sample.question, str(sample.images[0])) for name, sample in plan_conclusions([steps, again, other]).items()]
        [('c', 'Why?', 'c.png')]
    """
    asked: dict[tuple[int, str], dict[tuple[Path, ...], Sample]] = {}
    for answer in answers:
        sample = answer.sample
        if answer.conclusion is not None and not sample.messages:
            asked.setdefault((len(sample.images), sample.question), {})[tuple(sample.images)] = sample
    seen = {images for own in asked.values() for images in own}
    left = {
        tuple(each.sample.images): each.sample for each in answers if tuple(each.sample.images) not in seen
    }
    by_size: dict[int, list[Sample]] = {}
    for (size, _), own in asked.items():
        by_size.setdefault(size, []).extend(list(own.values())[:1] if len(own) > 1 else [])
    planned: dict[str, Sample] = {}
    for number, shown in enumerate(left.values()):
        questions = by_size.get(len(shown.images), [])
        if questions and len(planned) < FURTHER:
            question = questions[number % len(questions)]
            fields: dict[str, Any] = {
                "images": shown.images,
                "answer": None,
                "regions": [],
                "pair_id": None,
                "metadata": {},
            }
            planned[shown.id] = question.model_copy(update={"id": f"{shown.id}-conclusion", **fields})
    return planned


def measure_steps(
    model: Model,
    answers: Sequence[ParsedAnswer],
    readings: Sequence[dict[str, AnswerReading]],
    donors: Sequence[ParsedAnswer | None],
) -> list[dict[str, Any] | None]:
    """Return how each conclusion changes when its steps or its images are exchanged.

    The steps become those of another answer with another conclusion, or lose a part or a line. Up to four forward
    passes over the answers with a donor; the others get None.

    - conclusion: its text; follows: whether it says what follows from its steps, None where they cannot be read
    - moved: by change of the steps, whether the model would have concluded something else
    - moved_by_images: the same with other images after its own steps
    - lost, lost_by_images: what the conclusion loses, nat
    """
    results: list[dict[str, Any] | None] = [None] * len(answers)
    chains: list[_ChangedSteps] = []
    for row, (answer, donor) in enumerate(zip(answers, donors, strict=True)):
        start = answer.conclusion
        if donor is None or start is None:
            continue
        chains.append(_ChangedSteps(row, "all", donor.ids[: donor.conclusion]))
        steps = "".join(answer.tokens[:start])
        for kind, shorter in _shorten(steps).items():
            ids = model.tokenizer(shorter, add_special_tokens=False)["input_ids"]
            chains.append(_ChangedSteps(row, kind, list(ids)))
        own = readings[row]["own"]
        others = list_others(readings[row]).values()
        conclusion = own.likeliest[start:]  # the answer itself, unless it was given
        results[row] = {
            "conclusion": answer.verdict.strip(),
            "follows": follows_from_steps(answer.text),
            "moved": {},
            "lost": {},
            "moved_by_images": any(bool((other.likeliest[start:] != conclusion).any()) for other in others),
            "lost_by_images": max(float((own.logprobs - other.logprobs)[start:].sum()) for other in others),
        }
    for kind in dict.fromkeys(chain.kind for chain in chains):
        same_kind = [chain for chain in chains if chain.kind == kind]
        _read_chains(model, answers, readings, same_kind, results)
    return results


def _read_chains(
    model: Model,
    answers: Sequence[ParsedAnswer],
    readings: Sequence[dict[str, AnswerReading]],
    chains: Sequence[_ChangedSteps],
    results: list[dict[str, Any] | None],
) -> None:
    """Add to the results what the conclusions become after other steps."""
    conclusions = [answers[chain.row].ids[answers[chain.row].conclusion :] for chain in chains]
    chats = [build_chat(answers[chain.row].sample) for chain in chains]
    forced = [chain.steps + ids for chain, ids in zip(chains, conclusions, strict=True)]
    for chain, ids, reading in zip(chains, conclusions, read_answers(model, chats, forced), strict=True):
        result, own, last = results[chain.row], readings[chain.row]["own"], slice(-len(ids), None)
        if result is not None:
            result["moved"][chain.kind] = bool((reading.likeliest[last] != own.likeliest[last]).any())
            result["lost"][chain.kind] = round(float((own.logprobs[last] - reading.logprobs[last]).sum()), 4)
