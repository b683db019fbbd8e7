"""The run of all tests: on each answer, and then further where what they measured suspects something. Each batch is saved."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.benchmarks.judges import Judge
from mmprobe.diagnosis.answers import ParsedAnswer, make_answer
from mmprobe.diagnosis.causal_test import CausalTest, FollowUp
from mmprobe.diagnosis.causes import load_tests
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, MeasuredPart
from mmprobe.diagnosis.images import read_with_images
from mmprobe.diagnosis.judged import JUDGED, add_labels, ask_judge, read_labels
from mmprobe.diagnosis.schedule import AHEAD, Say, Task, run, say, together
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.truth import judge_answer
from mmprobe.errors import InputError, NotApplicable
from mmprobe.ledger import Ledger
from mmprobe.models import Model
from mmprobe.models.likelihood import share_prefixes
from mmprobe.models.pixels import tell_seen
from mmprobe.models.prompt import build_chat, check_template
from mmprobe.models.reading import PrefixStore, float32_logits
from mmprobe.registry import tolerate_plug_ins
from mmprobe.samples import Sample, check_no_videos, image_sets
from mmprobe.settings import DIAGNOSED_TOKENS
from mmprobe.traces.asking import GivenAnswer, find_given

log = logging.getLogger("mmprobe")

ANSWERS, MEASURES = "answers.part.jsonl", "measures.jsonl"
TURNS = (1, 2)  # of what is measured further


def run_battery(
    model: Model,
    samples: Sequence[Sample],
    ledger: Ledger,
    batch_size: int = 8,
    max_new_tokens: int = DIAGNOSED_TOKENS,
    given: Mapping[str, GivenAnswer] | None = None,
    judge: Judge | None = None,
) -> list[AnswerRecord]:
    """Ask every sample, unless answers are given, run every test that applies on the answers, and return one record a sample, in order.

    The ledger's folder keeps the answers and the records of a call that was stopped; a second call continues from there. A judge
    reads what rules cannot.

    Args:
        batch_size: how many answers are generated, and how many readings are made, together.

    Raises:
        NotApplicable: no sample has images, or a sample begins its answer with a prefill.
    """
    check_no_videos(samples, "diagnose")
    samples = [sample for sample in samples if sample.images]
    if not samples:
        raise NotApplicable("diagnose: no sample has images, so nothing can be exchanged")
    if any(sample.prefill for sample in samples):
        raise InputError("diagnose: give samples without a prefill; the tests write the answers' beginnings")
    n_sets = len(set(image_sets(samples).tolist()))
    if len(samples) < LIMITS.least_answers or n_sets < LIMITS.least_sets:
        log.warning("no cause can be named from so few answers; the verdict says how many it takes")
    prefixes = share_prefixes(model, [])  # of answers and tests, as the float32 unembedding is
    with float32_logits(model):
        study = answer_all(model, samples, ledger, batch_size, max_new_tokens, given, prefixes)
        _measure(study, ledger, batch_size, prefixes)
        for turn in TURNS:
            _measure_further(study, turn, read_records(ledger, samples), ledger, batch_size, prefixes)
    if judge is not None:
        ask_judge(judge, samples, read_records(ledger, samples), ledger)
    return read_records(ledger, samples)


def answer_all(
    model: Model,
    samples: Sequence[Sample],
    ledger: Ledger,
    batch_size: int,
    max_new_tokens: int,
    given: Mapping[str, GivenAnswer] | None,
    prefixes: PrefixStore | None = None,
) -> Study:
    """Return the study of all answers, given ones or the model's own; those in the ledger are not asked again.

    Args:
        prefixes: what prompts share; None to read them whole.
    """
    if given is None:
        answers = _answer_all(model, samples, ledger, batch_size, max_new_tokens, prefixes)
    else:
        answers = _take_given(model, samples, ledger, given)
    return Study(model, answers, max_new_tokens, given is not None)


def _measure(study: Study, ledger: Ledger, batch_size: int, prefixes: PrefixStore | None) -> None:
    """Save what all tests measure of each answer."""
    done = _read_lines(ledger, MEASURES)
    places = {tuple(answer.sample.images): place for place, answer in enumerate(study.answers)}
    left = sorted(  # answers about the same images follow each other, since their readings share them
        (answer for answer in study.answers if answer.sample.id not in done),
        key=lambda answer: (
            len(answer.sample.images),
            places[tuple(answer.sample.images)],
            len(answer.ids),
        ),
    )
    total = len(study.samples)
    with tqdm(total=total, initial=len(done), desc="tests", unit="answer", disable=None) as progress:
        for batch in _cut(left, AHEAD * batch_size):
            found = run(
                study.model, [measure_answer(study, answer) for answer in batch], batch_size, prefixes
            )
            ledger.append(MEASURES, [each.value | {"passes": 1 + each.passes} for each in found])
            progress.update(len(batch))
    for words in describe_cost(_read_lines(ledger, MEASURES).values()):
        log.info(words)


def describe_cost(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each test that asked the model something: how many answers, and how many passes.

    Args:
        lines: of `measures.jsonl`.

    Example:
        >>> describe_cost([{"asked": {"order": 3}}, {"asked": {"order": 1}}, {"asked": {}}])
        ['order: asked about 2 answers, 4 forward passes']
    """
    passes: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        for name, count in line.get("asked", {}).items():
            passes[name].append(count)
    return [
        f"{name}: asked about {len(own)} answers, {sum(own)} forward passes" for name, own in passes.items()
    ]


