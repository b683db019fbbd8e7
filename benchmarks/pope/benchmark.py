"""POPE on the command line: its data, its questions and its scores."""

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
from mmprobe.benchmarks.pope.data import SETTINGS, read_pope, read_pope_answers
from mmprobe.benchmarks.pope.metrics import compute_metrics, make_record
from mmprobe.benchmarks.pope.prompts import PopePrompts
from mmprobe.benchmarks.pope.synthetic import draw_synthetic_pope
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.samples import Sample, load_short_samples


def read_data(path: Path) -> list[Sample]:
    """Read official files with `images/` beside them, or a samples file of the synthetic world."""
    if path.suffix == ".jsonl" and is_synthetic(path):
        samples = load_short_samples(path, "pope")
        return [question for setting in SETTINGS for question in draw_synthetic_pope(samples, setting)]
    return read_pope(path, _find_images(path))


def _find_images(path: Path) -> Path | None:
    folder = (path if path.is_dir() else path.parent) / "images"
    return folder if folder.is_dir() else None


class PopeOptions(WordingOptions):
    """The options of POPE."""

    form = PopePrompts

    profile: ScoringRules = Field(
        "own",
        description="how answers are read: `own` leaves unread ones out and counts them; `code` is the authors' rule, for a "
        "table beside published numbers",
    )

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return POPE with these options in force."""
        return replace(
            benchmark,
            ask_questions=partial(ask_questions, prompts=self.read_prompts()),
            score_answers=partial(score_answers, profile=self.profile),
        )


def ask_questions(samples: list[Sample], prompts: PopePrompts | None = None) -> list[Sample]:
    """Return the questions in a wording.

    Example:
        >>> prompts = PopePrompts(question="{question} Answer yes or no.")
        >>> ask_questions([Sample(id="1", question="Is there a dog?")], prompts)[0].question
        'Is there a dog? Answer yes or no.'
    """
    return word_questions(samples, (prompts or default_prompts(PopePrompts)).question)


def score_answers(
    samples: list[Sample], responses: Mapping[str, str], profile: ScoringRules = "own"
) -> Scored:
    """Score answers by question id.

    Example:
        >>> samples = [Sample(id=name, question="?", answer="yes") for name in "12"]
        >>> metrics, records = score_answers(samples, {"1": "Yes.", "2": "Perhaps"})
        >>> metrics["accuracy"].value, metrics["accuracy"].coverage, metrics["unknown"].value
        (1.0, 0.5, 0.5)
    """
    answers = match_responses(samples, responses, "POPE")
    records = [make_record(sample, answers.get(sample.id), profile) for sample in samples]
    return compute_metrics(records), records


def read_answers(path: Path, samples: list[Sample]) -> dict[str, str] | None:
    """Read answers in the official form, whose lines have `question` and `answer` but no ids."""
    beginning = path.read_text(encoding="utf-8-sig", errors="replace")[:2000] if path.is_file() else ""
    is_official = '"answer"' in beginning and '"response"' not in beginning
    return read_pope_answers(path, samples) if is_official else None


BENCHMARK = Benchmark(
    name="pope",
    about="Is there a …? Questions about objects that an image shows or does not show (Li et al., 2023).",
    read_data=read_data,
    take=take_images,
    ask_questions=ask_questions,
    score_answers=score_answers,
    headline=("accuracy", "precision", "recall", "f1", "yes_ratio", "unknown"),
    read_answers=read_answers,
    max_new_tokens=32,
    unit="images",
    options=PopeOptions,
)
