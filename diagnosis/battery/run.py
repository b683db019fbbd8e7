"""The loop over the answers: run every test on each answer, and save each batch of records."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tqdm import tqdm

from mmprobe.benchmarks.answers.options import split_options
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.vqa.data import make_question
from mmprobe.benchmarks.vqa.rule_labels import read_answer
from mmprobe.diagnosis.battery.again import ROUNDS, plan_again
from mmprobe.diagnosis.battery.altered import find_suspected, measure_alterations, plan_alterations
from mmprobe.diagnosis.battery.answers import ParsedAnswer, make_answer
from mmprobe.diagnosis.battery.attributes import measure_attributes, measure_truth
from mmprobe.diagnosis.battery.counts import measure_counts
from mmprobe.diagnosis.battery.cues import (
    ask_cues,
    draw_questions,
    find_claims,
    find_suspects,
    measure_edits,
    plan_edits,
)
from mmprobe.diagnosis.battery.hints import (
    MANY,
    Choice,
    find_choice,
    measure_hints,
    try_hints,
)
from mmprobe.diagnosis.battery.images import (
    ALIKE,
    OtherImages,
    measure_images,
    read_with_further_images,
    read_with_images,
)
from mmprobe.diagnosis.battery.judged import JUDGED, add_labels, ask_judge, read_labels
from mmprobe.diagnosis.battery.places import OPTIONS, add_options, measure_options, measure_places
from mmprobe.diagnosis.battery.steps import measure_steps, plan_conclusions
from mmprobe.diagnosis.battery.turns import (
    CLAIMED,
    COPIED,
    ask_turns,
    measure_turns,
)
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.effects import AnswerRecord, Table, describe_shortage, load_thresholds
from mmprobe.errors import InputError, NotApplicable
from mmprobe.interventions import Settings
from mmprobe.ledger import Ledger
from mmprobe.models import Model
from mmprobe.samples import Sample, check_no_videos, image_sets
from mmprobe.traces import asking
from mmprobe.traces.asking import GivenAnswer, find_given

log = logging.getLogger("mmprobe")

ANSWERS, MEASURES = "answers.part.jsonl", "measures.jsonl"
# What is measured further where the measures suspect it
EDITS, ALTERED, AGAIN, CONCLUSIONS = "edits.jsonl", "altered.jsonl", "again.jsonl", "conclusions.jsonl"
KEPT = (ANSWERS, MEASURES, EDITS, ALTERED, AGAIN, CONCLUSIONS, JUDGED)
HINTS = "hints"  # in records, the hints that an answer got
MAX_NEW_TOKENS = 128
LONG = 40  # words; a question with more has no alike ones
MOST_ALIKE = 8  # questions that differ in one word from another, at one place, and answers to each of them


def run_battery(
    model: Model,
    samples: Sequence[Sample],
    ledger: Ledger,
    batch_size: int = 8,
    max_new_tokens: int = MAX_NEW_TOKENS,
    given: Mapping[str, GivenAnswer] | None = None,
    judge: Judge | None = None,
) -> list[AnswerRecord]:
    """Ask every sample, unless answers are given, run every test that applies on the answers, and return one record a sample, in order.

    The ledger's folder keeps the answers and the records of a call that was stopped; a second call continues from there. A judge
    reads what rules cannot.

    Raises:
        NotApplicable: no sample has images, or a sample begins its answer with a prefill.
    """
    check_no_videos(samples, "diagnose")
    samples = [sample for sample in samples if sample.images]
    if not samples:
        raise NotApplicable("diagnose: no sample has images, so nothing can be exchanged")
    if any(sample.prefill for sample in samples):
        raise InputError("diagnose: give samples without a prefill; the tests write the answers' beginnings")
    limits, n_sets = load_thresholds(), len(set(image_sets(samples).tolist()))
    if len(samples) < limits.least_answers or n_sets < limits.least_sets:
        log.warning("no cause can be named: %s", describe_shortage(len(samples), n_sets, limits))
    if given is None:
        answers = _answer_all(model, samples, ledger, batch_size, max_new_tokens)
    else:
        answers = _take_given(model, samples, ledger, given)
    tests = _Tests(model, answers)
    done = _by_id(ledger.lines(MEASURES))
    left = sorted(
        (answer for answer in answers if answer.ids and answer.sample.id not in done),
        key=lambda each: len(each.ids),
    )
    with tqdm(total=len(answers), initial=len(done), desc="tests", unit="answer", disable=None) as progress:
        for batch in _batches(left, batch_size, lambda answer: len(answer.sample.images)):
            ledger.append(MEASURES, tests.measure(batch))
            progress.update(len(batch))
    done = _by_id(ledger.lines(MEASURES))
    measured = [done[sample.id] for sample in samples if sample.id in done]
    _edit_cues(model, samples, measured, ledger, batch_size)
    _alter_things(model, answers, ledger, batch_size)
    tests.try_again(measured, ledger, batch_size)
    if given is None:
        tests.ask_conclusions(samples, measured, ledger, batch_size, max_new_tokens)
    if judge is not None:
        ask_judge(judge, samples, read_records(ledger, samples), ledger)
    return read_records(ledger, samples)


def read_records(ledger: Ledger, samples: Sequence[Sample]) -> list[AnswerRecord]:
    """Return the records of a finished battery, one a sample, in order. What reads texts alone is read again."""
    done = _by_id(ledger.lines(MEASURES))
    labels = read_labels(ledger)
    further = {
        "edited": ledger.lines(EDITS),
        "altered": ledger.lines(ALTERED),
        "again": ledger.lines(AGAIN),
        "conclusions": ledger.lines(CONCLUSIONS),
    }
    records = []
    for sample in (sample for sample in samples if sample.id in done):
        record = done[sample.id]
        record |= add_labels(sample, _read_text(sample, record["answer"]), labels.get(sample.id, {}))
        for name, lines in further.items():
            record[name] = [line for line in lines if line["id"] == sample.id]
            record["passes"] += sum(line.get("passes", 1) for line in record[name])
        records.append(record)
    return records


def _read_text(sample: Sample, text: str) -> AnswerRecord:
    """Return what an answer's text alone shows."""
    return {
        "listed": find_claims(sample, text),
        "attributes": measure_attributes(sample, text),
        "right": judge_answer(sample, text),
    }


