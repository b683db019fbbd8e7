"""Answer the questions of docs/interventions.md, and keep the answers apart from their scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import xarray as xr

import mmprobe as mp
from mmprobe.benchmarks.core.benchmark import BENCHMARKS, make_benchmark
from mmprobe.benchmarks.core.compare import Contender, folder_name, make_dataset
from mmprobe.benchmarks.core.results import group_by_images
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.interventions import load_methods
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings
from mmprobe.traces import answer

# First seed and number of pairs. The embedded model was trained on none of them.
SETS = {"validation": (1_500_000, 60), "test": (1_800_000, 150), "outer": (1_850_000, 40)}
PUBLISHED = {"pope": {"profile": "code"}, "mme": {"profile": "code"}}  # scored by the published rules
BATCH_SIZE = 32
MAX_NEW_TOKENS = 128  # the embedded model's longest answers have some 80 tokens


def draw_pairs(folder: Path, name: str) -> Path:
    """Draw the pairs of a set unless they exist, and return their samples file.

    The pairs for SPD-Faith Bench are hard ones, so that answers can be improved.
    """
    seed, n_pairs = SETS[name]
    file = folder / name / "pairs" / "samples.jsonl"
    if file.exists():
        return file
    return make_pairs(file.parent, n_pairs, seed, (0, 3), None if name == "outer" else "hard")


def answer_all(
    contenders: Sequence[Contender],
    benchmarks: Sequence[str],
    folder: Path,
    name: str,
    workers: int,
    limit: int | None = None,
) -> None:
    """Answer the questions of the named benchmarks about a set's pairs, or its first part, in worker processes.

    Existing answers are kept, so an interrupted call continues.
    """
    data = draw_pairs(folder, name)
    pairs = [(contender, benchmark) for contender in contenders for benchmark in benchmarks]
    by_file = {_answers_file(data, contender, name): (contender, name) for contender, name in pairs}
    jobs = [(contender, benchmark, data, limit) for contender, benchmark in by_file.values()]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for contender, benchmark, n_new in pool.map(_answer_in_worker, jobs):
            print(f"{name}: {contender}: {benchmark}: {n_new} new answers", flush=True)


def _answer_in_worker(job: tuple[Contender, str, Path, int | None]) -> tuple[str, str, int]:
    contender, name, data, limit = job
    benchmark = BENCHMARKS[name]()
    truth = _read(benchmark, data, limit)
    file = _answers_file(data, contender, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    n_new = _ask(contender, benchmark.ask(truth), file)
    answers = _read_answers(file, benchmark.ask(truth))
    return contender.name, name, n_new + _ask(contender, benchmark.follow_up(truth, answers), file)


def _read(benchmark: Any, data: Path, limit: int | None) -> Any:
    """Return a benchmark's truth, or its first part."""
    truth = benchmark.read(data)
    return truth if limit is None else benchmark.take(truth, limit)


@cache
def _load_worker_model() -> Model:
    torch.set_num_threads(1)
    return mp.load_model("tiny-spd", device="cpu")


def _ask(contender: Contender, questions: Sequence[Sample], file: Path) -> int:
    """Append the answers to the questions that have none to the file, and return their number."""
    known = _read_answers(file, questions)
    unanswered = {sample.id: sample.question for sample in questions if sample.id not in known}
    if not unanswered:
        return 0
    methods = load_methods(contender.method, **contender.parameters)
    settings = AskSettings(method=methods, max_new_tokens=MAX_NEW_TOKENS, batch_size=BATCH_SIZE)
    asked = [sample for sample in questions if sample.id in unanswered]
    with open(file, "a", encoding="utf-8", errors="replace") as lines:
        for sample_id, text in answer(_load_worker_model(), asked, None, settings):
            line = {"id": sample_id, "question": unanswered[sample_id], "response": text.strip()}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            lines.flush()
    return len(unanswered)


def _answers_file(data: Path, contender: Contender, benchmark: str) -> Path:
    """Return the file of answers. Its name contains the parameters, so that equal ones are asked once."""
    parameters = "".join(f" {name}={value}" for name, value in sorted(contender.parameters.items()))
    name = folder_name(f"{contender.method}{parameters}")
    return data.parent.parent / "answers" / name / f"{benchmark}.jsonl"


def _read_answers(file: Path, questions: Sequence[Sample]) -> dict[str, str]:
    """Return the answers to these questions. An answer to another question of the same id does not count."""
    texts = {sample.id: sample.question for sample in questions}
    if not file.exists():
        return {}
    answers = {}
    for line in file.read_text(encoding="utf-8").split("\n"):
        try:
            answer = json.loads(line)
        except ValueError:  # the last line of a killed process
            continue
        if texts.get(answer["id"]) == answer["question"]:
            answers[answer["id"]] = answer["response"]
    return answers


def score_all(
    contenders: Sequence[Contender],
    benchmarks: Sequence[str],
    folder: Path,
    name: str,
    limit: int | None = None,
) -> xr.Dataset:
    """Score the answers about a set, and compare the contenders with the first one. No model is asked."""
    data = draw_pairs(folder, name)
    scores = {}
    for benchmark in (make_benchmark(name, PUBLISHED.get(name, {})) for name in benchmarks):
        truth = _read(benchmark, data, limit)
        for contender in contenders:
            file = _answers_file(data, contender, benchmark.name)
            questions = benchmark.ask(truth)
            answers = _read_answers(file, questions)
            follow_up = benchmark.follow_up(truth, answers)
            answers |= _read_answers(file, follow_up)
            metrics, _ = benchmark.score(truth, answers)
            metrics = {name: metric for name, metric in metrics.items() if "[" not in name}
            scores[contender.name, benchmark.name] = group_by_images(metrics, [*questions, *follow_up])
    return make_dataset(scores, [contender.name for contender in contenders], list(benchmarks))


def describe_parameters(parameters: Mapping[str, Any]) -> str:
    """Return parameters as text for the page."""
    return ", ".join(f"`{name}={value}`" for name, value in parameters.items()) or "default parameters"
