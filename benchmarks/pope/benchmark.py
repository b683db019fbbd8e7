"""POPE on the command line: its data, its questions and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mmprobe.benchmarks.core.benchmark import Scored
from mmprobe.benchmarks.core.yes_no import YesNoBenchmark
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.pope.data import SETTINGS, read_pope, read_pope_answers
from mmprobe.benchmarks.pope.metrics import compute_metrics, make_record, read_published
from mmprobe.benchmarks.pope.synthetic import draw_synthetic_pope
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.samples import Sample, load_short_samples


class Pope(YesNoBenchmark):
    """Is there a …? Questions about objects that an image shows or does not show (Li et al., 2023)."""

    name: ClassVar[str] = "pope"
    headline: ClassVar[tuple[str, ...]] = ("accuracy", "precision", "recall", "f1", "yes_ratio", "unknown")

    def read(self, path: Path) -> list[Sample]:
        """Read official files with `images/` beside them, or a samples file of the synthetic world."""
        if path.suffix == ".jsonl" and is_synthetic(path):
            samples = load_short_samples(path, "pope")
            return [question for setting in SETTINGS for question in draw_synthetic_pope(samples, setting)]
        images = (path if path.is_dir() else path.parent) / "images"
        return read_pope(path, images if images.is_dir() else None)

    def read_answers(self, path: Path, truth: list[Sample]) -> dict[str, str] | None:
        """Read answers in the official form, whose lines have `question` and `answer` but no ids."""
        beginning = path.read_text(encoding="utf-8-sig", errors="replace")[:2000] if path.is_file() else ""
        is_official = '"answer"' in beginning and '"response"' not in beginning
        return read_pope_answers(path, truth) if is_official else None

    def score(self, truth: list[Sample], responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score answers by question id.

        Example:
            >>> samples = [Sample(id=name, question="?", answer="yes") for name in "12"]
            >>> metrics, records = Pope().score(samples, {"1": "Yes.", "2": "Perhaps"})
            >>> metrics["accuracy"].value, metrics["accuracy"].coverage, metrics["unknown"].value
            (0.5, 1.0, 0.5)
        """
        records = [make_record(*row) for row in self.read_words(truth, responses, read_published)]
        return compute_metrics(records), records