def _edit_cues(
    model: Model,
    samples: Sequence[Sample],
    records: Sequence[AnswerRecord],
    ledger: Ledger,
    batch_size: int,
) -> None:
    """Save what the model claims of images in which suspected cues were edited."""
    edits = plan_edits(samples, find_suspects(records))
    done = len(ledger.lines(EDITS))
    for start in range(done, len(edits), 4 * batch_size):  # single images with one token to read
        batch = edits[start : start + 4 * batch_size]
        claims = measure_edits(model, batch)
        ledger.append(EDITS, [{"id": edit.id, **each} for edit, each in zip(batch, claims, strict=True)])


def _alter_things(
    model: Model,
    answers: Sequence[ParsedAnswer],
    ledger: Ledger,
    batch_size: int,
) -> None:
    """Save what the model claims of things that were altered in an attribute of which many claims are wrong."""
    limits = load_thresholds()
    claims = [
        claim for answer in answers if answer.ids for claim in measure_attributes(answer.sample, answer.text)
    ]
    suspected = find_suspected(claims, limits.least_answers, limits.wrong_share)
    altered = plan_alterations([answer for answer in answers if answer.ids], claims, suspected)
    for start in range(len(ledger.lines(ALTERED)), len(altered), batch_size):
        batch = altered[start : start + batch_size]
        found = measure_alterations(model, batch)
        ledger.append(
            ALTERED,
            [{"id": each.answer.sample.id, **own} for each, own in zip(batch, found, strict=True)],
        )


