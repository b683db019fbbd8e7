"""Questions of MagiC: what a line holds, and how a file of them is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.core.jsonl import check_path, read_records
from mmprobe.benchmarks.magic.boxes.regions import Box, Marked, check_box
from mmprobe.benchmarks.magic.steps import injected_steps, wrong_spans
from mmprobe.errors import InputError
from mmprobe.samples import Id


class MarkedBox(BaseModel):
    """A numbered box on the picture; its place in the list is its number, from 1.

    `names` are other words by which an answer may cite it, ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    box: Box
    relevant: bool
    source: Literal["object", "saliency", "distractor", "random"] = "object"
    names: list[Annotated[str, Field(min_length=1)]] = []

    def marked(self) -> Marked:
        return Marked(self.box, self.relevant, self.source)


class AnnotatedStep(BaseModel):
    """One step of a model's reasoning as people judged it; a wrong one has its correction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1)
    correct: bool
    correction: str | None = None

    @model_validator(mode="after")
    def _wrong_is_corrected(self) -> AnnotatedStep:
        if not self.correct and not self.correction:
            raise ValueError("a step that is not correct needs its 'correction'")
        return self


class MagicQuestion(BaseModel):
    """One question about one picture; the fields are those of a line of a questions file.

    Attributes:
        image: with its boxes drawn, unless they are yet to be made.
        answer, full_answer: the short true answer, and the whole sentence.
        type: such as GQA's verify, query, choose, logical, compare.
        boxes: as they are drawn and numbered; empty if they are yet to be made of the next three, by
            `number_regions`.
        objects: boxes of the objects that the question is about.
        saliency: pictures of where people looked who answered rightly.
        distractors: boxes of objects that other questions about the picture are about.
        steps: an annotated reasoning chain, for StepSense and Self-Heal.
        prompt: what is asked, word for word, in place of our instructions around the question.
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
    boxes: list[MarkedBox] = []
    objects: list[Box] = []
    saliency: list[Path] = []
    distractors: list[Box] = []
    steps: list[AnnotatedStep] = []
    prompt: str | None = Field(default=None, min_length=1)
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _has_regions(self) -> MagicQuestion:
        if self.boxes:
            if not any(box.relevant for box in self.boxes):
                raise ValueError("'boxes' holds none that is relevant")
        elif not (self.objects or self.saliency):
            raise ValueError("needs 'boxes', or 'objects' or 'saliency' to make them of")
        return self

    def relevant(self) -> frozenset[int]:
        """Numbers of the relevant boxes, from 1."""
        return frozenset(number for number, box in enumerate(self.boxes, 1) if box.relevant)


def load_questions(path: str | Path) -> list[MagicQuestion]:
    """Read a file of questions; paths of pictures are relative to it, and boxes must lie on their picture.

    Raises:
        InputError: naming line and field, for what is wrong with the first line that is wrong.

    Example:
        >>> load_questions("magic/questions.jsonl")[0].relevant()              # doctest: +SKIP
        frozenset({2, 5})
    """
    return [_resolved(question, path, number) for number, question in read_records(path, MagicQuestion)]


def _resolved(question: MagicQuestion, path: str | Path, number: int) -> MagicQuestion:
    image, (height, width) = check_path(question.image, path, number, "image")
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
                raise InputError(f"{path}, line {number}: field {field!r}: {error}") from None
    saliency = [check_path(file, path, number, "saliency", any_depth=True)[0] for file in question.saliency]
    return question.model_copy(update={"image": image, "saliency": saliency})


class HealCase(NamedTuple):
    """One run of wrong steps: what the model is made to have said, and what it should say next."""

    injected: list[str]
    corrections: list[str]


def heal_cases(question: MagicQuestion) -> list[HealCase]:
    """The cases of Self-Heal that a question's annotated steps give; none if no run of wrong ones is inside.

    Example:
        >>> question = {"id": "1", "image": "a.png", "question": "?", "answer": "yes"}
        >>> wrong = {"text": "It is blue.", "correct": False, "correction": "It is red."}
        >>> steps = [{"text": "I see R1.", "correct": True}, wrong] + [{"text": "So.", "correct": True}] * 2
        >>> heal_cases(MagicQuestion.model_validate(question | {"objects": [[0, 0, 5, 5]], "steps": steps}))
        [HealCase(injected=['I see R1.', 'It is blue.'], corrections=['It is red.'])]
    """
    texts = [step.text for step in question.steps]
    return [
        HealCase(
            injected_steps(texts, span),
            [step.correction or "" for step in question.steps[span.first - 1 : span.last]],
        )
        for span in wrong_spans([step.correct for step in question.steps])
    ]
