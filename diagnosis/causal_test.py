"""The form of a causal test: what it needs, what it asks, what it measures of an answer, and how that is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from mmprobe.diagnosis.controls import find_highest
from mmprobe.diagnosis.effects import AnswerRecord, Effect, Limits, MeasuredPart
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample


class CauseScore(NamedTuple):
    """What the tests show about one cause.

    Attributes:
        effect: the score of the model, with its interval.
        answers: the score of each answer, 0 to 1; None where the test does not apply.
        detail: words that say more; "" for none.
        hindrance: why the cause cannot be named whatever its score, in words; "" if it can.
        doubt: why it cannot be decided if its score suffices, in words; "" if it can.
        which: what it concerns, such as an attribute, which the verdict says, too; "" where there is nothing to tell apart.
        unread: how many further answers the test applies to, and could not read.
    """

    effect: Effect
    answers: Scores
    detail: str = ""
    hindrance: str = ""
    doubt: str = ""
    which: str = ""
    unread: int = 0


class FollowUp(NamedTuple):
    """What is measured further, where the measures of all answers suspect something.

    Attributes:
        file: in the result folder, that its lines are added to.
        task: returns the lines, each with the `id` of the answer that it is about, and its `passes` unless that is one.
        about: what its lines say beside, by which the lines of another call are told.
    """

    file: str
    task: Task[list[dict[str, Any]]]
    about: dict[str, Any] = {}


@dataclass(frozen=True)
class CausalTest(ABC):
    """One test of a diagnosis: a reason why answers are not faithful to their images, and how it shows.

    A subclass is one file. Its docstring is its part of docs/diagnosis-rules.md. What was measured of an answer is a `MeasuredPart`, whose
    fields are keys of `measures.jsonl`; fields of the class are its thresholds. All methods but `score` may be left out.

    Attributes:
        name: of the cause.
        about: what the cause is, in a clause.
        effect: what its score is.
        needs: what the data must hold for the test.
        evidence: names of the effects (`measure_effects`) that are shown with the score.
        implies: the cause that follows from it and that `why` leaves out; "" for none.
        needs_sight: whether it cannot act in a model that does not use its images.
        by_kind: whether it is also scored for each kind of questions; not where it is about one kind anyway.
        is_difference: whether its score is a difference of two shares, and not a share of the answers.
        counts: what its score is a share of.
        files: of the result folder, to which it adds what is measured further, by the key that their lines have in a record.
        threshold: the least score with which it is named, with the scores of development models that it was chosen between
            (docs/diagnosis-results.md).

    Example:
        >>> from mmprobe.diagnosis.causes import CAUSES
        >>> CAUSES["looks-unused"].implies
        'blind'
    """

    name: ClassVar[str]
    about: ClassVar[str]
    effect: ClassVar[str]
    needs: ClassVar[str]
    evidence: ClassVar[tuple[str, ...]] = ()
    implies: ClassVar[str] = ""
    needs_sight: ClassVar[bool] = False
    by_kind: ClassVar[bool] = True
    is_difference: ClassVar[bool] = False
    counts: ClassVar[str] = "answers"
    files: ClassVar[Mapping[str, str]] = MappingProxyType({})
    threshold: float = 0.5

    def ask(self, case: Case) -> Task[MeasuredPart | None]:
        """Ask what the test needs of one answer, and return what it measures; None where it does not apply."""
        return None
        yield []

    def show(self, case: Case) -> Task[Chat | None]:
        """Return a changed prompt in which the cause shows, for an example: by default the first one that `ask` reads.

        None where it reads the answer's own prompt alone.
        """
        own, asked = build_chat(case.answer.sample), self.ask(case)
        pixels = [image.tobytes() for image in own.images]
        try:
            requests = next(asked)
            while True:
                for each in requests:
                    shown = [image.tobytes() for image in each.chat.images]
                    if each.chat.messages != own.messages or shown != pixels:
                        asked.close()
                        return each.chat
                requests = asked.send((yield requests))
        except StopIteration:
            return None

    def read(self, sample: Sample, text: str) -> MeasuredPart | None:
        """Return what the text of an answer shows by itself."""
        return None

    def follow_up(self, turn: int, study: Study, records: Sequence[AnswerRecord]) -> list[FollowUp]:
        """Return what is asked further, from the records of all answers.

        Args:
            turn: 1, and then 2, when the records hold what the first turn measured.
        """
        return []

    @abstractmethod
    def score(self, table: Table) -> CauseScore:
        """Return the scores of the model and of each answer."""

    def effects(self, table: Table) -> dict[str, Effect]:
        """Return further effects of the test, by name, which `evidence` may show."""
        return {}

    def describe(self, record: AnswerRecord) -> list[str]:
        """Return lines that say what was found of one answer."""
        return []

    def find_limit(self, limits: Limits, kind: str = "") -> float:
        """Return what the low end of the interval must reach: a part of the threshold, and the top of the controls' range.

        Args:
            kind: of questions, whose own range in the controls counts, too; "" for all questions.
        """
        return max(limits.least_low * self.threshold, find_highest(self.name, kind))

    def decide(self, effect: Effect, limits: Limits) -> bool | None:
        """Return whether an effect of all questions surely reaches the threshold and is outside the range of controls."""
        return effect.reaches(self.threshold, limits, find_highest(self.name))

    def missing(self, table: Table, needs: str = "") -> CauseScore:
        """Return the score where the data do not allow the test."""
        return CauseScore(Effect(name=self.effect, needs=needs or self.needs), [None] * len(table.records))
