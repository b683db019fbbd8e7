"""Ask a model the questions of a benchmark. A second call continues one that was stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mmprobe.benchmarks.core.benchmark import (
    Answer,
    Benchmark,
    Scored,
    Truth,
    read_responses,
    sampling_of,
    truncated_share,
)
from mmprobe.benchmarks.core.prompts import DEFAULT
from mmprobe.benchmarks.core.records import add_truth, find_false_claims
from mmprobe.benchmarks.core.results import group_by_images, write_results
from mmprobe.benchmarks.scale.batches import GenerationSettings, answer_batches, batch_answerer
from mmprobe.cache import open_run
from mmprobe.errors import InputError
from mmprobe.files import cut_torn_line, write_atomic
from mmprobe.interventions import load_methods
from mmprobe.interventions.base import Method
from mmprobe.ledger import Ledger, fingerprint
from mmprobe.models import Model, load_model, load_shapes
from mmprobe.models.devices import DeviceMap
from mmprobe.models.generation import settings_in_force, use_repetition_penalty
from mmprobe.models.shared_prefix import repeated_keys
from mmprobe.samples import Lengths, Sample, check_image
from mmprobe.traces.given_answers import QUESTIONS

if TYPE_CHECKING:
    from mmprobe.traces.scale.crew import Workers

RUN_NAMES = ("run", "run-follow-up")
RESPONSES = "responses.jsonl"
Answerer = Callable[[Sequence[Sample]], Generator[tuple[str, str]]]
"""A function that answers questions in any order. It yields each id and answer as soon as the answer is there.

An answer is an `Answer` where its maker knows whether it was cut off.
"""


def run_benchmark(
    benchmark: Benchmark[Truth],
    truth: Truth,
    answerer: Answerer,
    out: Path,
    about: Mapping[str, Any],
    *,
    resume: bool = False,
    traced: bool = False,
    model: Model | None = None,
) -> Scored:
    """Ask every question, score the answers, and write the result folder.

    Each answer is appended to `out/responses.jsonl` at once, and `resume` skips its question. A kill loses
    only the answers under way: one batch of a local model, `api_models.CONCURRENCY` answers of a model behind
    an API.

    Args:
        about: who is asked, and how; written to `out/results.json`.
        model: the model that answers, where it is loaded here, to notice if it changes before `resume`.

    Returns:
        The metrics and records of `out/results.json` and `out/samples.jsonl`.

    Raises:
        InputError: `out` contains an earlier call and `resume` is off, or the earlier call asked something else, or
            another model.
    """
    out.mkdir(parents=True, exist_ok=True)
    questions = benchmark.ask_questions(truth)
    responses = open_answers(out, questions, about, model, resume)
    _ask(benchmark.name, questions, answerer, out, responses, traced)
    follow_up = benchmark.follow_up(truth, responses)
    _ask(benchmark.name, follow_up, answerer, out, responses, traced)
    write_atomic(out / QUESTIONS, "".join(f"{_as_line(sample)}\n" for sample in [*questions, *follow_up]))
    metrics, records = benchmark.score_answers(truth, responses)
    add_truth(records, [*questions, *follow_up], out)
    metrics = group_by_images(metrics | truncated_share(responses), [*questions, *follow_up])
    write_results(out, benchmark.name, metrics, records, about)
    return metrics, records


def _as_line(sample: Sample) -> str:
    """Return a sample as a line of a samples file, whose images are found from any folder."""
    images = [path.absolute() for path in sample.images]
    return sample.model_copy(update={"images": images}).model_dump_json(exclude_none=True)


def answer_part(
    folder: Path,
    questions: Sequence[Sample],
    part: Sequence[Sample],
    answerer: Answerer,
    call: Mapping[str, Any],
    resume: bool,
    name: str,
    model: Model,
) -> None:
    """Answer a part of a benchmark's questions into its own folder.

    Args:
        questions: all questions.
        call: who is asked, and how; as `about` of `run_benchmark`.
        name: of the benchmark.
        model: as in `run_benchmark`.
    """
    responses = open_answers(folder, questions, call, model, resume)
    _ask(name, part, answerer, folder, responses, traced=False)


def answers_ledger(out: Path) -> Ledger:
    """Return what a benchmark keeps of its answers in a folder. Data and a judge's replies are not its own.

    Example:
        >>> answers_ledger(Path("results/new")).check(resume=False)
    """
    return Ledger(
        out,
        settings="asked.json",
        holds="answers",
        differs="contains answers of another call, by its {name}",
        remedy="choose another folder",
        offer="resume the call, or choose another folder",
        mark=RESPONSES,
        owns=(
            *RUN_NAMES,
            "plain",
            "perturbed",
            "samples.jsonl",
            "results.json",
            "asked.json",
            QUESTIONS,
            RESPONSES,
        ),
    )


def open_answers(
    out: Path, questions: Sequence[Sample], about: Mapping[str, Any], model: Model | None, resume: bool
) -> dict[str, str]:
    """Return the answers of an earlier call. Write who is asked what to `asked.json`, or check that it was the same.

    Raises:
        InputError: there are answers and `resume` is off, or they are those of another call.
    """
    ledger = answers_ledger(out)
    ledger.check(resume)
    responses = read_responses(out / RESPONSES) if cut_torn_line(out / RESPONSES) else {}
    listed = [
        [sample.model_dump(mode="json", exclude={"images"}), [path.name for path in sample.images]]
        for sample in questions
    ]
    keys = ("model", "method", "parameters", "perturbation", "max_new_tokens")
    call = {key: about.get(key) for key in keys}
    call |= {key: about[key] for key in ("repetition_penalty",) if about.get(key) is not None}
    wording = about.get("wording") or {}
    own = wording.get("name") == DEFAULT and wording.get("file") is None
    call["wording"] = None if own else wording.get("sha256")  # folders from before wordings have none
    call["questions"] = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    used = fingerprint(None if model is None else model.fingerprint, questions)
    ledger.begin(call, used, kept=bool(responses), finished=responses)
    return responses


def _ask(
    name: str,
    questions: Sequence[Sample],
    answerer: Answerer,
    out: Path,
    responses: dict[str, str],
    traced: bool,
) -> None:
    """Ask the questions without an answer, and add each answer to `responses` and to the folder's file."""
    unanswered = [sample for sample in questions if sample.id not in responses]
    ledger = answers_ledger(out)
    ledger.append(RESPONSES, [])  # the call is begun, even if no answer comes
    answers = answerer(questions if traced and unanswered else unanswered)
    try:
        disable = True if traced else None  # a trace has its own bar
        for sample_id, text in tqdm(answers, name, len(unanswered), unit="answer", disable=disable):
            if sample_id in responses:
                continue
            responses[sample_id] = text
            line: dict[str, Any] = {"id": sample_id, "response": text}
            if isinstance(text, Answer) and text.truncated is not None:
                line["truncated"] = text.truncated
            ledger.append(RESPONSES, [line], ensure_ascii=False)
    finally:
        answers.close()


