"""Evaluate a model on a benchmark, and score answers: one call each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from mmprobe.benchmarks.core.api_models import is_api
from mmprobe.benchmarks.core.benchmark import (
    Benchmark,
    answer_lengths,
    load_truth,
    make_benchmark,
    read_responses,
    truncated_share,
    wording_of,
)
from mmprobe.benchmarks.core.likelihood import HEADLINE, check_closed, check_reading
from mmprobe.benchmarks.core.perturbations import check_perturbation, paired_changes
from mmprobe.benchmarks.core.results import Metric, add_truth, group_by_images, write_results
from mmprobe.benchmarks.core.stability import check_samples, run_several
from mmprobe.benchmarks.judges.judge import LEXICAL, open_judging
from mmprobe.benchmarks.layouts import layout_of
from mmprobe.benchmarks.synthetic import SEED
from mmprobe.errors import InputError, name_option
from mmprobe.ledger import lock_folder
from mmprobe.samples import Lengths, image_sets, length_of, open_image, with_template
from mmprobe.settings import (
    AskSettings,
    DataArgs,
    DataSettings,
    EvaluateArgs,
    FolderSettings,
    ModelSettings,
    sort_settings,
)

if TYPE_CHECKING:
    from mmprobe.models import Model
    from mmprobe.traces.asking import Source


class Evaluation(NamedTuple):
    """The scores of a benchmark's answers.

    Attributes:
        benchmark: its name.
        metrics: metrics by name, as in `folder/results.json`.
        records: one record a sample, as in `folder/samples.jsonl`.
        folder: the result folder.
        judging: counts of a judge's work: `judged`, `calls`, `cut` and `unscored`; and as `card`, what its card says
            (`judges.card_file`). Empty without a judge.
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
    judge: str = LEXICAL,
    read: str = "text",
    trace: bool = False,
    trace_with: str | Model | None = None,
    capture: str = "default",
    perturbation: str | None = None,
    retry_unscored: bool = True,
    samples: int = 1,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: Unpack[EvaluateArgs],
) -> Evaluation:
    """Ask a model the questions of a benchmark, score its answers and write the result folder.

    Args:
        name: one of `mp.benchmarks.BENCHMARKS`.
        model: a model from `load_model`, an alias, local folder or hub id, or `PROVIDER/MODEL` of inspect-ai.
        out: the result folder: results.json, samples.jsonl and responses.jsonl.
        judge: `lexical` for rules, `model:PROVIDER/MODEL`, or `ensemble:A,B,C`.
        read: `text`; or `likelihood` to read closed questions (yes or no, options, `metadata.candidates`) by the probability of
            each answer, too (`mmprobe.benchmarks.core.likelihood`). It needs a model that is loaded here.
        trace: trace the answers into `out/run`, and label them faithful or not.
        trace_with: a model from `load_model` or its name, which then reads the answers into `out/run`, whoever gave them:
            `mp.trace(trace_with, …, answers=out)`. The answers are labelled as with `trace`.
        capture: with `trace` or `trace_with`: `default`, `full` or a YAML file.
        perturbation: a kind of `mmprobe.benchmarks.core.perturbations` that disturbs each question. Each is
            also asked as it is, into `out/plain`, and `NAME_change` is the paired change of each metric.
        retry_unscored: send the judge again the items that an earlier call left unscored.
        samples: number of answers to each question, at a temperature, each into a folder `sample-1`, … of `out`: the metrics
            are those of `mmprobe.benchmarks.core.stability`, beside those of the first answers.
        options: options of the benchmark itself, such as `{"threshold": 0.1}` of mirage.
        settings: fields of `ModelSettings`, as for `load_model`, where `model` is a name; fields of `AskSettings` and
            `FolderSettings`, as for `mmprobe.trace`; fields of `DataSettings`; and parameters of the method in place of its
            defaults.

            - `data`: published files, or samples.jsonl of `make-pairs`. None draws `n` pairs into `out/data`.
            - `limit`: only the first so many pairs, images or questions of the data (`Benchmark.unit`); with `shuffle` and
              `stratify` drawn at random with this seed, each value of a field of the metadata in its share.
            - `max_new_tokens`: None takes the benchmark's own length, which may depend on the question.
            - `seed`: of a drawn set (1000001), and of sampled answers (0).
            - `shard`: the last one that finishes puts the answers together and scores them. Before it, the evaluation has
              no metrics, and its folder is the shard's.

    Raises:
        InputError: an unknown benchmark, model, method or judge, data that cannot be read, or `out` contains
            answers; or the shard cannot be made in `out`.

    Example:
        >>> evaluation = evaluate("spd-faith", "tiny-spd", "results/spd", trace=True)        # doctest: +SKIP
        >>> print(evaluation.metrics["drf"])                                                 # doctest: +SKIP
        0.935 [0.880, 0.979]
    """
    out = Path(out)
    loading, asking, data, folder = sort_settings(
        evaluate, {**settings, "out": out}, ModelSettings, AskSettings, DataSettings, FolderSettings
    )
    benchmark = make_benchmark(name, options)
    _check_call(model, {} if trace_with else loading.chosen, asking, trace)
    if check_reading(read) == "likelihood":
        check_likelihood(model, asking, folder)
    headline = (*benchmark.headline, *(HEADLINE if read == "likelihood" else ()))
    likelihood = read == "likelihood"
    check_samples(
        samples,
        asking,
        trace=trace,
        trace_with=trace_with,
        perturb=perturbation,
        read=likelihood,
        shard=folder.shard,
    )
    if trace_with is not None:
        _check_reader(trace_with, trace, folder)
    if perturbation is not None:
        check_perturbation(perturbation)
    if folder.part is not None and (data.data is None or perturbation is not None or folder.overwrite):
        raise InputError(
            f"{name_option('shard')}: needs {name_option('data')} (make-pairs draws pairs), and goes neither with a perturbation nor "
            f"with {name_option('overwrite')}"
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
    from mmprobe.models.loading import settings_in_force
    from mmprobe.traces.asking import RESPONSES, LocalModel
    from mmprobe.traces.run import Recording
    from mmprobe.traces.workers import open_workers

    asking = asking.replace(max_new_tokens=answer_lengths(benchmark, asking.max_new_tokens))
    seed, resume, workers = (
        SEED if asking.seed is None else asking.seed,
        folder.resume,
        open_workers(folder, loading.device),
    )
    recording = Recording(capture) if trace else None
    about: dict[str, Any] = {
        "model": model if isinstance(model, str) else model.name,
        "method": asking.method_name,
        "parameters": dict(asking.parameters),
        "perturbation": perturbation,
        "data": str(data.data or f"drawn, {data.pairs} pairs, seed {seed}"),
        "layout": None,
        "limit": data.limit,
        "judge": judge,
        "judging": {},
        **({} if read == "text" else {"read": read}),
        "options": dict(options),
        "wording": wording_of(benchmark),
        "headline": list(headline),
        **{name: value for name, value in asking.record().items() if name != "seed" or asking.temperature},
        "repetition_penalty": asking.repetition_penalty,
        "generation": {"temperature": asking.temperature},
    }
    if data.shuffle is not None:
        about |= {"shuffle": data.shuffle, "stratify": data.stratify}
    if shown := loading.model_dump(
        include={"min_pixels", "max_pixels", "image_size", "load_in"}, exclude_none=True
    ):
        about["loading"] = shown

    @cache
    def load() -> Source:
        if isinstance(model, str) and is_api(model):
            return api_answerer(model)
        return load_source(model, loading.chosen, workers)

    if folder.part is not None:
        truth = load_truth(benchmark, data, out / "data")
        check_questions(benchmark, truth)
        source = load()
        if not isinstance(source, LocalModel):
            raise InputError(
                f"model {model}: a model behind an API is asked by one process; leave out the shard"
            )
        questions = with_template(benchmark.ask(truth), asking.template)
        own = answer_shard(folder.part, questions, source, out, about, asking, recording, resume)
        if own != out:
            return Evaluation(benchmark.name, {}, [], own, {}, _count_failures(own), headline)
        resume = True  # what is left: to score

    with lock_folder(out, "answering into it"):
        answers_ledger(out).check(resume, folder.overwrite)
        if folder.overwrite:
            answers_ledger(out).clear()
        judging = open_judging(benchmark, judge, out / "judge.sqlite", retry_unscored)
        about["judging"] = judging.counts
        answered = any((each / RESPONSES).exists() for each in (out, out / "plain", out / "sample-1"))
        kept = answered or folder.part is not None
        truth = load_truth(benchmark, data, out / "data", seed, kept)
        check_questions(benchmark, truth)
        if read == "likelihood":
            check_closed(benchmark.ask(truth))
        source = load()
        about["layout"] = layout_of(out / "data")
        if isinstance(source, LocalModel):
            about["generation"] = settings_in_force(
                source.model, asking.temperature, asking.repetition_penalty
            )
            acting = [each.name for each in asking.methods if not each.neutral]
            from mmprobe.models.compiled import say_compiled

            about |= say_compiled(source.model, asking, acting)
        usual: dict[str, Metric] = {}
        if perturbation is not None:
            note = about | {"perturbation": None}
            usual, _ = run_benchmark(
                benchmark, truth, source, out / "plain", note, asking, resume=resume, judging=judging
            )
        if samples > 1:
            headline = ("pass@1", f"pass@{samples}", "flip_rate", *headline)
            about["headline"] = list(headline)
            metrics, records = run_several(
                benchmark, truth, source, out, about, asking, samples, resume, judging
            )
        else:
            metrics, records = run_benchmark(
                benchmark, truth, source, out, about, asking, recording, resume, judging=judging
            )
        if trace_with is not None and read_answers(
            out
        ):  # else all questions failed, and there is nothing to read
            reader = load_source(trace_with, loading.chosen, workers)
            reads = AskSettings(batch_size=asking.batch_size, shared_prefix=asking.shared_prefix)
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
            headline,
            about["layout"],
        )
        return _add_internals(benchmark, truth, evaluation, about) if trace or trace_with else evaluation


