"""Evaluate a model on a benchmark, score answers, and compare methods: one call each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Benchmark, Truth, find_benchmark, read_responses, with_options
from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.core.results import Metric, write_results
from mmprobe.benchmarks.judges.registry import LEXICAL, with_judge
from mmprobe.benchmarks.layouts import unpack
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError
from mmprobe.lock import lock_folder

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.models import Model


class Evaluation(NamedTuple):
    """The scores of a benchmark's answers.

    Attributes:
        benchmark: its name.
        metrics: metrics by name, as in `folder/results.json`.
        records: one record a sample, as in `folder/samples.jsonl`.
        folder: the result folder.
        judging: counts of a judge's work: `judged`, `calls`, `cut` and `unscored`. Empty without a judge.
        failures: number of questions that failed while they were traced, by the run's folder.

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
    capture: str = "default",
    method: str = "plain",
    perturbation: str | None = None,
    batch_size: int = 1,
    max_new_tokens: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    resume: bool = False,
    retry_unscored: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
    **parameters: Any,
) -> Evaluation:
    """Ask a model the questions of a benchmark, score its answers and write the result folder.

    With `trace`, `out` also gets a run whose answers are labelled faithful or not.

    Args:
        name: `spd-faith`, `pope`, `chair`, `mme`, `mirage`, `magic`, `mirage-effect` or `mmreason`.
        model: a model from `load_model`, an alias, local folder or hub id, or `PROVIDER/MODEL` of inspect-ai.
        out: the result folder: results.json, samples.jsonl and responses.jsonl.
        data: published files, or samples.jsonl of `make-pairs`. None draws a small set into `out/data`.
        limit: only the first so many pairs, images or questions of the data (`Benchmark.unit`).
        n, seed: number of pairs and seed of a drawn set.
        judge: `lexical` for rules, `model:PROVIDER/MODEL`, or `ensemble:A,B,C`.
        trace: trace the answers into `out/run`.
        capture: with `trace`: `default`, `full` or a YAML file.
        method: a method of `mmprobe.interventions`, or a YAML file.
        perturbation: a kind of `mmprobe.benchmarks.core.perturbations` that disturbs each question.
        batch_size: questions answered together.
        max_new_tokens: longest answer. None takes the benchmark's own length.
        device, dtype: as for `load_model`, where `model` is a name.
        resume: go on with an earlier call in `out`.
        retry_unscored: ask the judge again about items that an earlier call left unscored.
        options: options of the benchmark itself, such as `{"threshold": 0.1}` of mirage.
        parameters: parameters of the method in place of its defaults.

    Raises:
        InputError: an unknown benchmark, model, method or judge, data that cannot be read, or `out` holds
            answers.

    Example:
        >>> evaluation = evaluate("spd-faith", "tiny-spd", "results/spd", trace=True)        # doctest: +SKIP
        >>> print(evaluation.metrics["drf"])                                                 # doctest: +SKIP
        0.935 [0.880, 0.979]
    """
    from mmprobe.benchmarks.core.api_models import api_answerer, is_api
    from mmprobe.benchmarks.core.perturbations import check_kind, perturb_answerer

    out = Path(out)
    benchmark = with_options(find_benchmark(name), options)
    behind_api = isinstance(model, str) and is_api(model)
    if behind_api and (trace or method != "plain"):
        raise InputError(f"model {model}: a model behind an API cannot be traced or changed")
    if not behind_api:
        _check_model_and_method(model, method, parameters)
    if perturbation is not None:
        check_kind(perturbation)

    # Names are checked first, since these import torch.
    from mmprobe.benchmarks.core.runner import (
        check_no_answers,
        check_questions,
        local_answerer,
        run_benchmark,
    )

    with lock_folder(out, "answering into it"):
        check_no_answers(out, resume)
        benchmark, judging = with_judge(benchmark, judge, out / "judge.sqlite", retry_unscored)
        truth = load_truth(benchmark, data, out / "data", n, seed, limit)
        check_questions(benchmark, truth)
        longest = max_new_tokens or benchmark.max_new_tokens
        if behind_api:
            answerer = api_answerer(model, longest)
        else:
            loaded = _load(model, device, dtype)
            run = out / "run" if trace else None
            answerer = local_answerer(loaded, longest, batch_size, run, capture, method, parameters)
        if perturbation is not None:
            answerer = perturb_answerer(answerer, perturbation, out / "perturbed")
        about = {
            "model": model if isinstance(model, str) else model.name,
            "method": method,
            "parameters": parameters,
            "perturbation": perturbation,
            "data": str(data) if data else f"drawn, {n} pairs, seed {seed}",
            "limit": limit,
            "judge": judge,
            "judging": judging,
            "options": dict(options),
            "max_new_tokens": longest,
            "temperature": 0.0,
        }
        metrics, records = run_benchmark(benchmark, truth, answerer, out, about, resume=resume, traced=trace)
        evaluation = Evaluation(benchmark.name, metrics, records, out, judging, {})
        return _add_internals(benchmark, truth, evaluation, about) if trace else evaluation


