"""MME on the command line: its data, its questions and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mmprobe.benchmarks.core.benchmark import Scored
from mmprobe.benchmarks.core.yes_no import YesNoBenchmark
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mme.data import read_mme, read_mme_answers
from mmprobe.benchmarks.mme.metrics import compute_metrics, make_record, read_official
from mmprobe.benchmarks.mme.synthetic import draw_synthetic_mme
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_short_samples


class Mme(YesNoBenchmark):
    """A yes question and a no question about each image, in fourteen subtasks (Fu et al., 2023)."""

    name: ClassVar[str] = "mme"
    headline: ClassVar[tuple[str, ...]] = (
        "perception",
        "cognition",
        "existence",
        "count",
        "position",
        "color",
        "unknown",
    )

    def read(self, path: Path) -> list[Sample]:
        """Read the official folder, or a samples file of the synthetic world."""
        if path.suffix == ".jsonl":
            return draw_synthetic_mme(load_short_samples(path, "mme"))
        return read_mme(path)

    def read_answers(self, path: Path, truth: list[Sample]) -> dict[str, str] | None:
        """Read answers in the official form, a folder of results, whatever the order of an image's questions."""
        if not path.is_dir():
            return None
        questions, responses = read_mme_answers(path)
        ids = {_question_key(sample): sample.id for sample in truth}
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

    def score(self, truth: list[Sample], responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score answers by question id.

        Example:
            >>> metadata = {"subtask": "count", "image": "a.png"}
            >>> samples = [Sample(id=x, question="?", answer=x, metadata=metadata) for x in ("yes", "no")]
            >>> metrics, _ = Mme().score(samples, {"yes": "Yes", "no": "Yes"})
            >>> metrics["count"].value, metrics["count_accuracy_plus"].value
            (50.0, 0.0)
        """
        records = [make_record(*row) for row in self.read_words(truth, responses, read_official)]
        return compute_metrics(records), records


def _question_key(sample: Sample) -> tuple[str, ...]:
    """Return what identifies a question, whatever its white space and the suffix of its image."""
    image = Path(sample.metadata["image"]).stem
    return sample.metadata["subtask"], image, " ".join(sample.question.split()), sample.answer or ""
