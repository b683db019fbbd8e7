"""SPD-Faith Bench (arXiv:2602.07833) on the command line: its options, its data, its questions and its scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from PIL import Image
from pydantic import Field

from mmprobe.benchmarks.answers.claims import parse_count
from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark
from mmprobe.benchmarks.core.prompts import Prompts, default_prompts, fill
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.benchmarks.judges import Judge, Labelled
from mmprobe.benchmarks.spd_faith.data import (
    Pair,
    original_of,
    parse_row,
    read_pairs,
    read_synthetic_pairs,
    to_row,
)
from mmprobe.benchmarks.spd_faith.labels import QUESTION_TYPES
from mmprobe.benchmarks.spd_faith.metrics import PROFILES, Profile
from mmprobe.benchmarks.spd_faith.model_labels import score_by_judge
from mmprobe.benchmarks.spd_faith.prompts import SpdFaithPrompts
from mmprobe.benchmarks.spd_faith.rule_labels import score_by_rules, unread_share
from mmprobe.errors import InputError
from mmprobe.files import make_folders
from mmprobe.samples import Region, Sample, check_image, load_short_samples, read_picture, write_image

log = logging.getLogger("mmprobe")

# `find` is asked later, since it depends on the answer to `count`.
FIRST_QUESTION_TYPES = ("same", "different", "count", "list", "steps")
_WORDS = dict(enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 2))
SYNTHETIC_FIND = "There are {count} differences. Find them."
SYNTHETIC_FIND_ONE = "There is 1 difference. Find it."


class SpdFaithTruth(NamedTuple):
    """The pairs of a data set with their true differences, and the questions that are asked first.

    `questions` gives (pair id, question type) by question id, also of the `find` questions. `find_texts` are
    these questions for several differences and for one, where they are not those of the data's world. `failed_rows` are the rows of the data
    that could not be read, with reasons.
    """

    pairs: list[Pair]
    samples: list[Sample]
    questions: dict[str, tuple[str, str]]
    find_texts: tuple[str, str] | None = None
    failed_rows: tuple[str, ...] = ()


class SpdFaith(WordedBenchmark):
    """Faithfulness of answers about the differences between two images (SPD-Faith Bench)."""

    name: ClassVar[str] = "spd-faith"
    unit: ClassVar[str] = "pairs"
    lists: ClassVar[tuple[str, ...]] = ("pairs",)
    long_answers: ClassVar[Mapping[str, int]] = {
        "steps": 512,
        "list": 512,
        "find": 512,
    }  # our choice: at 128, many are cut off
    judged_fields: ClassVar[tuple[str, ...]] = ("answers", "agreement")
    form: ClassVar[type[Prompts]] = SpdFaithPrompts

    profile: Profile = Field(default="paper-main", description="which metrics are printed first")
    images: Literal["pair", "merged"] = Field(
        default="pair",
        description="what the model sees: two images, or one picture with the original above, as in the released scripts",
    )
    judge_images: bool | None = Field(
        default=None,
        description="show both images to a judge that is a model where it matches claims (equation 14); by default, where "
        "it can see",
    )

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics of the profile."""
        return PROFILES[self.profile]

    def read(self, path: Path) -> SpdFaithTruth:
        """Read a samples file of `make-pairs`, or the published rows or folder.

        Samples have their own questions. Prompts that differ from the default take their place.
        """
        own = default_prompts(SpdFaithPrompts)
        prompts: SpdFaithPrompts = self.texts
        truth = _read_truth(path, prompts)
        changed = {
            name for name in SpdFaithPrompts.model_fields if getattr(prompts, name) != getattr(own, name)
        }
        samples = [
            sample.model_copy(update={"question": getattr(prompts, kind)}) if kind in changed else sample
            for sample in truth.samples
            for kind in [truth.questions[sample.id][1]]
        ]
        texts = (prompts.find, prompts.find_one) if {"find", "find_one"} & changed else truth.find_texts
        return truth._replace(samples=samples, find_texts=texts)

    def take(self, truth: SpdFaithTruth, n: int) -> SpdFaithTruth:
        """Return the first n pairs with their questions."""
        pairs = truth.pairs[:n]
        pair_ids = {pair.id for pair in pairs}
        questions = {name: question for name, question in truth.questions.items() if question[0] in pair_ids}
        samples = [sample for sample in truth.samples if sample.id in questions]
        return truth._replace(pairs=pairs, samples=samples, questions=questions)

    def show(self, truth: SpdFaithTruth, folder: Path) -> SpdFaithTruth:
        """Return the truth with the images of its questions: the pair, or one picture of both."""
        return _show_merged(truth, folder) if self.images == "merged" else truth

    def ask(self, truth: SpdFaithTruth) -> list[Sample]:
        """Return the questions that are asked first."""
        return truth.samples

    def follow_up(self, truth: SpdFaithTruth, responses: Mapping[str, str]) -> list[Sample]:
        """Return `There are n differences. Can you find them?` with the number that the model stated.

        A pair gets no such question if the model stated no number, or 0.
        """
        ours = default_prompts(SpdFaithPrompts)
        count_questions = {}
        for sample in truth.samples:
            pair_id, question_type = truth.questions[sample.id]
            if question_type == "count":
                count_questions[pair_id] = sample
        follow_ups = []
        for pair_id, sample in count_questions.items():
            count = parse_count(responses[sample.id]) if sample.id in responses else None
            if not count:
                continue
            is_synthetic = "scene" in sample.metadata
            own = (SYNTHETIC_FIND, SYNTHETIC_FIND_ONE) if is_synthetic else (ours.find, ours.find_one)
            several, one = truth.find_texts or own
            text = (
                one if count == 1 else fill(several, {"count": count, "count_word": _WORDS.get(count, count)})
            )
            metadata = {**sample.metadata, "type": "find", "count": count}
            changes = {"id": f"{pair_id}-find", "question": text, "answer": None, "metadata": metadata}
            follow_ups.append(sample.model_copy(update=changes))
        return follow_ups

    def score(self, truth: SpdFaithTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score answers with the claims that rules read in them, or with claims from a judge."""
        lines = _make_response_lines(truth, responses)
        if not lines:
            scored: Scored = {"unread": unread_share([])}, []  # every question failed
        elif judge is None:
            scored = score_by_rules(truth.pairs, lines)
        else:
            scored = score_by_judge(truth.pairs, lines, judge, self.judge_images, self.texts)
        return self._add_questions(truth, responses, scored)

    def _add_questions(self, truth: SpdFaithTruth, responses: Mapping[str, str], scored: Scored) -> Scored:
        """Add to each answer of the records its question, its faithfulness and the id of its trace."""
        metrics, records = scored
        texts = {sample.id: sample.question for sample in (*truth.samples, *self.follow_up(truth, responses))}
        faithful = self.label(truth, records)
        records_by_pair = {record["id"]: record for record in records}
        for name, (pair_id, question_type) in truth.questions.items():
            answer = records_by_pair.get(pair_id, {}).get("answers", {}).get(question_type)
            if answer is not None:
                answer |= {"id": name, "question": texts.get(name), "faithful": faithful.get(name)}
        if truth.failed_rows:
            rows = [True] * len(truth.failed_rows) + [False] * len(truth.pairs)
            metrics = metrics | {"failed_rows": mean_metric(rows, "lower")}
        return metrics, records

    def label(self, truth: SpdFaithTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer is faithful, by question id.

        The answer to `count` is faithful if the number is right. Any other answer is faithful if all its claims
        are true and its yes or no is right; "no differences" is right only for equal images. Answers that were
        not understood or that a judge failed at are left out, and so are claims that are true beside unread sentences.
        """
        records_by_pair = {record["id"]: record for record in records}
        faithful = {}
        for name, (pair_id, question_type) in truth.questions.items():
            answer = records_by_pair.get(pair_id, {}).get("answers", {}).get(question_type)
            if answer is None:
                continue
            n_differences = len(records_by_pair[pair_id]["differences"])
            if question_type == "count":
                if answer["count"] is not None:
                    faithful[name] = answer["count"] == n_differences
                continue
            if "unscored" in answer:
                continue
            if "yes_no" in answer:
                if answer["yes_no"] == "unknown":
                    continue
                differ = n_differences > 0
                is_right = answer["yes_no"] == ("yes" if differ == (question_type == "different") else "no")
            elif answer["understood"] and (any(answer["errors"]) or not answer.get("unread")):
                # The rules understood the whole answer: without a claim, it says that nothing differs.
                is_right = bool(answer["errors"]) or n_differences == 0
            else:
                continue
            faithful[name] = is_right and not any(answer["errors"] or ())
        return faithful

    def find_labels(self, record: Mapping[str, Any]) -> dict[str, Labelled]:
        """Return a judge's labels in a record: of answers, of claims, and of pairs of claims."""
        labels: dict[str, Labelled] = {}
        for question_type, answer in record["answers"].items():
            if "claims" not in answer:
                continue
            errors = answer["errors"]
            verdict = "claims nothing" if not errors else "unfaithful" if any(errors) else "faithful"
            labels[f"answer, {question_type}"] = None if "unscored" in answer else [(None, verdict)]
            claims = [claim for claim in answer["claims"] or () if not claim["negated"]]
            labels[f"claim, {question_type}"] = (
                None
                if errors is None
                else [
                    ((claim["type"], claim["category"]), error or "true")
                    for claim, error in zip(claims, errors, strict=True)
                ]
            )
        if {"same", "different"} <= record["answers"].keys():
            labels["pair"] = [(None, label) for _, _, label in record["agreement"]]
        return labels


def _show_merged(truth: SpdFaithTruth, folder: Path) -> SpdFaithTruth:
    """Return the truth with one picture a question: both images in a column, the original above.

    Regions of the second image move down with it. A judge still sees the pair. The pictures are written to the folder.
    """
    merged: dict[tuple[Path, ...], tuple[Path, int]] = {}
    samples = []
    for sample in truth.samples:
        images = tuple(sample.images)
        if len(images) == 2:
            if images not in merged:
                make_folders(folder)
                merged[images] = _stack_images(images, folder / f"{truth.questions[sample.id][0]}.png")
            picture, below = merged[images]
            regions = [_move_region(region, below) for region in sample.regions]
            sample = sample.model_copy(update={"images": [picture], "regions": regions})
        samples.append(sample)
    return truth._replace(samples=samples)


def _stack_images(images: tuple[Path, ...], file: Path) -> tuple[Path, int]:
    """Write two images into one, the first above; return its absolute path and where the second begins, in pixels."""
    upper, lower = read_picture(images[0]), read_picture(images[1])
    picture = Image.new("RGB", (max(upper.width, lower.width), upper.height + lower.height))
    picture.paste(upper, (0, 0))
    picture.paste(lower, (0, upper.height))
    write_image(picture, file)
    return file.absolute(), upper.height


def _move_region(region: Region, below: int) -> Region:
    x, y, width, height = region.box
    return Region(image=0, box=(x, y + below * region.image, width, height))


def _read_truth(path: Path, prompts: SpdFaithPrompts) -> SpdFaithTruth:
    if path.suffix == ".jsonl" and path.is_file():
        beginning = path.read_text(encoding="utf-8-sig", errors="replace").lstrip()[:4000]
        if '"question"' in beginning or '"messages"' in beginning:
            samples = load_short_samples(path, "spd-faith")
            of_rows = [sample for sample in samples if "image_id" in sample.metadata]
            if of_rows:
                return _build_photo_truth(of_rows)
            return _build_synthetic_truth(samples)
    failed: list[str] = []
    return build_published_truth(read_pairs(path, failed), prompts)._replace(failed_rows=tuple(failed))


def _build_synthetic_truth(samples: list[Sample]) -> SpdFaithTruth:
    """Return the truth of a samples file of the synthetic world."""
    pairs = read_synthetic_pairs(samples)
    pair_ids = {question_id: pair.id for pair in pairs for question_id in pair.question_ids}
    types = {sample.id: str(sample.metadata.get("type")) for sample in samples}
    questions = {name: (pair_ids[name], types[name]) for name in types if types[name] in QUESTION_TYPES}
    questions |= {f"{pair.id}-find": (pair.id, "find") for pair in pairs}
    first_samples = [sample for sample in samples if types[sample.id] in FIRST_QUESTION_TYPES]
    return SpdFaithTruth(pairs, first_samples, questions)


def build_published_truth(pairs: list[Pair], prompts: SpdFaithPrompts | None = None) -> SpdFaithTruth:
    """Return the truth of the published data set, with its questions in a wording."""
    prompts = prompts or default_prompts(SpdFaithPrompts)
    pairs = _leave_out_places(pairs)
    samples = [
        Sample(
            id=f"{pair.id}-{question_type}",
            images=list(pair.images),
            question=getattr(prompts, question_type),
            pair_id=pair.id if question_type in ("same", "different") else None,
            polarity=_polarity(question_type),
            regions=list(pair.regions),
            metadata={"type": question_type, **to_row(pair), **_name_original(pair)},
        )
        for pair in pairs
        for question_type in FIRST_QUESTION_TYPES
    ]
    questions = {f"{pair.id}-{name}": (pair.id, name) for pair in pairs for name in QUESTION_TYPES}
    return SpdFaithTruth(pairs, samples, questions)


def _leave_out_places(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs without the changed places that are empty or not inside their image, and say in one line how many.

    Published boxes are rounded, so one may stick out by a pixel, which is cut. Pairs without images keep all.

    Example:
        >>> _leave_out_places([Pair("1", ())])[0].id
        '1'
    """
    kept: list[Pair] = []
    left_out: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    for pair in pairs:
        if pair.images:
            sizes = [check_image(image, f"pair {pair.id}") for image in pair.images]
            differences = tuple(
                replace(each, regions=tuple(filter(None, (_cut(region, sizes) for region in each.regions))))
                for each in pair.differences
            )
            cut = {region: _cut(region, sizes) for region in pair.regions}
            left_out |= {
                (pair.id, region.box): sizes[min(region.image, len(sizes) - 1)]
                for region, inside in cut.items()
                if inside is None
            }
            pair = replace(pair, differences=differences, regions=tuple(filter(None, cut.values())))
        kept.append(pair)
    for (name, box), (height, width) in [*left_out.items()][:1]:
        log.warning(
            "%d box%s empty or outside the image, and left out; the first is %s of pair %s, in %d x %d pixels",
            len(left_out), " is" if len(left_out) == 1 else "es are", list(box), name, width, height,
        )  # fmt: skip
    return kept


def _cut(region: Region, sizes: Sequence[tuple[int, int]]) -> Region | None:
    """Return the part of a region inside its image; None if it is empty, or sticks out by more than a pixel."""
    if region.image >= len(sizes):
        return None
    (height, width), (x, y, across, down) = sizes[region.image], region.box
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + across, width), min(y + down, height)
    sticks_out = max(left - x, top - y, x + across - right, y + down - bottom)
    if min(right - left, bottom - top) < 1 or sticks_out > 1:
        return None
    return region.model_copy(update={"box": (left, top, right - left, bottom - top)})


def _name_original(pair: Pair) -> dict[str, str]:
    original = original_of(pair.id)
    return {} if original is None else {"original": original}


def _polarity(question_type: str) -> Literal["same", "different"] | None:
    if question_type == "same":
        return "same"
    return "different" if question_type == "different" else None


def _build_photo_truth(samples: list[Sample]) -> SpdFaithTruth:
    """Return the truth of samples of `make-pairs` whose metadata hold the published rows: of photographs and of things."""
    pairs: dict[str, Pair] = {}
    questions = {}
    for sample in samples:
        pair = parse_row(sample.metadata, f"sample {sample.id}")
        pair = replace(pair, images=tuple(sample.images), regions=tuple(sample.regions))
        pairs.setdefault(pair.id, pair)
        questions[sample.id] = (pair.id, str(sample.metadata.get("type")))
    first_samples = [sample for sample in samples if questions[sample.id][1] in FIRST_QUESTION_TYPES]
    questions = {name: question for name, question in questions.items() if question[1] in QUESTION_TYPES}
    questions |= {f"{pair_id}-find": (pair_id, "find") for pair_id in pairs}
    return SpdFaithTruth(list(pairs.values()), first_samples, questions)


def _make_response_lines(truth: SpdFaithTruth, responses: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the responses as lines with the id of the pair and the question type."""
    pair_ids = {pair.id for pair in truth.pairs}
    lines = []
    for key, text in responses.items():
        name, _, question_type = key.partition("/")
        if question_type and name in pair_ids:
            pair_id = name
        elif name in truth.questions:
            pair_id, own_type = truth.questions[name]
            question_type = question_type or own_type
        else:
            hint = "" if question_type or name not in pair_ids else "; give its question_type"
            raise InputError(f"spd-faith: response {name!r} answers no question of the data{hint}")
        lines.append({"id": pair_id, "question_type": question_type, "response": text})
    return lines
