"""Questions of one's own: any samples file whose lines have an `answer`, read as yes or no, an option, a number or words."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from mmprobe.benchmarks.answers.drawn import drawn_colour
from mmprobe.benchmarks.answers.forms import VALUES, Verdict
from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark, match_responses
from mmprobe.benchmarks.core.prompts import Fills, Prompts, fill
from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    mean_metric,
    metrics_by_group,
    with_ids,
)
from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.requests import correct_request
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.benchmarks.vqa.data import VqaQuestion, make_question
from mmprobe.benchmarks.vqa.published import PublishedMetric, score_published
from mmprobe.benchmarks.vqa.rule_labels import read_answer, read_verdict
from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.files import write_atomic
from mmprobe.ledger import lock_folder
from mmprobe.samples import Sample, load_samples
from mmprobe.thoughts import said

DRAWN = ("exists", "colour")  # types of drawn questions whose answers are a word
_log = logging.getLogger(__name__)


class VqaTruth(NamedTuple):
    """The questions, and the ids of the lines of the file that nothing is asked about."""

    questions: list[VqaQuestion]
    left_out: Sequence[str] = ()


class VqaPrompts(Prompts):
    """The prompts of one's own questions: what a question, and one with options, is asked in."""

    folder = "vqa"

    question: Annotated[str, Fills("question")]
    choices: Annotated[str, Fills("question", "options")]


class OwnQuestions(WordedBenchmark):
    """Questions of a samples file, asked as they are, with their options below them."""

    visual: ClassVar[bool] = False
    lists: ClassVar[tuple[str, ...]] = ("questions",)
    form: ClassVar[type[Prompts]] = VqaPrompts

    def read_samples(self, path: Path) -> tuple[list[Sample], list[str]]:
        """Return the lines of a samples file or of a folder with `samples.jsonl`; of drawn ones those whose answer is a word.

        Then the ids of the other drawn ones.
        """
        file = path / "samples.jsonl" if path.is_dir() else path
        samples = load_samples(file)
        if not is_synthetic(file):
            return samples, []
        short = [_shorten(sample) for sample in samples if sample.metadata["type"] in DRAWN]
        return short, [sample.id for sample in samples if sample.metadata["type"] not in DRAWN]

    def warn_left_out(self, n_lines: int, reasons: Mapping[str, Sequence[str]]) -> list[str]:
        """Say how many lines are left out, and why; return their ids. `reasons` holds the ids by why."""
        if names := [name for each in reasons.values() for name in each]:
            why = "; ".join(
                f"{len(each)} {reason} ({', '.join(each[:3])}{' ...' if len(each) > 3 else ''})"
                for reason, each in reasons.items()
                if each
            )
            _log.warning("%s: %d of %d lines are left out: %s", self.name, len(names), n_lines, why)
        return names

    def ask(self, truth: Any) -> list[Sample]:
        """Return the samples as they are asked: the question, with its options below it.

        Example:
            >>> sample = Sample(id="1", question="What is it?", answer="B", metadata={"options": ["a dog", "a cat"]})
            >>> Vqa().ask(VqaTruth([make_question(sample)]))[0].question
            'What is it?\\nA. a dog\\nB. a cat'
        """
        asked = []
        for question in truth.questions:
            form = self.texts.choices if question.options else self.texts.question
            text = fill(form, {"question": question.sample.question, "options": question.options})
            asked.append(question.sample.model_copy(update={"question": text}))
        return asked


