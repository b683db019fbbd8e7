"""Without images: is the answer what the model says without its image, where the image shows something else?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.battery.order import OrderRecord
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.effects import AnswerRecord, MeasuredPart
from mmprobe.diagnosis.schedule import AnswerReading, Read, Task, read
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.diagnosis.truth import TruthRecord
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.probes.interchange.counterfactual_images import GREY
from mmprobe.samples import Sample

BLANK, NOISE, TEXT = "blank", "noise", "text"
LEAST_SAME = (
    2  # of the three readings without an image, from which on an answer is what the model says without it
)


class WithoutImage(MeasuredPart):
    """Whether an answer is what the model says without its images.

    Attributes:
        same: by what takes their place (a grey image, noise, nothing), whether the model gives the same answer.
        stays: whether it gives the same answer to the minimal pair, whose true answer is another one; None without one.
    """

    same: dict[str, bool]
    stays: bool | None = None

    @property
    def agrees(self) -> bool:
        """Whether most readings without images give the same answer."""
        return sum(self.same.values()) >= LEAST_SAME


class WithoutImageRecord(MeasuredPart):
    """What an answer is without its images."""

    without: WithoutImage | None = None


@dataclass(frozen=True)
class LanguagePrior(CausalTest):
    """Is the answer what the model says without its image, where the image shows something else?

    The model reads its answer with grey images and after the text alone, and with noise where these differ. It says the same without its
    images if {least_same} of them give the same answer, word for word. Where a minimal pair of other truth is known (`metadata.counterfactual_answer`), such
    as a banana that was painted red, an answer follows the prior if it is the same without its images and with the edited one. Elsewhere it
    follows the prior if it is the same without its images and false; a true answer that is the same shows nothing, and is left out.

    Answers that go by the place of an option are left out, since places decide them. A model that uses no image at all is `blind`.
    """

    name = "language-prior"
    about = "the answers are what the model says without its images, where these show something else"
    effect = "answers that are the same without the image, of those that the image contradicts or decides"
    needs = "answers whose truth is known, or minimal pairs with their true answers (metadata.counterfactual_answer)"
    needs_sight = True
    threshold: float = 0.4

    def ask(self, case: Case) -> Task[WithoutImageRecord]:
        """Read the answer without its images."""
        answer = case.answer
        noise, others = build_without(answer)
        readings = yield from read([Read(chat, answer.ids) for chat in others.values()])
        same = dict(zip(others, map(_is_same, readings), strict=True))
        if sum(same.values()) == 1:  # the third one decides
            (reading,) = yield from read([Read(noise, answer.ids)])
            same[NOISE] = _is_same(reading)
        minimal = case.readings.get("minimal") if has_other_truth(answer.sample) else None
        stays = None if minimal is None else _is_same(minimal)
        return WithoutImageRecord(without=WithoutImage(same=same, stays=stays))

    def score(self, table: Table) -> CauseScore:
        answers: Scores = [self.score_answer(record) for record in table.records]
        unread = sum(
            record.of(TruthRecord).right is None
            and (without := record.of(WithoutImageRecord).without) is not None
            and without.stays is None
            for record in table.records
        )
        return CauseScore(table.mean(self.effect, answers, needs=self.needs), answers, unread=unread)

    def score_answer(self, record: AnswerRecord) -> float | None:
        """Return 1 for an answer that follows the prior, 0 for one that the image decides, None where it shows nothing."""
        without, right = record.of(WithoutImageRecord).without, record.of(TruthRecord).right
        places = record.of(OrderRecord).places
        if without is None or (places is not None and places.moved):
            return None
        if without.stays is not None:
            return float(without.agrees and without.stays)
        if right is None or (right and without.agrees):
            return None
        return float(without.agrees)

    def describe(self, record: AnswerRecord) -> list[str]:
        without = record.of(WithoutImageRecord).without
        if without is None:
            return []
        same = ", ".join(kind for kind, each in without.same.items() if each) or "none"
        lines = [f"the same without its images, in the place of which there is: {same}"]
        if without.stays is not None:
            lines.append(f"{'the same' if without.stays else 'another one'} with the minimal pair")
        return lines


def build_without(answer: ParsedAnswer) -> tuple[Chat, dict[str, Chat]]:
    """Return an answer's chat with noise in the place of its images; and those with grey images and of the text alone, by kind.

    A conversation keeps its images' places, so it has no chat of the text alone.
    """
    sample, chat = answer.sample, build_chat(answer.sample)
    rng = np.random.default_rng(0)
    noise = [
        Image.fromarray(rng.integers(0, 256, (image.height, image.width, 3), dtype=np.uint8))
        for image in chat.images
    ]
    grey = [Image.new("RGB", image.size, (GREY,) * 3) for image in chat.images]
    found = {BLANK: chat._replace(images=grey)}
    if not sample.messages:
        found[TEXT] = build_chat(sample.model_copy(update={"images": [], "regions": []}))
    return chat._replace(images=noise), found


def has_other_truth(sample: Sample) -> bool:
    """Return whether the true answer to a sample's minimal pair is known, and another one."""
    other = sample.metadata.get("counterfactual_answer")
    return other is not None and other != sample.answer


def _is_same(reading: AnswerReading) -> bool:
    return bool((reading.margins > 0).all())