class Calls(NamedTuple):
    """What a benchmark asks, before it asks.

    Attributes:
        calls: questions that are asked; those that follow from answers, and a judge's, are not counted.
        images: that are sent, each time anew.
        input_tokens: of questions and images, estimated: 4 characters or 750 pixels a token. Providers count otherwise.
        output_tokens: at most, as long as every answer may be.
        sets: of images, over which intervals are made.

    Example:
        >>> Calls(10, 10, 1_000_000, 500_000, 5).cost(2.5, 10)
        7.5
    """

    calls: int
    images: int
    input_tokens: int
    output_tokens: int
    sets: int

    def cost(self, of_input: float, of_output: float) -> float:
        """Return what the calls cost at most, given the price of a million tokens of each kind."""
        return (self.input_tokens * of_input + self.output_tokens * of_output) / 1e6


def count_calls(
    name: str,
    *,
    max_new_tokens: Lengths | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    **data: Unpack[DataArgs],
) -> Calls:
    """Return what a benchmark would ask; nobody is asked, and nothing is kept.

    Args:
        name, max_new_tokens, options: as in `evaluate`.
        data: fields of `DataSettings`.

    Raises:
        InputError: an unknown benchmark, or data that cannot be read.

    Example:
        >>> count_calls("swap", n=2).calls                                                   # doctest: +SKIP
        42
    """
    benchmark = make_benchmark(name, options)
    lengths = answer_lengths(benchmark, max_new_tokens)
    chosen: dict[str, Any] = {**data}
    with TemporaryDirectory(prefix="mmprobe-") as folder:
        asked = benchmark.ask(load_truth(benchmark, DataSettings(**chosen), Path(folder) / "data"))
        pixels = sum(width * height for each in asked for width, height in map(_read_size, each.images))
        return Calls(
            len(asked),
            sum(len(each.images) for each in asked),
            sum(len(each.transcript) for each in asked) // 4 + pixels // 750,
            sum(length_of(each, lengths) for each in asked),
            len(set(image_sets(asked).tolist())),
        )