class Vqa(OwnQuestions):
    """Questions of your own: any samples file whose lines have an answer."""

    name: ClassVar[str] = "vqa"
    judged_fields: ClassVar[tuple[str, ...]] = ("correct",)

    metric: PublishedMetric | None = Field(
        default=None,
        description="a metric as its data set publishes it, beside the accuracy: `vqav2` (ten annotators), `chartqa` (5 %), `anls`",
    )

    @property
    def headline(self) -> tuple[str, ...]:
        """The published metric first, if there is one."""
        return ("accuracy", "left_out") if self.metric is None else (self.metric, "accuracy", "left_out")

    def read(self, path: Path) -> VqaTruth:
        """Read a samples file, or a folder with `samples.jsonl`. Lines without an answer are left out, and counted.

        Raises:
            InputError: a line is invalid, or none has an answer.
        """
        samples, in_sentences = self.read_samples(path)
        questions = [question for sample in samples if (question := make_question(sample)) is not None]
        if not questions:
            raise InputError(
                f"{path}: no line has an `answer`, so nothing can be scored; see docs/guides/my-data.md"
            )
        reasons = {
            "without an `answer`": [sample.id for sample in samples if sample.answer is None],
            "drawn, with a sentence as the answer": in_sentences,
        }
        return VqaTruth(questions, self.warn_left_out(len(samples) + len(in_sentences), reasons))

    def score(self, truth: VqaTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score answers by question id. A judge decides what rules cannot read, and other words than the true ones."""
        metrics, records = self._score(truth.questions, responses, judge)
        return metrics | count_left_out(truth.questions, truth.left_out), records

    def _score(
        self, truth: Sequence[VqaQuestion], responses: Mapping[str, str], judge: Judge | None
    ) -> Scored:
        answers = match_responses([question.sample for question in truth], responses, "vqa")
        read = _read(truth, answers)
        verdicts = {name: VALUES[verdict] for name, verdict in read.items()}
        if judge is None:
            return self._add_published(truth, answers, _score(truth, answers, verdicts, {}))
        requests = {
            question.sample.id: right_request(question, answers[question.sample.id])
            for question in truth
            if read.get(question.sample.id) in ("unread", "other") and answers[question.sample.id].strip()
        }
        judged = asyncio.run(ask_by_name(judge, requests))
        verdicts |= {name: each.items[0] if each.items else None for name, each in judged.items()}
        metrics, records = self._add_published(truth, answers, _score(truth, answers, verdicts, judged))
        unscored = [float(each.unscored is not None) for each in judged.values()]
        return metrics | ({"unscored": mean_metric(unscored, "lower")} if unscored else {}), records

    def _add_published(
        self, truth: Sequence[VqaQuestion], answers: Mapping[str, str], scored: Scored
    ) -> Scored:
        """Return metrics and records with the published metric, if there is one."""
        metrics, records = scored
        if self.metric is None:
            return scored
        scores: list[float | None] = []
        for question, record in zip(truth, records, strict=True):
            name = question.sample.id
            said_by = list_answers(self.metric, question)
            score = score_published(self.metric, answers[name], said_by) if name in answers else None
            record["score"] = score
            scores.append(score)
        own = with_ids({self.metric: mean_metric(scores, "higher")}, [each["id"] for each in records])
        return own | metrics, records


def count_left_out(questions: Sequence[VqaQuestion], left_out: Sequence[str]) -> dict[str, Metric]:
    """Return the metric `left_out`: the share of the file's lines that nothing was asked about. Empty if there are none."""
    if not left_out:
        return {}
    return {"left_out": mean_metric([0.0] * len(questions) + [1.0] * len(left_out), "neither")}


def list_answers(metric: PublishedMetric, question: VqaQuestion) -> list[str]:
    """Return the answers that a published metric compares with: of VQAv2 those of all annotators.

    Raises:
        InputError: VQAv2's metric is asked of a question that fewer than ten people answered.
    """
    sample = question.sample
    if metric == "vqav2":
        if "annotators" not in sample.metadata:
            raise InputError(
                f"sample {sample.id}: --metric vqav2 needs the answers of ten people; give them as a list in `answer`"
            )
        return list(sample.metadata["annotators"])
    return [sample.answer or "", *sample.metadata.get("answers", [])]


def _shorten(sample: Sample) -> Sample:
    """Return a drawn question with the word that answers it in place of its sentence."""
    text = sample.answer or ""
    short = drawn_colour(text) or text.partition(",")[0].rstrip(".")
    return sample.model_copy(update={"answer": short})


def right_request(question: VqaQuestion, response: str) -> JudgeRequest[bool | None]:
    """Return the request whose only label says whether a response is right; None if it states no answer."""
    return correct_request(
        question.sample.question, response, " or ".join(question.accepted), question.options
    )


def _read(questions: Sequence[VqaQuestion], answers: Mapping[str, str]) -> dict[str, Verdict]:
    return {
        question.sample.id: read_verdict(question, answers[question.sample.id])
        for question in questions
        if question.sample.id in answers
    }


def _score(
    questions: Sequence[VqaQuestion],
    answers: Mapping[str, str],
    verdicts: Mapping[str, bool | None],
    judged: Mapping[str, Judgement[Any]],
) -> Scored:
    records = []
    for question in questions:
        name = question.sample.id
        records.append(
            {
                "id": name,
                "kind": question.kind,
                "question": question.sample.question,
                "options": dict(question.options) or None,
                "accepted": list(question.accepted),
                "response": answers.get(name),
                "correct": verdicts.get(name),
                "by": "judge" if name in judged else "rules" if verdicts.get(name) is not None else None,
                "unscored": judged[name].unscored if name in judged else None,
            }
        )
    return compute_metrics(records), records


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute the accuracy, of all answers and of those that were read, and the share of the unread ones, in all and by kind."""

    def compute(members: Sequence[int]) -> dict[str, Metric]:
        chosen = [records[index] for index in members]
        asked = [each["response"] is not None and each["unscored"] is None for each in chosen]
        metrics = accuracy_metrics("accuracy", [each["correct"] for each in chosen], asked)
        unread = [None if each["response"] is None else float(each["correct"] is None) for each in chosen]
        metrics["unread"] = mean_metric(unread, "lower")
        return with_ids(metrics, [each["id"] for each in chosen])

    kinds = [record["kind"] for record in records]
    return compute(range(len(records))) | metrics_by_group("kind", kinds, compute, smallest=2)


def label_answers(run: Run, told: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> int:
    """Say of each answer of a run whether it is right, in `labels.jsonl`, from which analyses read it.

    Drawn samples are checked against their scenes, and others against their `answer`. Labels that are there are kept, and
    so is what a sample says itself (`faithful`). An answer that rules cannot read is labelled as unknown.

    Args:
        told: of the questions that were read by likelihood, what `likelihood.describe` says, by id: they are labelled by the
            most probable answer, and with the margin.

    Returns:
        The number of new labels.
    """
    lines = []
    with lock_folder(run.path, "labelling its answers"):
        run = open_run(run.path)  # another process may have traced it again
        for name in run.ids:
            if name in run.labels or run.sample(name).faithful is not None:
                continue
            trace = run[name]
            likelihood = told.get(name, {})
            if likelihood.get("margin") is not None:
                right, margin = likelihood["correct"], likelihood["margin"]
                lines.append({"id": name, "faithful": right, "correct": right, "margin": margin})
            elif (drawn := check_sample(trace.response, trace.sample)) is not None:
                lines.append(drawn.label(name))
            elif (question := make_question(trace.sample)) is not None:
                right = read_answer(question, said(trace.response))
                lines.append({"id": name, "faithful": right, "correct": right})
        if lines:
            file = run.path / "labels.jsonl"
            earlier = file.read_text(encoding="utf-8") if file.exists() else ""
            write_atomic(file, earlier + "".join(json.dumps(line) + "\n" for line in lines))
    return len(lines)
