"""Ask a model a benchmark's questions: a local one, traced if wanted, or one behind an API; resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, read_responses
from mmprobe.benchmarks.core.jsonl import write_whole
from mmprobe.benchmarks.core.results import write_results
from mmprobe.cache import open_run
from mmprobe.errors import InputError
from mmprobe.interventions import generate_batch, load_methods
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.samples import Sample, check_image

Answer = Callable[[Sequence[Sample]], Generator[tuple[str, str]]]
"""Answers questions in any order; each answer is told as soon as it is there."""


def run_benchmark(
    benchmark: Benchmark,
    truth: Any,
    answer: Answer,
    out: Path,
    about: Mapping[str, Any],
    resume: bool = False,
    traced: bool = False,
) -> Scored:
    """Ask every question, those that depend on answers last, and write the result folder.

    Each answer is appended to `out/responses.jsonl` when it is there; with `resume`, what stands there is not
    asked again. A kill costs the answers on their way, which are asked for again: of a model behind an API as many
    as it is asked at a time (`api.CONCURRENCY`), of a local one a batch.

    Args:
        benchmark, truth: what is asked.
        answer: who is asked.
        out: the result folder.
        about: written into `results.json`: model, method, seeds.
        resume: go on with an earlier run in `out`, of the same model, method and questions.
        traced: who answers keeps a run of all questions, so is given also those that were answered.

    Returns:
        Metrics and records, as in `out/results.json` and `out/samples.jsonl`.

    Raises:
        InputError: `out` holds an earlier run and resume is off, or it was another model's or asked something else.

    Example:
        >>> run_benchmark(find_benchmark("pope"), truth, local(model), Path("out"), {})      # doctest: +SKIP
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "responses.jsonl"
    if file.exists() and not resume:
        raise InputError(f"{out}: holds answers already; use --resume to go on, or choose another --out")
    responses = _earlier(file)
    _note_asked(out, benchmark.ask(truth), about, bool(responses))
    for questions in (benchmark.ask, lambda truth: benchmark.follow_up(truth, responses)):
        asked = questions(truth)
        left = [sample for sample in asked if sample.id not in responses]
        with open(file, "a", encoding="utf-8", errors="replace") as lines:
            answers = answer(asked if traced and left else left)
            try:
                for name, text in tqdm(answers, benchmark.name, len(left), unit="answer", disable=None):
                    if name in responses:
                        continue
                    responses[name] = text
                    lines.write(json.dumps({"id": name, "response": text}, ensure_ascii=False) + "\n")
                    lines.flush()
            finally:
                answers.close()
    metrics, records = benchmark.score(truth, responses)
    write_results(out, benchmark.name, metrics, records, about)
    return metrics, records


def check_questions(benchmark: Benchmark, truth: Any) -> None:
    """Check that there are the pictures that will be shown.

    Raises:
        InputError: one is missing or cannot be read, or a question of a benchmark about pictures has none.

    Example:
        >>> check_questions(find_benchmark("pope"), truth)          # doctest: +SKIP
    """
    for sample in benchmark.ask(truth):
        if benchmark.visual and not sample.images:
            raise InputError(
                f"{benchmark.name}: question {sample.id!r} has no picture; put the pictures beside the data, as "
                "docs/benchmarks.md says"
            )
        for path in sample.images:
            check_image(path, f"question {sample.id!r}")


def _note_asked(out: Path, samples: Sequence[Sample], about: Mapping[str, Any], answered: bool) -> None:
    """Write down who is asked what; where some were answered, compare it with what the earlier call wrote."""
    questions = [
        [sample.model_dump(mode="json", exclude={"images"}), [path.name for path in sample.images]]
        for sample in samples
    ]
    wanted = {
        part: about.get(part) for part in ("model", "method", "parameters", "perturbation", "max_new_tokens")
    }
    wanted["questions"] = hashlib.sha256(json.dumps(questions).encode()).hexdigest()
    file = out / "asked.json"
    if not answered:
        write_whole(file, json.dumps(wanted, indent=1) + "\n")
        return
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(
            f"{out}: does not say whose answers it holds (asked.json); choose another --out"
        ) from None
    for part, value in json.loads(json.dumps(wanted)).items():
        if earlier.get(part) != value:
            raise InputError(f"{out}: holds answers of another call, by its {part}; choose another --out")


def label_run(run: Path, faithful: Mapping[str, bool]) -> None:
    """Write what a benchmark found of the answers into a run, so that reports compare faithful and unfaithful ones.

    Example:
        >>> label_run(Path("out/run"), benchmark.faithful(truth, records))         # doctest: +SKIP
    """
    traced = set(open_run(run).ids)
    lines = [json.dumps({"id": name, "faithful": is_}) for name, is_ in faithful.items() if name in traced]
    write_whole(run / "labels.jsonl", "".join(line + "\n" for line in lines))


def _earlier(file: Path) -> dict[str, str]:
    """Answers of an earlier run; a line that was cut off by a kill is dropped from the file."""
    if not file.exists():
        return {}
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        file.write_bytes(whole)
    return read_responses(file) if whole.strip() else {}


def local(
    model: Model,
    max_new_tokens: int,
    batch_size: int = 1,
    trace_to: Path | None = None,
    capture: str = "default",
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    parameters: Mapping[str, Any] | None = None,
) -> Answer:
    """Answers of a model that is loaded here, greedily; traced into `trace_to`, under the questions' own ids.

    Questions without pictures are answered plainly where a method needs some, unless they are traced, which fails.
    Questions that depend on answers are traced into a run of their own, `trace_to` with `-follow-up` behind it.

    Example:
        >>> dict(local(model, 32)(samples))                         # doctest: +SKIP
        {'0001': 'Yes.'}
    """
    asked, methods = 0, load_methods(method, **(parameters or {}))

    def answer(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        nonlocal asked
        asked += 1
        if not samples:
            return
        if trace_to is None:
            yield from _generated(model, samples, max_new_tokens, batch_size, methods)
            return
        from mmprobe.traces import trace

        folder = trace_to if asked == 1 else trace_to.with_name(f"{trace_to.name}-follow-up")
        run = trace(
            model,
            samples,
            folder,
            capture,
            max_new_tokens,
            batch_size=batch_size,
            method=methods,
            resume=(folder / "run.json").exists(),
        )
        for traced in run:
            yield traced.id, traced.answer

    return answer


def _generated(
    model: Model, samples: Sequence[Sample], max_new_tokens: int, batch_size: int, methods: Sequence[Method]
) -> Generator[tuple[str, str]]:
    # Some families cannot mix numbers of pictures in a batch; and like questions have answers of like length.
    in_turn = sorted(samples, key=lambda sample: (len(sample.images), sample.question))
    for pictures, alike in groupby(in_turn, key=lambda sample: len(sample.images)):
        group, acting = list(alike), [method for method in methods if pictures or not method.visual]
        for start in range(0, len(group), batch_size):
            together = group[start : start + batch_size]
            answers = generate_batch(model, together, acting or "plain", max_new_tokens=max_new_tokens)
            for sample, found in zip(together, answers, strict=True):
                yield sample.id, found.text.strip()
