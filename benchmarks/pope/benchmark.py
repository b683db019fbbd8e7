"""POPE on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, match_responses, take_images
from mmprobe.benchmarks.pope.data import SETTINGS, read_pope, read_pope_answers
from mmprobe.benchmarks.pope.metrics import score_pope
from mmprobe.benchmarks.pope.synthetic import synthetic_pope
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples


def _of_world(samples: list[Sample]) -> list[Sample]:
    return [question for setting in SETTINGS for question in synthetic_pope(samples, setting)]


def _read(path: Path) -> list[Sample]:
    """Official files, with their pictures in `images/` beside them; or a samples file of the synthetic world."""
    if path.suffix == ".jsonl":
        try:
            return _of_world(load_samples(path))
        except InputError as of_world:
            try:
                return read_pope(path, _pictures(path))
            except InputError as official:
                raise InputError(f"{official}; nor is it a samples file: {of_world}") from None
    return read_pope(path, _pictures(path))


def _pictures(path: Path) -> Path | None:
    folder = (path if path.is_dir() else path.parent) / "images"
    return folder if folder.is_dir() else None


def _draw(folder: Path, n: int, seed: int) -> list[Sample]:
    return _of_world(load_samples(make_pairs(folder, n, seed)))


def _score(samples: list[Sample], responses: Mapping[str, str]) -> Scored:
    return score_pope(samples, match_responses(samples, responses, "POPE"))


def _answers(path: Path, samples: list[Sample]) -> dict[str, str] | None:
    """The official form has lines with `question` and `answer`, and no ids."""
    head = path.read_text(encoding="utf-8-sig", errors="replace")[:2000] if path.is_file() else ""
    return read_pope_answers(path, samples) if '"answer"' in head and '"response"' not in head else None


BENCHMARK = Benchmark(
    name="pope",
    about="Is there a …? Questions about objects that are there and that are not (Li et al., 2023).",
    read_data=_read,
    draw_data=_draw,
    take=take_images,
    ask_questions=list,
    score_answers=_score,
    headline=("accuracy", "precision", "recall", "f1", "yes_ratio", "unknown"),
    read_answers=_answers,
    max_new_tokens=32,
    unit="images",
)
