"""SPD-Faith Bench on the command line: its questions, and how their answers are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.lexical.claims import parse_count
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.spd_faith.data import Pair, pair_of_row, read_pairs, synthetic_pairs
from mmprobe.benchmarks.spd_faith.labels import QUESTION_TYPES
from mmprobe.benchmarks.spd_faith.metrics import PROFILES
from mmprobe.benchmarks.spd_faith.model_labels import judge_responses
from mmprobe.benchmarks.spd_faith.rule_labels import score_responses
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

ASKED_FIRST = ("same", "different", "count", "list", "steps")
# Ours, after the paper's wording in its sections 3.3 and B.2; the synthetic world has its own.
QUESTIONS = {
    "same": "Are these two images the same? Answer yes or no, and say why.",
    "different": "Are these two images different? Answer yes or no, and say why.",
    "count": "How many differences are there between the two images? Answer with a number.",
    "list": "List every difference between the two images, one a line: whether an object changed colour, was removed "
    "or moved, and which object it is.",
    "steps": "Compare the two images step by step, then say what differs.",
}
FIND = "There are {} differences between the two images. Can you find them?"
FIND_ONE = "There is 1 difference between the two images. Can you find it?"
WORLD_FIND = "There are {} differences. Find them."
WORLD_FIND_ONE = "There is 1 difference. Find it."


class SpdFaithTruth(NamedTuple):
    """Pairs, the questions about them that are asked first, and which question each id is: pair and type."""

    pairs: list[Pair]
    samples: list[Sample]
    questions: dict[str, tuple[str, str]]


def of_world(samples: list[Sample]) -> SpdFaithTruth:
    """The truth of a samples file of `make-pairs`."""
    pairs = synthetic_pairs(samples)
    owner = {name: pair.id for pair in pairs for name in pair.question_ids}
    kinds = {sample.id: str(sample.metadata.get("type")) for sample in samples}
    questions = {name: (owner[name], kind) for name, kind in kinds.items() if kind in QUESTION_TYPES}
    questions |= {f"{pair.id}-find": (pair.id, "find") for pair in pairs}
    asked = [sample for sample in samples if kinds[sample.id] in ASKED_FIRST]
    return SpdFaithTruth(pairs, asked, questions)


def published(pairs: list[Pair]) -> SpdFaithTruth:
    """The truth of the published data set, with our words for its questions."""
    samples = [
        Sample(
            id=f"{pair.id}-{kind}",
            images=list(pair.images),
            question=text,
            pair_id=pair.id if kind in ("same", "different") else None,
            polarity=kind if kind in ("same", "different") else None,  # type: ignore[arg-type]
            metadata={"type": kind, "difficulty": pair.difficulty},
        )
        for pair in pairs
        for kind, text in QUESTIONS.items()
    ]
    questions = {f"{pair.id}-{kind}": (pair.id, kind) for pair in pairs for kind in QUESTION_TYPES}
    return SpdFaithTruth(pairs, samples, questions)


def of_photos(samples: list[Sample]) -> SpdFaithTruth:
    """The truth of a samples file of `make-pairs --source coco`, whose metadata hold the published rows."""
    pairs: dict[str, Pair] = {}
    questions = {}
    for sample in samples:
        pair = replace(pair_of_row(sample.metadata, f"sample {sample.id}"), images=tuple(sample.images))
        pairs.setdefault(pair.id, pair)
        questions[sample.id] = (pair.id, str(sample.metadata.get("type")))
    asked = [sample for sample in samples if questions[sample.id][1] in ASKED_FIRST]
    questions = {name: told for name, told in questions.items() if told[1] in QUESTION_TYPES}
    questions |= {f"{name}-find": (name, "find") for name in pairs}
    return SpdFaithTruth(list(pairs.values()), asked, questions)


def _read(path: Path) -> SpdFaithTruth:
    """A samples file of `make-pairs`, or the published rows or folder."""
    if path.suffix == ".jsonl" and path.is_file():
        first = path.read_text(encoding="utf-8-sig", errors="replace").lstrip()[:4000]
        if '"question"' in first:
            samples = load_samples(path)
            return of_photos(samples) if "image_id" in samples[0].metadata else of_world(samples)
    return published(read_pairs(path))


def _draw(folder: Path, n: int, seed: int) -> SpdFaithTruth:
    return of_world(load_samples(make_pairs(folder, n, seed)))


def follow_up(truth: SpdFaithTruth, responses: Mapping[str, str]) -> list[Sample]:
    """`There are n differences. Can you find them?`, with the model's own n, to those who said one of 1 or more."""
    counts = {
        pair: (sample, kind)
        for sample in truth.samples
        for pair, kind in [truth.questions[sample.id]]
        if kind == "count"
    }
    asked = []
    for pair, (sample, _) in counts.items():
        said = parse_count(responses[sample.id]) if sample.id in responses else None
        if said:
            world = "scene" in sample.metadata
            one, several = (WORLD_FIND_ONE, WORLD_FIND) if world else (FIND_ONE, FIND)
            text = one if said == 1 else several.format(said)
            facts = {**sample.metadata, "type": "find", "count": said}
            asked.append(
                sample.model_copy(
                    update={"id": f"{pair}-find", "question": text, "answer": None, "metadata": facts}
                )
            )
    return asked