class _Tests:
    """What the tests of one answer need of the others."""

    def __init__(self, model: Model, answers: Sequence[ParsedAnswer]):
        self.model = model
        self.answers = [answer for answer in answers if answer.ids]
        self.images = OtherImages(self.answers)
        self.cue_questions = draw_questions([answer.sample for answer in answers])
        self.by_question: dict[tuple[str, int], list[ParsedAnswer]] = defaultdict(list)
        for answer in self.answers:
            self.by_question[answer.sample.question, len(answer.sample.images)].append(answer)
        # Questions that differ in a word share a gap.
        self.by_gap: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        for question in dict.fromkeys(answer.sample.question for answer in self.answers):
            for gap in _gaps(question):
                self.by_gap[gap][question] = None
        by_question = (answer for same in self.by_question.values() for answer in same)
        self.turns = {  # which wordings an answer gets: all have their turn, in each question and in all
            answer.sample.id: number for number, answer in enumerate(by_question)
        }

    def measure(self, batch: Sequence[ParsedAnswer]) -> list[AnswerRecord]:
        """Return the records of a batch of answers."""
        model = self.model
        others = [self.images.find(answer) for answer in batch]
        readings = read_with_images(model, batch, others, looks=not model.has_cross_attention)
        read_with_further_images(model, batch, readings, self.images)
        truths = measure_truth(model, batch, [reading["own"] for reading in readings])
        steps = measure_steps(model, batch, readings, [self._donor(answer) for answer in batch])
        choices = [self._find_choice(answer) for answer in batch]
        numbers = [self.turns[answer.sample.id] for answer in batch]
        many = len(self.answers) >= MANY
        hints = measure_hints(model, batch, choices, numbers, either=many)
        places = measure_places(model, batch, readings, choices)
        examples = [self._example(answer) for answer in batch]
        turns = measure_turns(model, batch, choices, examples, numbers, self.answers, either=many)
        options = measure_options(model, batch, choices, numbers)
        counts = measure_counts(model, batch)
        asked = [self.cue_questions.get(answer.sample.id, []) for answer in batch]
        claims = iter(ask_cues(model, [question for questions in asked for question in questions]))
        records = []
        for answer, reading, truth, step, hint, place, turn, added, count, questions in zip(
            batch, readings, truths, steps, hints, places, turns, options, counts, asked, strict=True
        ):
            records.append(
                {
                    "id": answer.sample.id,
                    "answer": answer.text,
                    "images": measure_images(answer, reading),
                    "steps": step,
                    "hints": hint,
                    "places": place,
                    OPTIONS: added,
                    **turn,
                    "count": count,
                    "cues": [next(claims) for _ in questions],
                    **_read_text(answer.sample, answer.text),
                    "doubt": truth,
                    "passes": 1
                    + len(reading)
                    + (truth is not None and answer.sample.answer != answer.text.strip())
                    + len(step["moved"] if step else ())
                    + sum(each["passes"] for each in (*hint, *turn.values()))
                    + (place is not None)
                    + (added["passes"] if added else 0)
                    + bool(count and count["by"])
                    + len(questions),
                }
            )
        return records

    def try_again(self, records: Sequence[AnswerRecord], ledger: Ledger, batch_size: int) -> None:
        """Save whether further answers follow the hints, earlier turns and options that some followed."""
        by_id = {answer.sample.id: answer for answer in self.answers}
        closed = {
            record["id"]: choice
            for record in records
            if (choice := self._find_choice(by_id[record["id"]])) is not None
        }
        kinds = {name: "yes or no" if choice.says_yes_or_no else "else" for name, choice in closed.items()}
        tried: dict[str, dict[str, list[Any]]] = {kind: {} for kind in (HINTS, CLAIMED, COPIED, OPTIONS)}
        for record in (record for record in records if record["id"] in closed):
            name = record["id"]
            tried[HINTS][name] = list(record[HINTS])
            tried[CLAIMED][name] = [record[CLAIMED]] if CLAIMED in record else []
            if COPIED in record or self._example(by_id[name]) is not None:
                tried[COPIED][name] = [record[COPIED]] if COPIED in record else []
            if not split_options(by_id[name].sample.question).choices:
                tried[OPTIONS][name] = [record[OPTIONS]] if record.get(OPTIONS) else []

        def group(each: tuple[str, str, str]) -> tuple[str, int]:
            return each[0], len(by_id[each[1]].sample.images)

        for wanted in ROUNDS:
            plan = [(kind, *each) for kind, own in tried.items() for each in plan_again(own, kinds, wanted)]
            plan.sort(key=group)
            done = sum(line.get("round") == wanted.name for line in ledger.lines(AGAIN))
            for batch in _batches(plan[done:], batch_size, group):
                kind, names, wordings = batch[0][0], [each[1] for each in batch], [each[2] for each in batch]
                rows = [(by_id[name], closed[name]) for name in names]
                if kind == HINTS:
                    found: list[Any] = try_hints(self.model, rows, wordings)
                elif kind == OPTIONS:
                    found = add_options(self.model, rows, wordings)
                else:
                    examples = [self._example(by_id[name]) for name in names]
                    found = ask_turns(self.model, kind, rows, examples, wordings, self.answers)
                about = [{"id": name, "kind": kind, "round": wanted.name} for name in names]
                ledger.append(AGAIN, [one | each for one, each in zip(about, found, strict=True)])
            for line in ledger.lines(AGAIN):
                if line.get("round") == wanted.name:
                    tried[line["kind"]][line["id"]].append(line)

    def ask_conclusions(
        self,
        samples: Sequence[Sample],
        records: Sequence[AnswerRecord],
        ledger: Ledger,
        batch_size: int,
        max_new_tokens: int,
    ) -> None:
        """Save how further conclusions change, where those of the answers are too few to say whether they were decided first.

        They are asked for where the interval holds the threshold of `decided-first` and the score is half of it or more. All are
        saved at once, with the ids of the samples whose images they are about.
        """
        cause = CAUSES["decided-first"]
        effect = cause.measure(cause, Table(records, samples, load_thresholds())).effect
        is_open = effect.low < cause.threshold <= effect.high and 2 * effect.value >= cause.threshold
        if not is_open or ledger.lines(CONCLUSIONS):
            return
        shown = plan_conclusions(self.answers)
        asked = {sample.id: name for name, sample in shown.items()}
        settings = Settings(max_new_tokens=max_new_tokens, batch_size=batch_size)
        given = dict(asking.answer(self.model, list(shown.values()), None, settings))
        answers = [
            make_answer(self.model, sample, ids)
            for sample in shown.values()
            if (ids := given[sample.id].token_ids)
        ]
        images, lines = OtherImages([*self.answers, *answers]), []
        for batch in _batches(answers, batch_size, lambda answer: len(answer.sample.images)):
            others = [
                {kind: own for kind, own in images.find(answer).items() if kind != ALIKE} for answer in batch
            ]
            readings = read_with_images(self.model, batch, others, looks=False)
            found = measure_steps(self.model, batch, readings, [self._donor(answer) for answer in batch])
            for answer, reading, steps in zip(batch, readings, found, strict=True):
                passes = 1 + len(reading) + len(steps["moved"] if steps else ())
                lines.append({"id": asked[answer.sample.id], "steps": steps, "passes": passes})
        ledger.append(CONCLUSIONS, lines)

    def _find_choice(self, answer: ParsedAnswer) -> Choice | None:
        return find_choice(self.model, answer, self._same_question(answer), self._alike(answer))

    def _same_question(self, answer: ParsedAnswer) -> list[ParsedAnswer]:
        """Return the other answers to the same question, those after this one first."""
        same = self.by_question[answer.sample.question, len(answer.sample.images)]
        place = next((number for number, each in enumerate(same) if each is answer), -1)
        return same[place + 1 :] + same[: max(place, 0)]

    def _example(self, answer: ParsedAnswer) -> ParsedAnswer | None:
        """Return the next answer to the same question about as many other images; else to one in other words, few if possible."""
        own = set(answer.sample.images)
        others = [*self._same_question(answer), *self._alike(answer), *self.answers]
        return next(
            (
                other
                for other in others
                if len(other.sample.images) == len(own) and not own & set(other.sample.images)
            ),
            None,
        )

    def _alike(self, answer: ParsedAnswer) -> list[ParsedAnswer]:
        """Return answers to questions that differ in one word, about as many images."""
        question, n_images = answer.sample.question, len(answer.sample.images)
        alike = [other for gap in _gaps(question) for other in islice(self.by_gap[gap], MOST_ALIKE)]
        return [
            each
            for other in alike
            if other != question
            for each in self.by_question.get((other, n_images), ())[:MOST_ALIKE]
        ]

    def _donor(self, answer: ParsedAnswer) -> ParsedAnswer | None:
        """Return the next answer to the same question whose steps lead to something else."""
        if answer.conclusion is None:
            return None
        others = (other for other in self._same_question(answer) if other.conclusion is not None)
        return next((other for other in others if other.verdict != answer.verdict), None)


