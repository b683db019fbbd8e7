"""MME on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, match_responses, take_images
from mmprobe.benchmarks.mme.data import read_mme, read_mme_answers
from mmprobe.benchmarks.mme.metrics import score_mme
from mmprobe.benchmarks.mme.synthetic import synthetic_mme
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples


def _read(path: Path) -> list[Sample]:
    """The official folder, or a samples file of the synthetic world."""
    return synthetic_mme(load_samples(path)) if path.suffix == ".jsonl" else read_mme(path)


def _draw(folder: Path, n: int, seed: int) -> list[Sample]:
    return synthetic_mme(load_samples(make_pairs(folder, n, seed)))


def _score(samples: list[Sample], responses: Mapping[str, str]) -> Scored:
    return score_mme(samples, match_responses(samples, responses, "MME"))


def _answers(path: Path, samples: list[Sample]) -> dict[str, str] | None:
    """The official form is a folder of results, in which the two questions about a picture stand in any order."""
    if not path.is_dir():
        return None
    asked, said = read_mme_answers(path)
    ids = {_question(sample): sample.id for sample in samples}
    answers = {}
    for sample in asked:
        if _question(sample) not in ids:
            facts = sample.metadata
            raise InputError(
                f"{path / facts['subtask']}.txt: picture {facts['image']!r}, question {sample.question!r}: not in the "
                "data, or with another truth"
            )
        answers[ids[_question(sample)]] = said[sample.id]
    return answers


def _question(sample: Sample) -> tuple[str, ...]:
    """What tells a question from the others, however its blanks and its picture's file are written."""
    subtask, image = sample.metadata["subtask"], Path(sample.metadata["image"]).stem
    return subtask, image, " ".join(sample.question.split()), sample.answer or ""


BENCHMARK = Benchmark(
    name="mme",
    about="Two questions a picture, one of them to be denied, in fourteen subtasks (Fu et al., 2023).",
    read_data=_read,
    draw_data=_draw,
    take=take_images,
    ask_questions=list,
    score_answers=_score,
    headline=("perception", "cognition", "existence", "count", "position", "color", "unknown"),
    read_answers=_answers,
    max_new_tokens=32,
    unit="images",
)
