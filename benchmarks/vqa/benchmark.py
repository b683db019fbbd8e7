"""Questions of one's own: any samples file whose lines have an `answer`, read as yes or no, an option, a number or words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.drawn import drawn_colour
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, WordingOptions, match_responses
from mmprobe.benchmarks.core.prompts import default_prompts, fill
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.benchmarks.judges import Judge, Judgement, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.agreement import labels_at
from mmprobe.benchmarks.judges.requests import correct_request
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.benchmarks.vqa.data import VqaQuestion, make_question
from mmprobe.benchmarks.vqa.metrics import compute_metrics
from mmprobe.benchmarks.vqa.prompts import VqaPrompts
from mmprobe.benchmarks.vqa.rule_labels import read_answer
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import write_atomic
from mmprobe.samples import Sample, load_samples

DRAWN = ("exists", "colour")  # types of drawn questions whose answers are a word


def read_data(path: Path) -> list[VqaQuestion]:
    """Read a samples file, or a folder with `samples.jsonl`. Lines without an answer are left out.

    Raises:
        InputError: a line is invalid, or none has an answer.
    """
    file = path / "samples.jsonl" if path.is_dir() else path
    samples = load_samples(file)
    if is_synthetic(file):
        samples = [_shorten(sample) for sample in samples if sample.metadata["type"] in DRAWN]
    questions = [question for sample in samples if (question := make_question(sample)) is not None]
    if not questions:
        raise InputError(
            f"{file}: no line has an `answer`, so nothing can be scored; see docs/guides/my-data.md"
        )
    return questions


def _shorten(sample: Sample) -> Sample:
    """Return a drawn question with the word that answers it in place of its sentence."""
    text = sample.answer or ""
    short = drawn_colour(text) or text.partition(",")[0].rstrip(".")
    return sample.model_copy(update={"answer": short})


class VqaOptions(WordingOptions):
    """The options of questions of one's own."""

    form = VqaPrompts

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return the benchmark with these options in force."""
        return replace(benchmark, ask_questions=partial(ask_questions, prompts=self.read_prompts()))


def ask_questions(questions: Sequence[VqaQuestion], prompts: VqaPrompts | None = None) -> list[Sample]:
    """Return the samples as they are asked: the question, with its options below it.

    Example:
        >>> sample = Sample(id="1", question="What is it?", answer="B", metadata={"options": ["a dog", "a cat"]})
        >>> ask_questions([make_question(sample)])[0].question
        'What is it?\\nA. a dog\\nB. a cat'
    """
    prompts = prompts or default_prompts(VqaPrompts)
    asked = []
    for question in questions:
        form = prompts.choices if question.options else prompts.question
        text = fill(form, {"question": question.sample.question, "options": question.options})
        asked.append(question.sample.model_copy(update={"question": text}))
    return asked


def score_answers(questions: Sequence[VqaQuestion], responses: Mapping[str, str]) -> Scored:
    """Score answers by question id, by rules."""
    answers = match_responses([question.sample for question in questions], responses, "vqa")
    return _score(questions, answers, _read(questions, answers), {})


def score_with_judge(questions: Sequence[VqaQuestion], responses: Mapping[str, str], judge: Judge) -> Scored:
    """Score answers by question id. The judge decides what rules cannot read."""
    answers = match_responses([question.sample for question in questions], responses, "vqa")
    verdicts = _read(questions, answers)
    requests = {
        question.sample.id: right_request(question, answers[question.sample.id])
        for question in questions
        if question.sample.id in answers and verdicts[question.sample.id] is None
    }
    judged = asyncio.run(ask_by_name(judge, requests))
    verdicts |= {name: each.items[0] if each.items else None for name, each in judged.items()}
    metrics, records = _score(questions, answers, verdicts, judged)
    unscored = [float(each.unscored is not None) for each in judged.values()]
    return metrics | ({"unscored": mean_metric(unscored, "lower")} if unscored else {}), records


def right_request(question: VqaQuestion, response: str) -> JudgeRequest[bool | None]:
    """Return the request whose only label says whether a response is right; None if it states no answer."""
    return correct_request(
        question.sample.question, response, " or ".join(question.accepted), question.options
    )


def _read(questions: Sequence[VqaQuestion], answers: Mapping[str, str]) -> dict[str, bool | None]:
    return {
        question.sample.id: read_answer(question, answers[question.sample.id])
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


def label_answers(run: Run) -> int:
    """Say of each answer of a run whether it is right, in `labels.jsonl`, from which analyses read it.

    Drawn samples are checked against their scenes, and others against their `answer`. Labels that are there are kept, and
    so is what a sample says itself (`faithful`). An answer that rules cannot read is labelled as unknown.

    Returns:
        The number of new labels.
    """
    lines = []
    for name in run.ids:
        if name in run.labels or run.sample(name).faithful is not None:
            continue
        trace = run[name]
        if (drawn := check_sample(trace.response, trace.sample)) is not None:
            lines.append(drawn.label(name))
        elif (question := make_question(trace.sample)) is not None:
            right = read_answer(question, trace.response)
            lines.append({"id": name, "faithful": right, "correct": right})
    if lines:
        file = run.path / "labels.jsonl"
        earlier = file.read_text(encoding="utf-8") if file.exists() else ""
        write_atomic(file, earlier + "".join(json.dumps(line) + "\n" for line in lines))
    return len(lines)


BENCHMARK = Benchmark(
    name="vqa",
    about="Questions of your own: any samples file whose lines have an answer.",
    read_data=read_data,
    take=lambda questions, n: questions[:n],
    ask_questions=ask_questions,
    score_answers=score_answers,
    score_with_judge=score_with_judge,
    find_labels=labels_at("correct"),
    headline=("accuracy",),
    options=VqaOptions,
    visual=False,
)
