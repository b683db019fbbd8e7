"""Ask a model the questions of a benchmark. A second call continues one that was stopped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.analyses.files import export
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, read_responses, truncated_share
from mmprobe.benchmarks.core.likelihood import (
    LIKELIHOODS,
    add_likelihoods,
    calibration,
    describe_all,
    find_margins,
    likelihood_metrics,
)
from mmprobe.benchmarks.core.perturbations import perturb
from mmprobe.benchmarks.core.prompts import DEFAULT
from mmprobe.benchmarks.core.results import add_truth, find_false_claims, group_by_images, write_results
from mmprobe.benchmarks.judges.judge import RULES, Judging
from mmprobe.cache import open_run
from mmprobe.errors import InputError, option
from mmprobe.files import check_no_link, cut_torn_line, make_folders, write_atomic
from mmprobe.interventions.base import Method
from mmprobe.ledger import Ledger, fingerprint, list_parts, lock_folder
from mmprobe.models import Model, load_model, load_shapes
from mmprobe.samples import Sample, check_image, place_files, sampling_of, with_template
from mmprobe.settings import AskSettings, Shard
from mmprobe.traces.asking import (
    FAILURES,
    QUESTIONS,
    RESPONSES,
    LocalModel,
    Source,
    answer,
    answered_samples,
    keep_answers,
    read_given_answers,
)
from mmprobe.traces.run import Recording

if TYPE_CHECKING:
    from mmprobe.traces.workers import RayActors

log = logging.getLogger("mmprobe")

RUN_NAMES = ("run", "run-follow-up")
"""Folders of traces in a result folder. Follow-up questions had a run of their own in earlier versions."""


def run_benchmark(
    benchmark: Benchmark,
    truth: Any,
    source: Source,
    out: Path,
    about: Mapping[str, Any],
    settings: AskSettings = AskSettings(),  # noqa: B008
    recording: Recording | None = None,
    resume: bool = False,
    title: str = "",
    judging: Judging = RULES,
) -> Scored:
    """Ask every question, score the answers, and write the result folder.

    Each answer is appended to `out/responses.jsonl` at once, and `resume` skips its question. A kill loses
    only the answers under way: one batch of a local model, `api_models.CONCURRENCY` answers of a model behind
    an API.

    Args:
        source: answers the questions, as in `mmprobe.traces.answer`.
        about: who is asked, and how; written to `out/results.json`. Questions are disturbed as `perturbation` says, and
            closed ones read by likelihood, too, where `read` says so.
        settings: how a source that is a local model answers.
        recording: what is traced into `out/run`; None to trace nothing.
        title: of the progress bar; empty for the benchmark's name.
        judging: who labels the answers.

    Returns:
        The metrics and records of `out/results.json` and `out/samples.jsonl`.

    Raises:
        InputError: `out` contains an earlier call and `resume` is off, or the earlier call asked something else, or
            another model.
    """
    make_folders(out)
    questions = with_template(benchmark.ask(truth), settings.template)
    open_answers(out, questions, about, source, resume, settings.methods)

    every: list[Sample] = []  # as they were asked

    def ask(questions: Sequence[Sample]) -> dict[str, str]:
        kind = about.get("perturbation")
        asked = [each if kind is None else perturb(each, kind, out / "perturbed") for each in questions]
        every.extend(asked)
        if recording is not None:
            _trace(asked, source, out, settings, recording)
        elif asked:
            keep_answers(source, asked, out, settings, title=title or benchmark.name)
        return read_answers(out)

    follow_up = with_template(benchmark.follow_up(truth, ask(questions)), settings.template)
    responses = ask(follow_up)
    write_atomic(out / QUESTIONS, "".join(f"{_as_line(sample)}\n" for sample in every))
    metrics, records = judging.score(benchmark, truth, responses)
    add_truth(records, [*questions, *follow_up], out)
    if about.get("read") == "likelihood":
        assert isinstance(source, LocalModel)
        told = describe_all(source.model, every, responses, out, settings.batch_size)
        add_likelihoods(records, told)
        metrics = metrics | likelihood_metrics(told)
        export(calibration(told, every), out)
    metrics = group_by_images(metrics | truncated_share(responses), [*questions, *follow_up])
    write_results(out, benchmark.name, metrics, records, about)
    return metrics, records


def _trace(
    questions: Sequence[Sample], source: Source, out: Path, settings: AskSettings, recording: Recording
) -> None:
    """Trace questions into `out/run`, those of an earlier call aside, and add their answers to the folder's file.

    A trace that was deleted is made again. The recorded answers stay, and a warning counts those that differ now.
    """
    answered, ledger, run = read_answers(out), answers_ledger(out), out / "run"
    ledger.append(RESPONSES, [])  # the call is begun, even if no answer comes
    check_no_link(run / "samples")
    traced = set(open_run(run).ids) if (run / "run.json").exists() else set()
    if all(sample.id in answered and sample.id in traced for sample in questions):
        return
    if sampled := next((sample for sample in questions if sampling_of(sample)), None):
        raise InputError(f"question {sampled.id!r}: is sampled with a seed, and traced answers are greedy")
    recording = replace(recording, resume=(run / "run.json").exists(), adds=True)
    given = dict(answer(source, questions, run, settings, recording, "trace"))
    new = [sample.id for sample in questions if sample.id in given and sample.id not in answered]
    lines = [given[name].line(name) for name in new]
    ledger.append(RESPONSES, lines, ensure_ascii=False)
    changed = [name for name in given if name in answered and given[name].strip() != answered[name].strip()]
    if changed:
        log.warning(
            "%s: %d traces are of other answers than those recorded; use %s",
            out,
            len(changed),
            option("overwrite"),
        )


def trace_answers(reader: LocalModel, out: Path, settings: AskSettings, recording: Recording) -> None:
    """Read the answers in a result folder with a local model into `out/run`, as `mmprobe trace --answers` does.

    A second call adds the answers that are new since the first.

    Raises:
        InputError: no question was answered, or `out/run` contains traces of another model or capture.
    """
    questions, run = answered_samples(out), out / "run"
    given = read_given_answers(out, questions)
    recording = replace(recording, given=given, resume=(run / "run.json").exists(), adds=True)
    keep_answers(reader, questions, run, settings, recording, "trace")


def answer_shard(
    shard: Shard,
    questions: Sequence[Sample],
    source: LocalModel,
    out: Path,
    about: Mapping[str, Any],
    settings: AskSettings,
    recording: Recording | None,
    resume: bool,
) -> Path:
    """Answer one of n parts of a benchmark's questions; the arguments are those of `run_benchmark`.

    The last shard that finishes makes the answers of a single process of them.

    Returns:
        The folder of the answers: `out` if all shards are finished, else that of the shard.
    """
    from mmprobe.traces.shards import choose_part, finish_shard, merge_if_last, trace_shard

    if recording is not None:
        recording = replace(recording, resume=resume)
        run = trace_shard(shard, source, questions, out / "run", settings, recording)
        return out if run.path == out / "run" else run.path
    part = choose_part(out, shard, questions, settings, source.model, traced=False)
    with lock_folder(part.folder, "answering into it"):
        open_answers(part.folder, questions, about, source, resume, settings.methods)
        keep_answers(source, part.samples, part.folder, settings, among=questions)
        finish_shard(part)
    merge_if_last(out)
    return out if (out / RESPONSES).exists() else part.folder


def read_answers(out: Path) -> dict[str, str]:
    """Return the answers in a result folder, by id of their question; none if there are none yet."""
    return read_responses(out / RESPONSES) if cut_torn_line(out / RESPONSES) else {}


def _as_line(sample: Sample) -> str:
    """Return a sample as a line of a samples file, whose images are found from any folder."""
    return place_files(sample, Path.absolute).model_dump_json(exclude_none=True)


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
            "sample-*",
            "samples.jsonl",
            "results.json",
            "asked.json",
            QUESTIONS,
            RESPONSES,
            FAILURES,
            LIKELIHOODS,
            *(f"calibration.{ending}" for ending in ("nc", "csv", "json")),
        ),
    )


def open_answers(
    out: Path,
    questions: Sequence[Sample],
    about: Mapping[str, Any],
    source: Source | None,
    resume: bool,
    methods: Sequence[Method] = (),
) -> dict[str, str]:
    """Return the answers of an earlier call. Write who is asked what to `asked.json`, or check that it was the same.

    Raises:
        InputError: there are answers and `resume` is off, or they are those of another call.
    """
    ledger = answers_ledger(out)
    ledger.check(resume)
    responses = read_answers(out)
    listed = list(map(list_parts, questions))
    keys = ("model", "method", "parameters", "perturbation", "max_new_tokens")
    call = {key: about.get(key) for key in keys}
    sampled = bool(about.get("temperature"))  # older folders say nothing of greedy answers
    call |= {"temperature": about["temperature"], "seed": about["seed"]} if sampled else {"temperature": None}
    call["repetition_penalty"] = about.get("repetition_penalty")
    wording = about.get("wording") or {}
    own = wording.get("name") == DEFAULT and wording.get("file") is None
    call["wording"] = None if own else wording.get("sha256")  # folders from before wordings have none
    call["questions"] = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    model = source.model if isinstance(source, LocalModel) else source
    used = fingerprint(
        model.fingerprint if isinstance(model, Model) else None,
        questions,
        {each.name: each.fingerprint for each in methods if each.name != "plain"},
    )
    ledger.begin(call, used, kept=bool(responses), finished=responses)
    return responses


def check_questions(benchmark: Benchmark, truth: Any) -> None:
    """Check the images of every question.

    Raises:
        InputError: an image is missing or cannot be read, or a question of a visual benchmark has no image.
    """
    for sample in benchmark.ask(truth):
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
        records: as in samples.jsonl; the parts of answers that they say are false are written, too, and the margins of those that
            were read by likelihood.
    """
    traced = set(open_run(run).ids)
    parts = {name: spans for record in records for name, spans in find_false_claims(record).items()}
    margins = find_margins(records)
    lines = [
        json.dumps(
            {"id": name, "faithful": label}
            | ({"false_spans": parts[name]} if name in parts else {})
            | ({"margin": margins[name]} if name in margins else {})
        )
        + "\n"
        for name, label in faithful.items()
        if name in traced
    ]
    write_atomic(run / "labels.jsonl", "".join(lines))


def load_source(
    model: str | Model, loading: Mapping[str, Any], workers: RayActors | None = None
) -> LocalModel:
    """Return the model as a source; for workers, which load it themselves, without its weights.

    Args:
        loading: fields of `ModelSettings`, for a name.
    """
    if not isinstance(model, str):
        return LocalModel(model, workers)
    return LocalModel((load_model if workers is None else load_shapes)(model, **loading), workers)