def _check_model_and_method(model: str | Model, method: str, parameters: Mapping[str, Any]) -> None:
    """Check both names before anything slow is done."""
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate

    load_methods(method, **parameters)
    if isinstance(model, str):
        locate(model)


def _load(model: str | Model, device: str, dtype: str) -> Model:
    from mmprobe.models import load_model

    return load_model(model, device=device, dtype=dtype) if isinstance(model, str) else model


def _add_internals(
    benchmark: Benchmark[Truth], truth: Truth, evaluation: Evaluation, about: Mapping[str, Any]
) -> Evaluation:
    """Label the runs of traced answers, and add the metrics of their internals."""
    from mmprobe.benchmarks.core.runner import write_labels
    from mmprobe.cache import open_run

    folder, metrics, records = evaluation.folder, evaluation.metrics, evaluation.records
    failures = {}
    for run in (folder / "run", folder / "run-follow-up"):
        if (run / "run.json").exists():
            write_labels(run, benchmark.faithful_answers(truth, records))
            if n_failures := len(open_run(run).failures):
                failures[run] = n_failures
    if benchmark.score_traces is not None and (folder / "run" / "run.json").exists():
        internals, records = benchmark.score_traces(truth, records, open_run(folder / "run"))
        metrics = metrics | internals
        write_results(folder, benchmark.name, metrics, records, about)
    return evaluation._replace(metrics=metrics, records=records, failures=failures)


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
    benchmark = with_options(find_benchmark(name), options)
    with lock_folder(out, "scoring into it"):
        truth = load_truth(benchmark, data, out / "data")
        answers = (
            responses if isinstance(responses, Mapping) else _read_answers(benchmark, Path(responses), truth)
        )
        benchmark, judging = with_judge(benchmark, judge, out / "judge.sqlite", retry_unscored)
        metrics, records = benchmark.score_answers(truth, answers)
        source = None if isinstance(responses, Mapping) else str(responses)
        about = {"data": str(data), "responses": source, "judge": judge, "judging": judging}
        write_results(out, benchmark.name, metrics, records, about | {"options": dict(options)})
    return Evaluation(benchmark.name, metrics, records, out, judging, {})


def _read_answers(benchmark: Benchmark[Truth], file: Path, truth: Truth) -> dict[str, str]:
    answers = benchmark.read_answers(file, truth) if benchmark.read_answers else None
    return read_responses(file) if answers is None else answers