def score(truth: SpdFaithTruth, responses: Mapping[str, str]) -> Scored:
    """Answers by the questions' ids, or by `id/question_type` where the id is the pair's.

    Raises:
        InputError: a response answers no question of the data.
    """
    return _with_questions(truth, responses, score_responses(truth.pairs, _lines(truth, responses)))


def judged(truth: SpdFaithTruth, responses: Mapping[str, str], judge: Judge) -> Scored:
    """As `score`, with claims labelled by a judge.

    Raises:
        InputError: as `score`, or the provider refuses the key.
    """
    lines = _lines(truth, responses)
    return _with_questions(truth, responses, judge_responses(truth.pairs, lines, judge))


def _with_questions(truth: SpdFaithTruth, responses: Mapping[str, str], scored: Scored) -> Scored:
    """The records with each answer's question and whether it is faithful, under the id that its trace has."""
    metrics, records = scored
    texts = {sample.id: sample.question for sample in (*truth.samples, *follow_up(truth, responses))}
    right, by_pair = faithful(truth, records), {record["id"]: record for record in records}
    for name, (pair, kind) in truth.questions.items():
        told = by_pair.get(pair, {}).get("answers", {}).get(kind)
        if told is not None:
            told |= {"id": name, "question": texts.get(name), "faithful": right.get(name)}
    return metrics, records


def _lines(truth: SpdFaithTruth, responses: Mapping[str, str]) -> list[dict[str, str]]:
    pairs = {pair.id for pair in truth.pairs}
    lines = []
    for name, text in responses.items():
        plain, _, kind = name.partition("/")
        if kind and plain in pairs:
            pair = plain
        elif plain in truth.questions:
            pair, told = truth.questions[plain]
            kind = kind or told
        else:
            hint = "" if kind or plain not in pairs else "; give its question_type"
            raise InputError(f"spd-faith: response {plain!r} answers no question of the data{hint}")
        lines.append({"id": pair, "question_type": kind, "response": text})
    return lines


def faithful(truth: SpdFaithTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Whether each answer claims only what is so: the right number, and no difference that is none.

    A yes or no must be right, too, and that there are no differences. Answers that were not understood, or that a
    judge failed at, are left out.
    """
    by_pair = {record["id"]: record for record in records}
    found = {}
    for name, (pair, kind) in truth.questions.items():
        told = by_pair.get(pair, {}).get("answers", {}).get(kind)
        if told is None:
            continue
        differ = bool(by_pair[pair]["differences"])
        if kind == "count":
            if told["count"] is not None:
                found[name] = told["count"] == len(by_pair[pair]["differences"])
            continue
        unclear = told.get("yes_no") == "unknown" or not (told["understood"] or "yes_no" in told)
        if not unclear and "unscored" not in told:
            if "yes_no" in told:
                right = told["yes_no"] == ("yes" if differ == (kind == "different") else "no")
            else:  # an answer that was understood and claims nothing says that there are none
                right = bool(told["errors"]) or not differ
            found[name] = right and not any(told["errors"] or ())
    return found


def take_pairs(truth: SpdFaithTruth, n: int) -> SpdFaithTruth:
    """Return the first n pairs with their questions."""
    pairs = truth.pairs[:n]
    kept = {pair.id for pair in pairs}
    questions = {name: owner for name, owner in truth.questions.items() if owner[0] in kept}
    return SpdFaithTruth(pairs, [sample for sample in truth.samples if sample.id in questions], questions)



BENCHMARK = Benchmark(
    name="spd-faith",
    about="Two pictures, their differences, and whether what is said of them is faithful (paper 003).",
    read_data=_read,
    draw_data=_draw,
    take=take_pairs,
    ask_questions=lambda truth: truth.samples,
    score_answers=score,
    score_with_judge=judged,
    follow_up=follow_up,
    headline=PROFILES["paper-main"],
    faithful_answers=faithful,
    max_new_tokens=128,
    unit="pairs",
)