def _read_size(path: Path) -> tuple[int, int]:
    with open_image(path) as image:
        return image.size


def _check_call(model: str | Model, loading: Mapping[str, Any], asking: AskSettings, trace: bool) -> None:
    """Check the names of the model and the method, and what goes with them, before anything slow is done.

    Args:
        loading: settings that nothing but this model is loaded with.
    """
    if isinstance(model, str) and is_api(model):
        if trace or asking.method != "plain":
            raise InputError(
                f"model {model}: a model behind an API cannot be traced or changed; trace_with names a local model that reads "
                "its answers"
            )
        for setting in ("repetition_penalty", "revision", "load_in", "compile"):
            if {**loading, **asking.chosen}.get(setting) not in (None, False):
                raise InputError(
                    f"model {model}: a model behind an API does not take {name_option(setting)}; leave it out"
                )
        return
    from mmprobe.models.checkpoints import locate

    if not isinstance(model, str) and loading:
        name = name_option(next(iter(loading)))
        raise InputError(f"{name}: goes with the name of a model, and this one is loaded; leave it out")
    _ = asking.methods
    if isinstance(model, str):
        locate(model)


def check_likelihood(model: str | Model, asking: AskSettings, folder: FolderSettings, **others: Any) -> None:
    """Check that answers of a model can be read by likelihood: it is loaded here, and nothing changes it.

    Raises:
        InputError: naming what does not go with it.
    """
    if isinstance(model, str) and is_api(model):
        raise InputError(
            f"model {model}: is served through an API, and reading by likelihood needs its weights"
        )
    if asking.method != "plain":
        raise InputError(
            f"method {asking.method}: answers are read by likelihood of the model as it is; leave it out"
        )
    others |= {"shard": folder.shard, "workers": folder.workers, "ray": folder.ray}
    if given := [name for name, value in others.items() if value is not None]:
        raise InputError(f"{name_option(given[0])}: reading by likelihood takes one process; leave it out")


