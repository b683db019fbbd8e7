"""Questions of one's own: any samples file whose lines have an `answer`, read as yes or no, an option, a number or words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from mmprobe.benchmarks.answers.forms import VALUES, Verdict
from mmprobe.benchmarks.core.benchmark import Scored, match_responses
from mmprobe.benchmarks.core.questions import (
    KnownQuestion,
    QuestionBenchmark,
    count_left_out,
    make_question,
    read_answer,
    read_verdict,
    right_request,
)
from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    mean_metric,
    metrics_by_group,
    with_ids,
)
from mmprobe.benchmarks.judges import Judge, Judgement, ask_by_name
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.vqa.published import PublishedMetric, score_published
from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.files import write_atomic
from mmprobe.ledger import lock_folder
from mmprobe.thoughts import said


class VqaTruth(NamedTuple):
    """The questions, and the ids of the lines of the file that nothing is asked about."""

    questions: list[KnownQuestion]
    left_out: Sequence[str] = ()


class Vqa(QuestionBenchmark):
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
        self, truth: Sequence[KnownQuestion], responses: Mapping[str, str], judge: Judge | None
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
        self, truth: Sequence[KnownQuestion], answers: Mapping[str, str], scored: Scored
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


def list_answers(metric: PublishedMetric, question: KnownQuestion) -> list[str]:
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


def _read(questions: Sequence[KnownQuestion], answers: Mapping[str, str]) -> dict[str, Verdict]:
    return {
        question.sample.id: read_verdict(question, answers[question.sample.id])
        for question in questions
        if question.sample.id in answers
    }


def _score(
    questions: Sequence[KnownQuestion],
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
