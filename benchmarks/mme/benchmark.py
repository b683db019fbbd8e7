"""MME on the command line: its data, its questions and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from mmprobe.benchmarks.core.benchmark import (
    Benchmark,
    Scored,
    ScoringRules,
    WordingOptions,
    match_responses,
    take_images,
)
from mmprobe.benchmarks.core.prompts import default_prompts, word_questions
from mmprobe.benchmarks.mme.data import read_mme, read_mme_answers
from mmprobe.benchmarks.mme.metrics import compute_metrics, make_record
from mmprobe.benchmarks.mme.prompts import MmePrompts
from mmprobe.benchmarks.mme.synthetic import draw_synthetic_mme
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_short_samples


def read_data(path: Path) -> list[Sample]:
    """Read the official folder, or a samples file of the synthetic world."""
    return draw_synthetic_mme(load_short_samples(path, "mme")) if path.suffix == ".jsonl" else read_mme(path)


class MmeOptions(WordingOptions):
    """The options of MME."""

    form = MmePrompts

    profile: ScoringRules = Field(
        "own",
        description="how answers are read: `own` leaves images with unread ones out and counts them; `code` is the authors' "
        "rule, for a table beside published numbers",
    )

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return MME with these options in force."""
        return replace(
            benchmark,
            ask_questions=partial(ask_questions, prompts=self.read_prompts()),
            score_answers=partial(score_answers, profile=self.profile),
        )


def ask_questions(samples: list[Sample], prompts: MmePrompts | None = None) -> list[Sample]:
    """Return the questions in a wording.

    Example:
        >>> prompts = MmePrompts(question="{question} Answer yes or no.")
        >>> ask_questions([Sample(id="1", question="Is there a dog?")], prompts)[0].question
        'Is there a dog? Answer yes or no.'
    """
    return word_questions(samples, (prompts or default_prompts(MmePrompts)).question)


def score_answers(
    samples: list[Sample], responses: Mapping[str, str], profile: ScoringRules = "own"
) -> Scored:
    """Score answers by question id.

    Example:
        >>> metadata = {"subtask": "count", "image": "a.png"}
        >>> samples = [Sample(id=x, question="?", answer=x, metadata=metadata) for x in ("yes", "no")]
        >>> metrics, _ = score_answers(samples, {"yes": "Yes", "no": "Yes"})
        >>> metrics["count"].value, metrics["count_accuracy_plus"].value
        (50.0, 0.0)
    """
    answers = match_responses(samples, responses, "MME")
    records = [make_record(sample, answers.get(sample.id), profile) for sample in samples]
    return compute_metrics(records), records


def read_answers(path: Path, samples: list[Sample]) -> dict[str, str] | None:
    """Read answers in the official form, a folder of results, whatever the order of an image's questions."""
    if not path.is_dir():
        return None
    questions, responses = read_mme_answers(path)
    ids = {_question_key(sample): sample.id for sample in samples}
    answers = {}
    for question in questions:
        key = _question_key(question)
        if key not in ids:
            file = path / f"{question.metadata['subtask']}.txt"
            raise InputError(
                f"{file}: image {question.metadata['image']!r}, question {question.question!r}: "
                "not in the data, or with another truth"
            )
        answers[ids[key]] = responses[question.id]
    return answers


def _question_key(sample: Sample) -> tuple[str, ...]:
    """Return what identifies a question, whatever its white space and the suffix of its image."""
    image = Path(sample.metadata["image"]).stem
    return sample.metadata["subtask"], image, " ".join(sample.question.split()), sample.answer or ""


BENCHMARK = Benchmark(
    name="mme",
    about="A yes question and a no question about each image, in fourteen subtasks (Fu et al., 2023).",
    read_data=read_data,
    take=take_images,
    ask_questions=ask_questions,
    score_answers=score_answers,
    headline=("perception", "cognition", "existence", "count", "position", "color", "unknown"),
    read_answers=read_answers,
    max_new_tokens=32,
    unit="images",
    options=MmeOptions,
)