def _check_reader(model: str | Model, trace: bool, folder: FolderSettings) -> None:
    """Check the model that reads answers, and what goes with it."""
    from mmprobe.models.checkpoints import locate

    if trace or folder.part is not None:
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
    benchmark: Benchmark, truth: Any, evaluation: Evaluation, about: Mapping[str, Any]
) -> Evaluation:
    """Label the runs of traced answers, and add the metrics of their internals."""
    from mmprobe.benchmarks.core.runner import RUN_NAMES, write_labels
    from mmprobe.cache import open_run

    folder, metrics, records = evaluation.folder, evaluation.metrics, evaluation.records
    for run in (folder / name for name in RUN_NAMES):
        if (run / "run.json").exists():
            write_labels(run, benchmark.label(truth, records), records)
    is_traced = (folder / "run" / "run.json").exists()
    if is_traced and (scored := benchmark.score_traces(truth, records, open_run(folder / "run"))):
        internals, records = scored
        metrics = metrics | group_by_images(internals, benchmark.ask(truth))
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
    benchmark = make_benchmark(name, options)
    with lock_folder(out, "scoring into it"):
        truth = load_truth(
            benchmark, DataSettings(data=Path(data)), out / "data", kept=(out / "results.json").exists()
        )
        answers = (
            responses if isinstance(responses, Mapping) else _read_answers(benchmark, Path(responses), truth)
        )
        judging = open_judging(benchmark, judge, out / "judge.sqlite", retry_unscored)
        metrics, records = judging.score(benchmark, truth, answers)
        questions = [*benchmark.ask(truth), *benchmark.follow_up(truth, answers)]
        add_truth(records, questions, out)
        metrics = group_by_images(metrics | truncated_share(answers), questions)
        source = None if isinstance(responses, Mapping) else str(responses)
        about = {
            "data": str(data),
            "layout": layout_of(out / "data"),
            "responses": source,
            "judge": judge,
            "judging": judging.counts,
            "options": dict(options),
            "wording": wording_of(benchmark),
            "headline": list(benchmark.headline),
        }
        write_results(out, benchmark.name, metrics, records, about)
    return Evaluation(
        benchmark.name, metrics, records, out, judging.counts, {}, benchmark.headline, layout_of(out / "data")
    )


def _read_answers(benchmark: Benchmark, file: Path, truth: Any) -> dict[str, str]:
    answers = benchmark.read_answers(file, truth)
    return read_responses(file) if answers is None else answers