def measure_answer(study: Study, answer: ParsedAnswer) -> Task[dict[str, Any]]:
    """Return what all tests measure of an answer: its line of `measures.jsonl` without the passes."""
    looks = answer.sample.id in study.looked
    case = Case(study, answer, (yield from read_with_images(answer, study.images, looks)))
    tests = load_tests()
    found = yield from together([_ask(test, case) for test in tests.values()])
    asked = {name: each.passes for name, each in zip(tests, found, strict=True) if each.passes}
    line: dict[str, Any] = {"id": answer.sample.id, "answer": answer.text, "asked": asked}
    for each in found:
        line |= {} if each.value is None else each.value.model_dump(exclude_unset=True)
    return line | read_text(answer.sample, answer.text)


def _ask(test: CausalTest, case: Case) -> Task[MeasuredPart | None]:
    """Ask a test; one of another package that fails is left out."""
    with tolerate_plug_ins():
        return (yield from test.ask(case))
    return None


def read_text(sample: Sample, text: str) -> dict[str, Any]:
    """Return what an answer's text alone shows."""
    found: dict[str, Any] = {"right": judge_answer(sample, text)}
    for test in load_tests().values():
        part = test.read(sample, text)
        found |= {} if part is None else part.model_dump(exclude_unset=True)
    return found


def _measure_further(
    study: Study,
    turn: int,
    records: Sequence[AnswerRecord],
    ledger: Ledger,
    batch_size: int,
    prefixes: PrefixStore | None,
) -> None:
    """Save what is measured further where the measures suspect something. What an earlier call measured comes first in each plan."""
    left: list[FollowUp] = []
    for test in load_tests().values():
        planned: list[FollowUp] = []
        with tolerate_plug_ins():
            planned = test.follow_up(turn, study, records)
        if planned:
            about = planned[0].about.items()
            left += planned[sum(about <= line.items() for line in ledger.lines(planned[0].file)) :]
    with tqdm(
        total=len(left), desc=f"further tests, {turn} of {len(TURNS)}", unit="test", disable=None
    ) as progress:
        for batch in _cut(left, 4 * batch_size):  # most have one token to read
            lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for each, found in zip(
                batch, run(study.model, [each.task for each in batch], batch_size, prefixes), strict=True
            ):
                lines[each.file] += found.value
            for file, own in lines.items():
                ledger.append(file, own)
            progress.update(len(batch))


def list_further() -> dict[str, str]:
    """Return the files of what is measured further, by the key that their lines have in a record."""
    return {key: file for test in load_tests().values() for key, file in test.files.items()}


def list_kept() -> tuple[str, ...]:
    """Return the files that a run keeps."""
    return (ANSWERS, MEASURES, *list_further().values(), JUDGED)


def read_records(ledger: Ledger, samples: Sequence[Sample]) -> list[AnswerRecord]:
    """Return the records of a finished battery, one a sample, in order. What reads texts alone is read again."""
    done, labels = _read_lines(ledger, MEASURES), read_labels(ledger)
    further = {key: ledger.lines(file) for key, file in list_further().items()}
    records = []
    for sample in (sample for sample in samples if sample.id in done):
        line = done[sample.id]
        line |= add_labels(sample, read_text(sample, line["answer"]), labels.get(sample.id, {}))
        for key, lines in further.items():
            line[key] = [each for each in lines if each["id"] == sample.id]
            line["passes"] += sum(each.get("passes", 1) for each in line[key])
        records.append(AnswerRecord(line))
    return records


def _answer_all(
    model: Model,
    samples: Sequence[Sample],
    ledger: Ledger,
    batch_size: int,
    max_new_tokens: int,
    prefixes: PrefixStore | None,
) -> list[ParsedAnswer]:
    """Return the model's own answers. Those to the same question are made together, since they have like lengths.

    So many images are gone through at a time as the store of prefixes holds, so that none is read again for the next question.
    """
    check_template(model, samples)
    tell_seen(samples, model)
    done = _read_lines(ledger, ANSWERS)
    places = {images: place for place, images in enumerate(dict.fromkeys(map(_images, samples)))}
    held = len(places)
    if prefixes is not None:
        longest = model.prompt(max(samples, key=lambda sample: len(sample.images)))
        held = max(prefixes.count_kept(longest) // 2, 1)  # two for a pair, which begins with its first image
    left = sorted(
        (sample for sample in samples if sample.id not in done),
        key=lambda sample: (places[_images(sample)] // held, len(sample.images), sample.question),
    )
    with tqdm(
        total=len(samples), initial=len(done), desc="answers", unit="sample", disable=None if left else True
    ) as progress:
        for batch in _cut(left, batch_size):
            asked = [say([Say(build_chat(sample), max_new_tokens)]) for sample in batch]
            said = run(model, asked, batch_size, prefixes)
            lines = [
                {"id": sample.id, "ids": each.value[0]} for sample, each in zip(batch, said, strict=True)
            ]
            ledger.append(ANSWERS, lines)
            progress.update(len(batch))
    done = _read_lines(ledger, ANSWERS)
    return [make_answer(model, sample, done[sample.id]["ids"]) for sample in samples]


def _images(sample: Sample) -> tuple[Path, ...]:
    return tuple(sample.images)


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
    found = _read_lines(ledger, ANSWERS)
    return [make_answer(model, sample, found[sample.id]["ids"]) for sample in samples]


def find_unread(ledger: Ledger) -> dict[str, str]:
    """Return why given answers cannot be read, by id."""
    return {record["id"]: record["unread"] for record in ledger.lines(ANSWERS) if "unread" in record}


def _cut(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))


def _read_lines(ledger: Ledger, file: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a file by their id."""
    return {line["id"]: line for line in ledger.lines(file)}