def check_questions(benchmark: Benchmark[Truth], truth: Truth) -> None:
    """Check the images of every question.

    Raises:
        InputError: an image is missing or cannot be read, or a question of a visual benchmark has no image.
    """
    for sample in benchmark.ask_questions(truth):
        if benchmark.visual and not sample.images:
            raise InputError(
                f"{benchmark.name}: question {sample.id!r} has no image; put the images beside the data, as "
                "docs/benchmarks.md says"
            )
        for path in sample.images:
            check_image(path, f"question {sample.id!r}")


def write_labels(run: Path, faithful: Mapping[str, bool], records: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write into a run which answers are faithful, so that reports compare faithful and unfaithful answers.

    Args:
        records: as in samples.jsonl; the parts of answers that they say are false are written, too.
    """
    traced = set(open_run(run).ids)
    parts = {name: spans for record in records for name, spans in find_false_claims(record).items()}
    lines = [
        json.dumps({"id": name, "faithful": label} | ({"false_spans": parts[name]} if name in parts else {}))
        + "\n"
        for name, label in faithful.items()
        if name in traced
    ]
    write_atomic(run / "labels.jsonl", "".join(lines))


def load_for(
    workers: Workers | None, model: str | Model, device: str, dtype: str, device_map: DeviceMap = None
) -> Model:
    """Return the model; for workers, which load it themselves, without its weights."""
    if not isinstance(model, str):
        return model
    if workers is not None:
        return load_shapes(model, device=device, dtype=dtype)
    return load_model(model, device=device, dtype=dtype, device_map=device_map)


def local_answerer(
    model: Model,
    max_new_tokens: Lengths,
    batch_size: int = 1,
    trace_to: Path | None = None,
    capture: str = "default",
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    parameters: Mapping[str, Any] | None = None,
    repetition_penalty: float | None = None,
    workers: Workers | None = None,
    shared_prefix: bool = True,
) -> Answerer:
    """Return an answerer that generates with a loaded model: greedily, or as `sampling_of` a question says.

    With `trace_to`, the answers are traced under the ids of their questions. Follow-up questions get a run of
    their own, `trace_to` with `-follow-up` after its name. A question without images is answered plainly
    where the method needs images. If it is traced, it fails instead. With `workers`, the model has no weights, and
    the workers load it; `workers` and `shared_prefix` are as in `mmprobe.trace`.

    Example:
        >>> dict(local_answerer(model, 32)(samples))                # doctest: +SKIP
        {'0001': 'Yes.'}
    """
    calls = 0
    methods = load_methods(method, **(parameters or {}))
    settings = GenerationSettings(max_new_tokens, batch_size, methods, repetition_penalty, shared_prefix)

    def answer(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        nonlocal calls
        calls += 1
        if not samples:
            return
        if trace_to is None:
            if workers is None:
                answer_batch = batch_answerer(model, settings, repeated_keys(samples))
                for batch in answer_batches(samples, settings):
                    yield from answer_batch(batch)
                return
            from mmprobe.benchmarks.scale.answer_workers import answer_with_workers

            yield from answer_with_workers(model, settings, samples, workers)
            return
        from mmprobe.traces import trace

        if sampled := next((sample for sample in samples if sampling_of(sample)), None):
            raise InputError(
                f"question {sampled.id!r}: is sampled with a seed, and traced answers are greedy"
            )
        folder = trace_to if calls == 1 else trace_to.with_name(f"{trace_to.name}-follow-up")
        run = trace(
            model,
            samples,
            folder,
            capture=capture,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            repetition_penalty=repetition_penalty,
            method=methods,
            resume=(folder / "run.json").exists(),
            workers=workers,
            shared_prefix=shared_prefix,
        )
        for sample_trace in run:
            ids = sample_trace.steps["id"].values
            truncated = len(ids) > 0 and int(ids[-1]) not in model.eos_token_ids
            yield sample_trace.id, Answer(sample_trace.answer, truncated)

    return answer


def describe_generation(model: Model, repetition_penalty: float | None = None) -> dict[str, Any]:
    """Return the generation settings in force, for `results.json`."""
    with use_repetition_penalty(model, repetition_penalty):
        return settings_in_force(model)
