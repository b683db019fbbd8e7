"""AMBER on the command line: its data, its questions and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from mmprobe.benchmarks.amber.data import GENERATIVE, AmberTruth, draw_amber, read_amber, read_amber_answers
from mmprobe.benchmarks.amber.metrics import compute_metrics, judge_description, list_finder, published_tools
from mmprobe.benchmarks.answers.yes_no import first_word, read_yes_no
from mmprobe.benchmarks.core.benchmark import (
    Scored,
    ScoringRules,
    WordedBenchmark,
    match_responses,
    take_images,
)
from mmprobe.benchmarks.core.prompts import Prompts, QuestionPrompts, word_questions
from mmprobe.benchmarks.judges import Judge
from mmprobe.samples import Sample, load_short_samples


class Amber(WordedBenchmark):
    """Descriptions, and questions of existence, attributes and relations, of annotated images (Wang et al., 2023)."""

    name: ClassVar[str] = "amber"
    max_new_tokens: ClassVar[int] = 32
    long_answers: ClassVar[Mapping[str, int]] = {GENERATIVE: 256}
    unit: ClassVar[str] = "images"
    lists: ClassVar[tuple[str, ...]] = ("samples",)
    form: ClassVar[type[Prompts]] = QuestionPrompts

    profile: ScoringRules = Field(
        default="own",
        description="how objects are found and answers read: mmprobe's rules, or by the authors' `code`, with NLTK and spaCy, for a "
        "table beside published numbers",
    )

    @property
    def headline(self) -> tuple[str, ...]:
        """The authors' four numbers of descriptions, and their four of answers."""
        return ("chair", "cover", "hal", "cog", "accuracy", "precision", "recall", "f1")

    def read(self, path: Path) -> AmberTruth:
        """Read the published files, or a samples file of `make-pairs`."""
        if path.suffix == ".jsonl":
            return draw_amber(load_short_samples(path, "amber"))
        return read_amber(path)

    def take(self, truth: AmberTruth, n: int) -> AmberTruth:
        """Return the questions about the first n images."""
        return truth._replace(samples=take_images(truth.samples, n))

    def ask(self, truth: AmberTruth) -> list[Sample]:
        """Return the questions in a wording."""
        return word_questions(truth.samples, self.texts.question)

    def read_answers(self, path: Path, truth: AmberTruth) -> dict[str, str] | None:
        """Read answers in the published form, one JSON list."""
        return read_amber_answers(path) if path.suffix == ".json" else None

    def score(self, truth: AmberTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score descriptions and answers by question id."""
        answers = match_responses(truth.samples, responses, "AMBER")
        if self.profile == "code":
            find_nouns, similar = published_tools()
        else:
            find_nouns, similar = list_finder(truth.words), str.__eq__
        records = []
        for sample in truth.samples:
            answer, kind = answers.get(sample.id), sample.metadata["type"]
            record: dict[str, Any] = {
                "id": sample.id,
                "type": kind,
                "question": sample.question,
                "answer": answer,
            }
            if kind != GENERATIVE:
                said = None if answer is None else self._read(answer, sample)
                correct = None if said in (None, "unknown") else said == sample.answer
                record |= {"label": sample.answer, "said": said, "correct": correct}
            else:
                annotation = truth.annotations[sample.id]
                record |= {
                    "shown": list(annotation.truth),
                    "imaginable": list(annotation.hallu),
                    "faithful": None,
                }
                if answer is not None:
                    record |= judge_description(find_nouns(answer), annotation, truth.words, similar)
                    record["faithful"] = not record["hallucinated"]
            records.append(record)
        return compute_metrics(records), records

    def _read(self, answer: str, sample: Sample) -> str:
        """Return yes, no or unknown."""
        if self.profile == "code":
            return answer.lower() if answer in ("Yes", "No") else "unknown"
        return read_yes_no(answer, sample.question) or first_word(answer)

    def label(self, truth: AmberTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each description names no hallucinated object, and whether each answer is right, by question id."""
        named = ((record["id"], record.get("faithful", record.get("correct"))) for record in records)
        return {name: label for name, label in named if label is not None}
