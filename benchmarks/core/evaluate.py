"""Evaluate a model on a benchmark, and score answers: one call each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.benchmarks.core.api_models import is_api
from mmprobe.benchmarks.core.benchmark import (
    BENCHMARKS,
    Benchmark,
    Truth,
    add_template,
    answer_lengths,
    load_truth,
    read_responses,
    truncated_share,
    with_options,
    wording_of,
)
from mmprobe.benchmarks.core.perturbations import check_kind, paired_changes
from mmprobe.benchmarks.core.results import Metric, add_truth, group_by_images, write_results
from mmprobe.benchmarks.judges.judge import LEXICAL, with_judge
from mmprobe.benchmarks.layouts import layout_of
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError
from mmprobe.ledger import lock_folder

if TYPE_CHECKING:
    from mmprobe.models import Model
    from mmprobe.models.devices import DeviceMap
    from mmprobe.traces.asking import Source
    from mmprobe.traces.workers import Workers


class Evaluation(NamedTuple):
    """The scores of a benchmark's answers.

    Attributes:
        benchmark: its name.
        metrics: metrics by name, as in `folder/results.json`.
        records: one record a sample, as in `folder/samples.jsonl`.
        folder: the result folder.
        judging: counts of a judge's work: `judged`, `calls`, `cut` and `unscored`. Empty without a judge.
        failures: number of questions that failed, by the folder that lists them.
        headline: names of the metrics that are shown first, as the benchmark's options choose them.
        layout: the layout that published data were read in; None for data in the benchmark's own form.

    Example:
        >>> evaluate("pope", "tiny-spd", "results/pope").metrics["accuracy"].value        # doctest: +SKIP
        0.96
    """

    benchmark: str
    metrics: dict[str, Metric]
    records: list[dict[str, Any]]
    folder: Path
    judging: dict[str, Any]
    failures: dict[Path, int]
    headline: tuple[str, ...] = ()
    layout: str | None = None

    def __repr__(self) -> str:
        """Show the headline metrics; the records alone can fill a screen."""
        names = [name for name in self.headline if name in self.metrics] or list(self.metrics)[:3]
        shown = ", ".join(f"{name} {self.metrics[name]}" for name in names)
        return f"<Evaluation {self.benchmark}: {shown}, {len(self.records)} records in {self.folder}>"


def evaluate(
    name: str,
    model: str | Model,
    out: str | Path,
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    n: int = PAIRS,
    seed: int = SEED,
    judge: str = LEXICAL,
    trace: bool = False,
    trace_with: str | Model | None = None,
    capture: str = "default",
    method: str = "plain",
    perturbation: str | None = None,
    batch_size: int = 1,
    max_new_tokens: int | None = None,
    repetition_penalty: float | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap = None,
    resume: bool = False,
    overwrite: bool = False,
    retry_unscored: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
    shard: str | None = None,
    workers: Workers | None = None,
    shared_prefix: bool = True,
    template: Mapping[str, Any] = MappingProxyType({}),
    **parameters: Any,
) -> Evaluation:
    """Ask a model the questions of a benchmark, score its answers and write the result folder.

    Args:
        name: `spd-faith`, `pope`, `chair`, `mme`, `mirage`, `magic`, `mirage-effect` or `mmreason`.
        model: a model from `load_model`, an alias, local folder or hub id, or `PROVIDER/MODEL` of inspect-ai.
        out: the result folder: results.json, samples.jsonl and responses.jsonl.
        data: published files, or samples.jsonl of `make-pairs`. None draws a small set into `out/data`.
        limit: only the first so many pairs, images or questions of the data (`Benchmark.unit`).
        n, seed: number of pairs and seed of a drawn set.
        judge: `lexical` for rules, `model:PROVIDER/MODEL`, or `ensemble:A,B,C`.
        trace: trace the answers into `out/run`, and label them faithful or not.
        trace_with: a model from `load_model` or its name, which then reads the answers into `out/run`, whoever gave them:
            `mp.trace(trace_with, …, answers=out)`. The answers are labelled as with `trace`.
        capture: with `trace` or `trace_with`: `default`, `full` or a YAML file.
        method: a method of `mmprobe.interventions`, or a YAML file.
        perturbation: a kind of `mmprobe.benchmarks.core.perturbations` that disturbs each question. Each is
            also asked as it is, into `out/plain`, and `NAME_change` is the paired change of each metric.
        batch_size: questions answered together.
        max_new_tokens: longest answer. None takes the benchmark's own length, which may depend on the question.
        repetition_penalty: of a model loaded here. None for the checkpoint's own.
        device, dtype, device_map: as for `load_model`, where `model` is a name.
        resume, overwrite: continue an earlier call in `out`, or remove its answers and runs.
        retry_unscored: send the judge again the items that an earlier call left unscored.
        options: options of the benchmark itself, such as `{"threshold": 0.1}` of mirage.
        shard: `i/n` answers the i-th of n parts of the questions about `data`, for processes that share `out`. The last
            one that finishes puts the answers together and scores them. Before it, the evaluation has no metrics, and
            its folder is the shard's.
        workers, shared_prefix: as in `mmprobe.trace`; with workers, `model` is a name.
        template: arguments of the model's chat template, such as `{"enable_thinking": False}`. Models behind an API take
            none.
        parameters: parameters of the method in place of its defaults.

    Raises:
        InputError: an unknown benchmark, model, method or judge, data that cannot be read, or `out` contains
            answers; or the shard cannot be made in `out`.

    Example:
        >>> evaluation = evaluate("spd-faith", "tiny-spd", "results/spd", trace=True)        # doctest: +SKIP
        >>> print(evaluation.metrics["drf"])                                                 # doctest: +SKIP
        0.935 [0.880, 0.979]
    """
    out = Path(out)
    benchmark = add_template(with_options(BENCHMARKS[name], options), template)
    _check_call(model, method, parameters, trace=trace, repetition_penalty=repetition_penalty)
    if trace_with is not None:
        _check_reader(trace_with, trace, shard)
    if perturbation is not None:
        check_kind(perturbation)
    if shard is not None and (data is None or perturbation is not None or overwrite):
        raise InputError(
            "shard: needs data (make-pairs draws pairs), and goes neither with a perturbation nor with overwrite"
        )
    # Names are checked first, since these import torch.
    from mmprobe.benchmarks.core.api_models import api_answerer
    from mmprobe.benchmarks.core.runner import (
        answer_shard,
        answers_ledger,
        check_questions,
        load_source,
        read_answers,
        run_benchmark,
        trace_answers,
    )
    from mmprobe.interventions import Settings, load_methods
    from mmprobe.models.loading import settings_in_force
    from mmprobe.traces.asking import RESPONSES, LocalModel
    from mmprobe.traces.run import Recording

    lengths = answer_lengths(benchmark, max_new_tokens)
    settings = Settings(
        load_methods(method, **parameters),
        lengths,
        batch_size,
        repetition_penalty=repetition_penalty,
        shared_prefix=shared_prefix,
    )
    recording = Recording(capture) if trace else None
    about: dict[str, Any] = {
        "model": model if isinstance(model, str) else model.name,
        "method": method,
        "parameters": parameters,
        "perturbation": perturbation,
        "data": str(data) if data else f"drawn, {n} pairs, seed {seed}",
        "layout": None,
        "limit": limit,
        "judge": judge,
        "judging": {},
        "options": dict(options),
        "wording": wording_of(benchmark),
        "headline": list(benchmark.headline),
        "max_new_tokens": lengths,
        "repetition_penalty": repetition_penalty,
        "generation": {"temperature": 0.0},
        "temperature": 0.0,
    }

    @cache
    def load() -> Source:
        if isinstance(model, str) and is_api(model):
            return api_answerer(model)
        return load_source(model, device, dtype, device_map, workers)

    if shard is not None:
        truth = load_truth(benchmark, data, out / "data", limit=limit)
        check_questions(benchmark, truth)
        source = load()
        if not isinstance(source, LocalModel):
            raise InputError(
                f"model {model}: a model behind an API is asked by one process; leave out the shard"
            )
        questions = benchmark.ask_questions(truth)
        folder = answer_shard(shard, questions, source, out, about, settings, recording, resume)
        if folder != out:
            return Evaluation(benchmark.name, {}, [], folder, {}, _count_failures(folder), benchmark.headline)
        resume = True  # what is left: to score

    with lock_folder(out, "answering into it"):
        answers_ledger(out).check(resume, overwrite)
        if overwrite:
            answers_ledger(out).clear()
        benchmark, about["judging"] = with_judge(benchmark, judge, out / "judge.sqlite", retry_unscored)
        answered = any((folder / RESPONSES).exists() for folder in (out, out / "plain"))
        truth = load_truth(benchmark, data, out / "data", n, seed, limit, kept=answered or shard is not None)
        check_questions(benchmark, truth)
        source = load()
        about["layout"] = layout_of(out / "data")
        if isinstance(source, LocalModel):
            about["generation"] = settings_in_force(source.model, repetition_penalty=repetition_penalty)
        usual: dict[str, Metric] = {}
        if perturbation is not None:
            note = about | {"perturbation": None}
            usual, _ = run_benchmark(benchmark, truth, source, out / "plain", note, settings, resume=resume)
        metrics, records = run_benchmark(benchmark, truth, source, out, about, settings, recording, resume)
        if trace_with is not None and read_answers(
            out
        ):  # else all questions failed, and there is nothing to read
            reader = load_source(trace_with, device, dtype, device_map, workers)
            reads = Settings(batch_size=batch_size, shared_prefix=shared_prefix)
            trace_answers(reader, out, reads, Recording(capture))
        if usual:
            metrics |= paired_changes(metrics, usual)
            write_results(out, benchmark.name, metrics, records, about)
        evaluation = Evaluation(
            benchmark.name,
            metrics,
            records,
            out,
            about["judging"],
            _count_failures(out),
            benchmark.headline,
            about["layout"],
        )
        return _add_internals(benchmark, truth, evaluation, about) if trace or trace_with else evaluation


def _check_call(
    model: str | Model,
    method: str,
    parameters: Mapping[str, Any],
    trace: bool,
    repetition_penalty: float | None,
) -> None:
    """Check the names of the model and the method, and what goes with them, before anything slow is done."""
    if isinstance(model, str) and is_api(model):
        if trace or method != "plain":
            raise InputError(
                f"model {model}: a model behind an API cannot be traced or changed; trace_with names a local model that reads "
                "its answers"
            )
        if repetition_penalty is not None:
            raise InputError(
                f"model {model}: a model behind an API has no repetition penalty that can be set"
            )
        return
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.checkpoints import locate

    load_methods(method, **parameters)
    if isinstance(model, str):
        locate(model)


def _check_reader(model: str | Model, trace: bool, shard: str | None) -> None:
    """Check the model that reads answers, and what goes with it."""
    from mmprobe.models.checkpoints import locate

    if trace or shard is not None:
        raise InputError("trace_with: goes neither with trace nor with shard; leave them out")
    if isinstance(model, str):
        if is_api(model):
            raise InputError(f"trace_with {model}: is served through an API; name a local model")
        locate(model)


def _count_failures(out: Path) -> dict[Path, int]:
    """Return the number of questions that failed, by the folder that lists them."""
    from mmprobe.traces.asking import read_failures

    failures = {folder: len(read_failures(folder)) for folder in (out, out / "plain", out / "run")}
    return {folder: count for folder, count in failures.items() if count}


def _add_internals(
    benchmark: Benchmark[Truth], truth: Truth, evaluation: Evaluation, about: Mapping[str, Any]
) -> Evaluation:
    """Label the runs of traced answers, and add the metrics of their internals."""
    from mmprobe.benchmarks.core.runner import RUN_NAMES, write_labels
    from mmprobe.cache import open_run

    folder, metrics, records = evaluation.folder, evaluation.metrics, evaluation.records
    for run in (folder / name for name in RUN_NAMES):
        if (run / "run.json").exists():
            write_labels(run, benchmark.faithful_answers(truth, records), records)
    if benchmark.score_traces is not None and (folder / "run" / "run.json").exists():
        internals, records = benchmark.score_traces(truth, records, open_run(folder / "run"))
        metrics = metrics | group_by_images(internals, benchmark.ask_questions(truth))
        write_results(folder, benchmark.name, metrics, records, about)
    return evaluation._replace(metrics=metrics, records=records)


def score(
    name: str,
    data: str | Path,
    responses: str | Path | Mapping[str, str],
    out: str | Path,
    *,
    judge: str = LEXICAL,
    retry_unscored: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Evaluation:
    """Score answers that any system gave, and write the result folder.

    Args:
        name: the benchmark.
        data: published files, or samples.jsonl of `make-pairs`.
        responses: lines of `{"id": …, "response": …}`, the benchmark's own form, or answers by id.
        out: the result folder.
        judge, retry_unscored, options: as in `evaluate`. Only a judge that is a model is asked anything.

    Raises:
        InputError: as `evaluate`, or the responses do not fit the data.

    Example:
        >>> score("pope", "coco_pope_random.json", "answers.jsonl", "results/pope").metrics["f1"]    # doctest: +SKIP
    """
    out = Path(out)
    benchmark = with_options(BENCHMARKS[name], options)
    with lock_folder(out, "scoring into it"):
        truth = load_truth(benchmark, data, out / "data", kept=(out / "results.json").exists())
        answers = (
            responses if isinstance(responses, Mapping) else _read_answers(benchmark, Path(responses), truth)
        )
        benchmark, judging = with_judge(benchmark, judge, out / "judge.sqlite", retry_unscored)
        metrics, records = benchmark.score_answers(truth, answers)
        questions = [*benchmark.ask_questions(truth), *benchmark.follow_up(truth, answers)]
        add_truth(records, questions, out)
        metrics = group_by_images(metrics | truncated_share(answers), questions)
        source = None if isinstance(responses, Mapping) else str(responses)
        about = {
            "data": str(data),
            "layout": layout_of(out / "data"),
            "responses": source,
            "judge": judge,
            "judging": judging,
            "options": dict(options),
            "wording": wording_of(benchmark),
            "headline": list(benchmark.headline),
        }
        write_results(out, benchmark.name, metrics, records, about)
    return Evaluation(
        benchmark.name, metrics, records, out, judging, {}, benchmark.headline, layout_of(out / "data")
    )


def _read_answers(benchmark: Benchmark[Truth], file: Path, truth: Truth) -> dict[str, str]:
    answers = benchmark.read_answers(file, truth) if benchmark.read_answers else None
    return read_responses(file) if answers is None else answers