def compare(
    model: str | Model,
    out: str | Path,
    *,
    methods: Sequence[str] = ("plain",),
    benchmarks: Sequence[str] = ("spd-faith", "pope", "chair", "mme"),
    data: str | Path | None = None,
    limit: int | None = None,
    n: int = PAIRS,
    seed: int = SEED,
    ablate: str | None = None,
    sweep: str | None = None,
    perturbations: Sequence[str] = (),
    batch_size: int = 1,
    device: str = "auto",
    dtype: str = "auto",
    progress: Callable[[str], None] = print,
) -> xr.Dataset:
    """Compare methods with plain answers on benchmarks. Finished parts of an earlier call in `out` are kept.

    Args:
        model: a model from `load_model`, or its alias, local folder or hub id.
        out: gets a result folder for each method and benchmark.
        methods: names or YAML files. `plain` is added.
        benchmarks: names of benchmarks.
        data: samples.jsonl of `make-pairs`, or the files of the only benchmark. None draws a small set.
        limit, n, seed, batch_size, device, dtype: as in `evaluate`.
        ablate: `sage` adds its stages one after the other.
        sweep: `METHOD.PARAMETER=VALUE,VALUE` adds one contender a value.
        perturbations: kinds of `mmprobe.benchmarks.core.perturbations`. Each adds plain answers to disturbed
            questions.
        progress: is called with a line on what comes next.

    Returns:
        The data set of `mmprobe.benchmarks.core.compare.compare_contenders`.

    Raises:
        InputError: as `evaluate`.

    Example:
        >>> ds = compare("tiny-spd", "results/compare", methods=["sage", "vcd"])        # doctest: +SKIP
        >>> mp.viz.plot(ds).show()                                                      # doctest: +SKIP
    """
    from mmprobe.benchmarks.core.compare import compare_contenders, make_contenders
    from mmprobe.benchmarks.core.runner import check_questions
    from mmprobe.models.aliases import locate

    out = Path(out)
    records = [find_benchmark(name) for name in benchmarks]
    if isinstance(model, str):
        locate(model)
    contenders = make_contenders(methods, ablate, sweep, perturbations)
    with lock_folder(out, "comparing into it"):
        truths = [
            (benchmark, load_truth(benchmark, data, out / "data" / benchmark.name, n, seed, limit))
            for benchmark in records
        ]
        for benchmark, truth in truths:
            check_questions(benchmark, truth)
        loaded = _load(model, device, dtype)
        return compare_contenders(loaded, contenders, truths, out, batch_size, progress)


def load_truth(
    benchmark: Benchmark[Truth],
    data: str | Path | None,
    folder: Path,
    n: int = PAIRS,
    seed: int = SEED,
    limit: int | None = None,
) -> Truth:
    """Read the data, or draw a set unless an earlier call drew it.

    Args:
        benchmark: whose data it is.
        data: file or folder, or None.
        folder: folder of the drawn set, and of what is unpacked from published files.
        n, seed: number of pairs and seed of the drawn set.
        limit: only the first so many pairs, images or questions (`Benchmark.unit`).

    Raises:
        InputError: the data cannot be read, or an earlier call drew another set.

    Example:
        >>> truth = load_truth(find_benchmark("pope"), None, Path("pope"), n=3)         # doctest: +SKIP
    """
    if data is None:
        truth = _draw_once(benchmark, folder, n, seed)
    else:
        truth = benchmark.read_data(unpack(benchmark.name, Path(data), folder, limit))
    return truth if limit is None else benchmark.take(truth, limit)


def _draw_once(benchmark: Benchmark[Truth], folder: Path, n: int, seed: int) -> Truth:
    samples, note = folder / "samples.jsonl", folder / "drawn.json"
    if not samples.exists():
        try:
            return benchmark.draw_data(folder, n, seed)
        finally:
            # also if the benchmark can ask nothing about the set, such as pope about few pairs
            if samples.exists():
                write_atomic(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if earlier not in ({}, {"n": n, "seed": seed}):
        raise InputError(
            f"{folder}: was drawn with n {earlier['n']} and seed {earlier['seed']}; give the same, or choose another "
            "folder"
        )
    return benchmark.read_data(samples)