def _answer_all(
    model: Model, samples: Sequence[Sample], ledger: Ledger, batch_size: int, max_new_tokens: int
) -> list[ParsedAnswer]:
    done = _by_id(ledger.lines(ANSWERS))
    left = [sample for sample in samples if sample.id not in done]
    settings = Settings(max_new_tokens=max_new_tokens, batch_size=batch_size)
    for name, given in asking.answer(model, left, None, settings):
        ledger.append(ANSWERS, [{"id": name, "ids": given.token_ids}])
    done = _by_id(ledger.lines(ANSWERS))
    return [make_answer(model, sample, done[sample.id]["ids"]) for sample in samples]


def _take_given(
    model: Model, samples: Sequence[Sample], ledger: Ledger, given: Mapping[str, GivenAnswer]
) -> list[ParsedAnswer]:
    """Return the given answers; those that cannot be read have no tokens, and the ledger says why."""
    done = {record["id"] for record in ledger.lines(ANSWERS)}
    for sample in samples:
        if sample.id not in done:
            record: dict[str, Any] = {"id": sample.id, "ids": []}
            try:
                record["ids"] = find_given(model, sample, given)
            except InputError as error:
                record["unread"] = str(error)
            ledger.append(ANSWERS, [record])
    found = _by_id(ledger.lines(ANSWERS))
    return [make_answer(model, sample, found[sample.id]["ids"]) for sample in samples]


