"""The questions of MagiC and their cases of Self-Heal: the fields of a line, and how a file is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.magic.regions import check_box
from mmprobe.benchmarks.magic.steps import find_wrong_spans, injected_steps
from mmprobe.errors import InputError
from mmprobe.files import read_records
from mmprobe.samples import Box, Id, resolve_image


class NumberedBox(BaseModel):
    """A box, x, y, width and height in pixels. Its place in the list is its number, from 1.

    `relevant` is whether it matters to the question; by other words in `names`, our choice, an answer may cite it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    box: Box
    relevant: bool
    source: Literal["object", "saliency", "distractor", "random"] = "object"
    names: list[Annotated[str, Field(min_length=1)]] = []


class AnnotatedStep(BaseModel):
    """One step of a model's reasoning with the verdict of people. A wrong step has a correction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1)
    correct: bool
    correction: str | None = None

    @model_validator(mode="after")
    def _check_correction(self) -> AnnotatedStep:
        if not self.correct and not self.correction:
            raise ValueError("a step that is not correct needs its 'correction'")
        return self


class MagicQuestion(BaseModel):
    """One question about one image. The fields are those of a line of a questions file.

    Attributes:
        image: the image. Its boxes are drawn on it, if there are any.
        answer, full_answer: the short true answer, and the whole sentence.
        type: such as verify, query, choose, logical or compare in GQA.
        boxes: the boxes in the order of their numbers. If empty, `number_regions` makes them from the next
            three fields.
        objects: boxes of the objects that the question is about.
        saliency: grey images of where people looked who answered correctly.
        distractors: boxes of objects that other questions about the image are about.
        steps: an annotated reasoning chain, for StepSense and Self-Heal.
        prompt: the complete prompt, in place of the question with our instructions.
        system: the system prompt.

    Example:
        >>> question = {"id": "1", "image": "a.png", "question": "Is it red?", "answer": "yes"}
        >>> MagicQuestion.model_validate(question | {"objects": [[0, 0, 5, 5]]}).objects
        [(0, 0, 5, 5)]
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    image: Path
    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    full_answer: str | None = None
    type: str | None = None
    boxes: list[NumberedBox] = []
    objects: list[Box] = []
    saliency: list[Path] = []
    distractors: list[Box] = []
    steps: list[AnnotatedStep] = []
    prompt: str | None = Field(default=None, min_length=1)
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_boxes(self) -> MagicQuestion:
        if self.boxes:
            if not any(box.relevant for box in self.boxes):
                raise ValueError("'boxes' contains none that is relevant")
        elif not (self.objects or self.saliency):
            raise ValueError("needs 'boxes', or 'objects' or 'saliency' to make them of")
        return self

    def relevant(self) -> frozenset[int]:
        """Return the numbers of the relevant boxes, from 1."""
        return frozenset(number for number, box in enumerate(self.boxes, 1) if box.relevant)


class HealCase(NamedTuple):
    """One case of Self-Heal: the steps that the answer begins with, wrong at the end, and their corrections."""

    injected: list[str]
    corrections: list[str]


class MagicTruth(NamedTuple):
    """The questions, and by the id of each its cases of Self-Heal, by the ids of their continuations."""

    questions: list[MagicQuestion]
    cases: Mapping[str, Mapping[str, HealCase]]


def load_questions(path: str | Path) -> list[MagicQuestion]:
    """Read a file of questions, with image paths relative to it and boxes that must be within their image."""
    return [_resolve_images(question, path, line) for line, question in read_records(path, MagicQuestion)]


def _resolve_images(question: MagicQuestion, path: str | Path, line: int) -> MagicQuestion:
    image, (height, width) = resolve_image(question.image, path, line, "image")
    fields = {
        "boxes": [box.box for box in question.boxes],
        "objects": question.objects,
        "distractors": question.distractors,
    }
    for field, boxes in fields.items():
        for box in boxes:
            try:
                check_box(box, (width, height))
            except InputError as error:
                raise InputError(f"{path}, line {line}: field {field!r}: {error}") from None
    saliency = [resolve_image(file, path, line, "saliency", any_depth=True)[0] for file in question.saliency]
    return question.model_copy(update={"image": image, "saliency": saliency})


def make_heal_cases(question: MagicQuestion) -> list[HealCase]:
    """Return the cases of Self-Heal of a question, one per run of wrong steps inside its annotated chain.

    Example:
        >>> fields = {"id": "1", "image": "a.png", "question": "?", "answer": "yes"}
        >>> fields |= {"objects": [[0, 0, 5, 5]]}
        >>> wrong = {"text": "It is blue.", "correct": False, "correction": "It is red."}
        >>> steps = [{"text": "I see R1.", "correct": True}, wrong] + [{"text": "So.", "correct": True}] * 2
        >>> make_heal_cases(MagicQuestion.model_validate(fields | {"steps": steps}))
        [HealCase(injected=['I see R1.', 'It is blue.'], corrections=['It is red.'])]
    """
    texts = [step.text for step in question.steps]
    return [
        HealCase(
            injected_steps(texts, span),
            [step.correction or "" for step in question.steps[span.first - 1 : span.last]],
        )
        for span in find_wrong_spans([step.correct for step in question.steps])
    ]
