"""Steps replaced: does the conclusion change with them, or with the images alone?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmprobe.diagnosis.answers import ParsedAnswer, make_answer
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore, FollowUp
from mmprobe.diagnosis.claims import follows_from_steps
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Effect, MeasuredPart
from mmprobe.diagnosis.images import ALIKE, OtherImages, list_others, read_kinds
from mmprobe.diagnosis.schedule import AnswerReading, Read, Say, Task, read, say, together
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample

CONCLUSIONS = "conclusions.jsonl"
FURTHER = 12  # sets of images that are asked about for further conclusions
NEEDS_STEPS = "answers with steps on separate lines, and with different conclusions"
_PART = re.compile(r"(?<=[,;:]) ")
_SENTENCE = re.compile(r"(?<=[.!?]) ")


class ReplacedSteps(MeasuredPart):
    """How a conclusion changes when its steps or its images are exchanged.

    Attributes:
        conclusion: its text.
        follows: whether it says what follows from its steps; None where they cannot be read.
        moved: by change of the steps, whether the model would have concluded something else.
        lost: by change of the steps, what the conclusion loses, nat.
        moved_by_images, lost_by_images: the same with other images after its own steps.
    """

    conclusion: str
    follows: bool | None = None
    moved: dict[str, bool] = {}
    lost: dict[str, float] = {}
    moved_by_images: bool = False
    lost_by_images: float = 0.0


class Further(MeasuredPart):
    """A further conclusion about the images of an answer."""

    steps: ReplacedSteps | None = None


class StepsRecord(MeasuredPart):
    """The steps of an answer, None where it has none, and further conclusions about its images (`plan_conclusions`)."""

    steps: ReplacedSteps | None = None
    conclusions: list[Further] = []

    @property
    def every(self) -> list[ReplacedSteps]:
        """The steps of the answer and of the further conclusions."""
        return [
            each
            for each in (self.steps, *(further.steps for further in self.conclusions))
            if each is not None
        ]


@dataclass(frozen=True)
class DecidedFirst(CausalTest):
    """Does the conclusion follow from its steps, or from the images alone?

    Steps are exchanged for those of another conclusion, or lose a part, a line or a sentence. A conclusion is what follows `</think>`,
    else the last line, else a last sentence that begins with a word such as *Therefore*. It was decided first if it does not follow from
    its steps and none of these edits costs it {decided_share:.0%} of what other images cost it. What follows counts, since `tiny-spd`
    itself often concludes from the images again.

    The most frequent conclusion does not count unless it contradicts its steps, because models fall back on it when the steps are
    uninformative. Where it is not known what follows, the low end of the interval must reach the threshold.

    If the interval holds the threshold and the score is half of it or more, the model is asked further. Questions that it answered with
    steps are asked about up to {further} further sets of images, if each question had been asked about two sets or more. These
    conclusions count with the others.
    """

    name = "decided-first"
    about = "the conclusion comes from the images, whatever the steps before it say"
    effect = "conclusions that change with the images, do not follow from their steps and are almost as likely after others"
    needs = NEEDS_STEPS
    evidence = ("moved by steps", "moved by images")
    needs_sight = True
    files = MappingProxyType({"conclusions": CONCLUSIONS})
    threshold: float = 0.5  # development models without it score 35 % at most, with it 70 % or more
    decided_share: float = 0.05  # as good from 0.025 to 0.075

    def ask(self, case: Case) -> Task[StepsRecord]:
        steps = yield from measure_steps(case.study, case.answer, case.readings)
        return StepsRecord(steps=steps)

    def follow_up(self, turn: int, study: Study, records: Sequence[AnswerRecord]) -> list[FollowUp]:
        """Ask for further conclusions, where those of the answers are too few to say whether they were decided first.

        They are asked for where the interval holds the threshold and the score is half of it or more, unless answers are given.
        """
        if turn > 1 or study.given:
            return []
        first = [AnswerRecord({**record.line, "conclusions": []}) for record in records]
        effect = self.score(Table(first, study.samples, LIMITS, {})).effect
        is_open = effect.low < self.threshold <= effect.high and 2 * effect.value >= self.threshold
        shown = plan_conclusions(study.answers) if is_open else {}
        return [FollowUp(CONCLUSIONS, ask_conclusions(study, shown))] if shown else []

    def score(self, table: Table) -> CauseScore:
        records = table.of(StepsRecord)
        usual = find_usual_conclusion(records)
        found = [
            [score for steps in record.every if (score := self.score_decision(steps, usual)) is not None]
            for record in records
        ]
        effect, doubt = table.rate(self.effect, found, self.needs), ""
        scores: Scores = [
            None if record.steps is None else self.score_decision(record.steps, usual) for record in records
        ]
        read = [steps.follows is not None for record in records for steps in record.every]
        if not all(read) and not effect.low >= self.threshold:
            doubt = "it is not known what follows from the steps, so the low end of the interval must reach the threshold"
        return CauseScore(effect, scores, doubt=doubt)

    def score_decision(self, steps: ReplacedSteps, usual: str | None = None) -> float | None:
        """Return 1 for a conclusion that changes with the images and is almost as likely after other steps, else 0.

        It is almost as likely if no change of its steps costs it `decided_share` of what other images cost it. 0 for one that follows
        from its steps: models that look again where their steps are changed would come to it either way. None for the usual
        conclusion, unless it contradicts its steps.
        """
        if steps.follows is not False and steps.conclusion == usual:
            return None
        if steps.follows:
            return 0.0
        lost = max(steps.lost.values())
        return float(steps.moved_by_images and lost < self.decided_share * steps.lost_by_images)

    def effects(self, table: Table) -> dict[str, Effect]:
        every = [record.every for record in table.of(StepsRecord)]
        by_images = [[float(steps.moved_by_images) for steps in own] for own in every]
        by_steps = [[float(any(steps.moved.values())) for steps in own] for own in every]
        return {
            "moved by images": table.rate("conclusions that change with the images", by_images, NEEDS_STEPS),
            "moved by steps": table.rate("conclusions that change with their steps", by_steps, NEEDS_STEPS),
        }

    def describe(self, record: AnswerRecord) -> list[str]:
        steps = record.of(StepsRecord).steps
        if steps is None:
            return []
        changes = ", ".join(name for name, moved in steps.moved.items() if moved) or "none"
        by_images = "changes" if steps.moved_by_images else "does not change"
        return [f"conclusion {by_images} with the images; step edits that change it: {changes}"]


def find_usual_conclusion(records: Sequence[StepsRecord]) -> str | None:
    """Return the conclusion that most answers come to; None if no two agree.

    Models fall back on it when their steps are uninformative, so it cannot show that steps are not used.
    """
    counts = Counter(steps.conclusion for record in records for steps in record.every)
    conclusion, count = counts.most_common(1)[0] if counts else ("", 0)
    return conclusion if count > 1 else None


def find_donor(study: Study, answer: ParsedAnswer) -> ParsedAnswer | None:
    """Return the next answer to the same question whose steps lead to something else."""
    if answer.conclusion is None:
        return None
    others = (other for other in study.same_question(answer) if other.conclusion is not None)
    return next((other for other in others if other.verdict != answer.verdict), None)


def measure_steps(
    study: Study, answer: ParsedAnswer, readings: Mapping[str, AnswerReading]
) -> Task[ReplacedSteps | None]:
    """Return how a conclusion changes when its steps or its images are exchanged; None for an answer without a donor.

    The steps become those of another answer with another conclusion, or lose a part or a line. Up to four readings.
    """
    donor, start = find_donor(study, answer), answer.conclusion
    if donor is None or start is None:
        return None
    chains = {"all": donor.ids[: donor.conclusion]}
    for kind, shorter in _shorten("".join(answer.tokens[:start])).items():
        chains[kind] = list(study.model.tokenizer(shorter, add_special_tokens=False)["input_ids"])
    conclusion, chat, own = answer.ids[start:], build_chat(answer.sample), readings["own"]
    forced = yield from read([Read(chat, steps + conclusion) for steps in chains.values()])
    last, found = slice(-len(conclusion), None), dict(zip(chains, forced, strict=True))
    others, said = (
        list_others(readings).values(),
        own.likeliest[start:],
    )  # the answer itself, unless it was given
    return ReplacedSteps(
        conclusion=answer.verdict.strip(),
        follows=follows_from_steps(answer.text),
        moved={
            kind: bool((each.likeliest[last] != own.likeliest[last]).any()) for kind, each in found.items()
        },
        lost={
            kind: round(float((own.logprobs[last] - each.logprobs[last]).sum()), 4)
            for kind, each in found.items()
        },
        moved_by_images=any(bool((other.likeliest[start:] != said).any()) for other in others),
        lost_by_images=max(float((own.logprobs - other.logprobs)[start:].sum()) for other in others),
    )


def ask_conclusions(study: Study, shown: Mapping[str, Sample]) -> Task[list[dict[str, Any]]]:
    """Return the lines of further conclusions, with the ids of the samples whose images they are about.

    Args:
        shown: as from `plan_conclusions`.
    """
    said = yield from say([Say(build_chat(sample), study.max_new_tokens) for sample in shown.values()])
    answers = {
        name: make_answer(study.model, sample, ids)
        for (name, sample), ids in zip(shown.items(), said, strict=True)
        if ids
    }
    images = OtherImages([*study.answers, *answers.values()])
    found = yield from together([_measure_conclusion(study, answer, images) for answer in answers.values()])
    return [
        {
            "id": name,
            "steps": None if each.value is None else each.value.model_dump(),
            "passes": 1 + each.passes,
        }
        for name, each in zip(answers, found, strict=True)
    ]


def _measure_conclusion(
    study: Study, answer: ParsedAnswer, images: OtherImages
) -> Task[ReplacedSteps | None]:
    others = {kind: shown for kind, shown in images.find(answer).items() if kind != ALIKE}
    readings = yield from read_kinds(answer, {"own": None, **others})
    return (yield from measure_steps(study, answer, readings))


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