def find_unread(ledger: Ledger) -> dict[str, str]:
    """Return why given answers cannot be read, by id."""
    return {record["id"]: record["unread"] for record in ledger.lines(ANSWERS) if "unread" in record}


def judge_answer(sample: Sample, text: str) -> bool | None:
    """Return whether an answer is true: in the drawn world, that nothing in it is false; else by the rules of `vqa`.

    None where the true answer is not known or no rule can tell.

    Example:
        >>> judge_answer(Sample(id="a", question="Is it a cat?", answer="no"), "No, it is a dog. I hope it helps.")
        True
    """
    verdict = check_sample(text, sample)
    if verdict is not None:
        return verdict.faithful
    question = make_question(sample)
    return None if question is None else read_answer(question, text)


def _gaps(question: str) -> list[tuple[str, ...]]:
    """Return the words of a question with each of them left out in turn; none for a long one, to which none is alike."""
    words = re.findall(r"\w+", question)
    return (
        [(*words[:place], "", *words[place + 1 :]) for place in range(len(words))]
        if len(words) <= LONG
        else []
    )


def _batches(items: Sequence[Any], size: int, key: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Yield batches of items with the same key, which some families need of the number of images."""
    for value in sorted({key(item) for item in items}):
        same = [item for item in items if key(item) == value]
        for start in range(0, len(same), size):
            yield same[start : start + size]


def _by_id(records: Sequence[AnswerRecord]) -> dict[str, AnswerRecord]:
    return {record["id"]: record for record in records}
