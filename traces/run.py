"""The run loop: trace every sample into a run's folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.cache.hdf5 import compression_filters
from mmprobe.cache.run import hash_config
from mmprobe.errors import InputError, option, unknown_name
from mmprobe.interventions.base import Method
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.ledger import lock_folder
from mmprobe.models import Model, load_model
from mmprobe.models.generation import (
    build_generation_kwargs,
    check_generation_arguments,
    use_repetition_penalty,
)
from mmprobe.models.shared_prefix import PrefixStore, repeated_keys, sort_by_images
from mmprobe.samples import Lengths, Sample, load_samples, longest
from mmprobe.traces.batch import BatchTracer, form_batches
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.engines import load_engine, resolve_capture, why_decoded, why_whole_prompts
from mmprobe.traces.given_answers import Answers, GivenAnswer, digest, read_given_answers
from mmprobe.traces.plan import max_trace_bytes
from mmprobe.traces.run_folder import (
    check_space,
    open_folder,
    remove_partial_files,
    remove_trace,
    run_config,
    sort_failures,
)
from mmprobe.traces.scale.crew import Workers, finish_batch_on_interrupt, stop_run
from mmprobe.traces.scale.packing import Packer
from mmprobe.traces.scale.shards import (
    FINISHED,
    Part,
    choose_part,
    finish_run,
    open_whole,
    warn_of_begun_shards,
)
from mmprobe.traces.writer_thread import WriterThread


def trace(
    model: Model | str,
    samples: Sequence[Sample] | str | Path,
    out: str | Path,
    *,
    capture: str | Path | CaptureSpec = "default",
    max_new_tokens: Lengths = 256,
    engine: str = "native",
    batch_size: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    remote: bool | str = False,
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    repetition_penalty: float | None = None,
    shard: str | None = None,
    workers: Workers | None = None,
    shared_prefix: bool = True,
    pack_every: int | None = None,
    answers: Answers | None = None,
    **parameters: Any,
) -> Run:
    """Let the model answer every sample, and record its internals.

    The answers are the same, token by token, as those of `model.hf.generate`. A sample that fails is listed
    in `failures.jsonl`, and the run continues. An interrupted run keeps its finished samples. A run that may be
    larger than the free disk space starts with a warning.

    Args:
        model: the model, or its name as `load_model` takes it.
        samples: samples with unique ids, or the path of a samples file.
        out: the run's folder.
        capture: `default`, `full`, a YAML file, or a `CaptureSpec`.
        max_new_tokens: the maximum length of an answer; or the lengths by the `type` in a sample's metadata, such
            as `{"steps": 512, "other": 128}`.
        engine: `native`, `nnsight` or `transformer_lens`.
        batch_size: number of samples answered together, padded on the left; halved when memory runs out.
        temperature: 0 for greedy answers; above 0, each token is drawn from the 50 most likely ones.
        seed: seed of the sampling, set again for each batch.
        resume: keep the finished samples of an earlier, equal call, and trace the others. Traces that are damaged
            or of another sample are made again, with a warning.
        overwrite: delete an earlier run in `out` first.
        remote: with the engine nnsight, True runs the model on NDIF's cluster, and a text on the host of that
            address. The model may then have no weights (`mmprobe.models.load_shapes`).
        method: a decoding-time method, or several; as in `mmprobe.generate`. The trace shows the model with
            the method at work. Methods need the native engine.
        repetition_penalty: above 1, tokens of the prompt and the answer become less likely. None for the
            checkpoint's own.
        shard: `i/n` traces the i-th of n parts of the samples. Processes make the shards of one `out` without
            each other. The last one that finishes merges them into the whole run, which contains what a single
            process would have written; `merge_run` does so, too. Batches are formed before the parts, and
            samples with the same images stay together unless a batch mixes them with others.
        workers: `mmprobe.traces.Processes(n)` traces with n processes, one a GPU, or one a group of CPU cores.
            They load the model themselves, so `model` has no weights then (`mmprobe.models.load_shapes`). A
            process that dies is replaced. Its unfinished samples are retried, at most three times.
        shared_prefix: whether samples with the same images and system prompt share one vision pass and one prefill
            of their common beginning. Numbers then differ from those of separate passes by rounding alone. Other
            engines, data sets of `prompt/` and `vision/`, and some families and methods need whole prompts.
        pack_every: join so many finished traces at a time in files of `packs/`, so that a long run needs few files.
            None leaves each trace in its own file. Either way, a killed run loses nothing that was finished.
        answers: trace these answers in place of generating any: a file of lines of `{"id", "response"}` or `{"id",
            "token_ids"}`, the folder of a benchmark's results, a run or its folder, or texts or token ids by id. A sample
            without an answer, or with one that the model could not have given, is a failure. `max_new_tokens`,
            `temperature` and `seed` are not used.
        parameters: the method's parameters, such as `eta=0`, in place of its defaults.

    Returns:
        The run, as `open_run(out)` opens it; the shard's run, if others are still to come.

    Raises:
        InputError: an argument, method or parameter is unknown or out of range; the method cannot be traced;
            `out` already contains a run, or one that cannot be resumed; another process is tracing into `out`; or
            the model or the engine cannot provide the capture.
        OSError: the disk is full or cannot be written any more; finished samples are kept.

    Example:
        >>> import mmprobe as mp                                                       # doctest: +SKIP
        >>> model = mp.load_model("tiny-spd")                                          # doctest: +SKIP
        >>> run = mp.trace(model, "pairs/samples.jsonl", "runs/demo")                  # doctest: +SKIP
        >>> run = mp.trace(model, samples, "runs/sage", method="sage", eta=0)          # doctest: +SKIP
    """
    samples = check_samples(samples)
    model = load_model(model) if isinstance(model, str) else model
    given = None if answers is None else read_given_answers(answers, samples)
    asked = Settings(
        capture,
        max_new_tokens,
        engine,
        batch_size,
        temperature,
        seed,
        remote,
        method,
        parameters,
        repetition_penalty,
        shared_prefix,
        given,
    )
    if workers is not None:
        from mmprobe.traces.scale.trace_workers import ModelChoice, trace_with_workers

        choice = ModelChoice.of_shapes(model)
        folder = (resume, overwrite, pack_every)
        return trace_with_workers(choice, samples, Path(out), workers, shard, *folder, asked)
    settings = prepare_run(model, asked)
    part = choose_part(Path(out), shard, settings.form_batches(samples))
    packer = Packer(part.folder, pack_every)
    with open_part(part, settings, resume, overwrite) as finished:
        repeated = repeated_keys(samples)
        with open_tracer(model, settings, part.folder, repeated) as tracer:
            _trace_batches(tracer, part.batches, finished, packer)
        packer.finish()
        sort_failures(part.folder, part.samples)
        run = finish_run(part)
    return open_whole(part, run)


def check_samples(samples: Sequence[Sample] | str | Path) -> Sequence[Sample]:
    """Return samples, read from their file if need be.

    Raises:
        InputError: two have the same id, or the file cannot be read.
    """
    if isinstance(samples, str | Path):
        samples = load_samples(samples)
    ids = [sample.id for sample in samples]
    if len(set(ids)) != len(ids):
        raise InputError("samples: two have the same id; give each its own")
    return samples


class RunSettings(NamedTuple):
    """How samples are traced.

    Attributes:
        config: the content of `run.json`, but for the order.
        trace_bytes: the maximum size of one trace.
        separates_counts: whether samples with different numbers of images need separate batches.
        spec: the part of the capture that can be recorded.
        record: the engine's `record`.
        options: arguments of transformers' `generate`.
        shares_prefixes: whether samples with the same images share what is read of their common beginning.
        answers: answers that are given, by id; None to generate them.
    """

    config: dict[str, Any]
    trace_bytes: int
    separates_counts: bool
    spec: CaptureSpec
    methods: Sequence[Method]
    record: Callable[..., Any]
    options: dict[str, Any]
    shares_prefixes: bool
    answers: Mapping[str, GivenAnswer] | None

    def form_batches(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Return the batches of samples; `mmprobe.traces.batch.form_batches` says which samples share one."""
        return form_batches(samples, self.config["batch_size"], self.separates_counts, self.lengths)

    @property
    def lengths(self) -> Lengths:
        """The longest answers, as `trace` was given them."""
        lengths: Lengths = self.config["generate"]["max_new_tokens"]
        return lengths

    @property
    def repetition_penalty(self) -> float | None:
        """The repetition penalty in place of the checkpoint's, or None."""
        return self.config["generate"].get("repetition_penalty")


@dataclass(frozen=True)
class Settings:
    """What a caller of `trace` asks for; its fields are those keywords."""

    capture: str | Path | CaptureSpec
    max_new_tokens: Lengths
    engine: str
    batch_size: int
    temperature: float
    seed: int
    remote: bool | str
    method: str | Path | Method | Sequence[str | Path | Method]
    parameters: Mapping[str, Any]
    repetition_penalty: float | None
    shared_prefix: bool
    answers: Mapping[str, GivenAnswer] | None

    @property
    def generation(self) -> dict[str, Any]:
        """What `run.json` says about how the answers came about."""
        made: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        if self.repetition_penalty is not None:
            made["repetition_penalty"] = self.repetition_penalty
        if self.answers is not None:
            made["answers"] = {"n": len(self.answers), "sha256": digest(self.answers)}
        return made


def prepare_run(model: Model, asked: Settings) -> RunSettings:
    """Check what a caller asks for, and return what follows from it for a model."""
    shortest = _shortest(asked.max_new_tokens)
    check_generation_arguments(shortest, asked.temperature, asked.seed, asked.repetition_penalty)
    if asked.batch_size < 1:
        raise InputError(f"batch_size {asked.batch_size}: must be 1 or more")
    if asked.answers is not None and asked.engine != "native":
        raise InputError(f"engine {asked.engine}: generates its answers; use native to trace given ones")
    spec = resolve_capture(load_capture(asked.capture), model, asked.engine, asked.batch_size, asked.remote)
    compression_filters(spec.compression)  # a missing plugin is reported before the model runs
    methods = _load_methods(asked.method, asked.parameters, asked.engine)
    record = load_engine(asked.engine).record
    if asked.engine == "native":
        record = partial(record, decoded=why_decoded(model, spec, methods) is not None)
    length = longest(asked.max_new_tokens)
    if asked.answers is not None:
        length = max(answer.longest for answer in asked.answers.values())
    return RunSettings(
        run_config(model, spec, asked.engine, asked.batch_size, asked.generation, methods),
        max_trace_bytes(model, spec, length),
        model.has_cross_attention,
        spec,
        methods,
        partial(record, remote=asked.remote) if asked.remote else record,
        build_generation_kwargs(model, longest(asked.max_new_tokens), asked.temperature),
        asked.shared_prefix and why_whole_prompts(model, spec, asked.engine, methods) is None,
        asked.answers,
    )


def _shortest(lengths: Lengths) -> int:
    if isinstance(lengths, int):
        return lengths
    if "other" not in lengths:
        raise InputError(f"max_new_tokens {dict(lengths)}: lacks 'other', the length of the other types")
    return min(lengths.values())


@contextmanager
def open_tracer(
    model: Model, settings: RunSettings, folder: Path, repeated: frozenset[tuple[Any, ...]]
) -> Iterator[BatchTracer]:
    """Yield a tracer that writes into a folder. At the end of the block all its traces are written.

    Args:
        repeated: keys of the samples that share prefixes, if the settings let them.
    """
    config = settings.config
    shares = settings.shares_prefixes and repeated
    keeps_states = settings.spec.wants("tam/") or any(each.needs_final_states for each in settings.methods)
    prefixes = PrefixStore(model, repeated, keeps_states) if shares else None
    with WriterThread() as thread, use_repetition_penalty(model, settings.repetition_penalty):
        yield BatchTracer(
            model,
            settings.spec,
            folder,
            settings.record,
            settings.options,
            settings.methods,
            config["generate"]["seed"],
            thread,
            config["batch_size"],
            hash_config(config),
            settings.lengths,
            prefixes,
            settings.answers,
        )


@contextmanager
def open_part(part: Part, settings: RunSettings, resume: bool, overwrite: bool) -> Iterator[set[str]]:
    """Lock and open a part's folder, and yield the ids of its finished samples."""
    with lock_folder(part.folder, "tracing into it"):
        samples = part.samples
        config = settings.config | {"order": [sample.id for sample in samples]}
        warn_of_begun_shards(part, config)
        finished = open_folder(part.folder, config, samples, resume, overwrite)
        (part.folder / FINISHED).unlink(missing_ok=True)  # of a shard that is traced again
        check_space(part.folder, (len(samples) - len(finished)) * settings.trace_bytes)
        with _clean_up(part.folder):
            yield finished


@contextmanager
def _clean_up(out: Path) -> Iterator[None]:
    """Remove the files of unfinished traces at the end. Add to a disk error how to continue."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; finished samples are kept, continue with {option('resume')}"
        raise OSError(error.errno, reason, error.filename or str(out)) from None
    finally:
        remove_partial_files(out)


def _trace_batches(
    tracer: BatchTracer, batches: Sequence[list[Sample]], finished: set[str], packer: Packer
) -> None:
    """Trace every batch with an unfinished sample. After an interrupt, finish the current batch and stop."""
    total = sum(map(len, batches))
    progress = tqdm(desc="trace", unit="sample", initial=len(finished), total=total, disable=None)
    with progress, finish_batch_on_interrupt() as interrupted:
        for batch in sort_by_images(batches) if tracer.prefixes else batches:
            unfinished = [sample for sample in batch if sample.id not in finished]
            if unfinished:
                for sample in unfinished:  # a spoiled trace must not stay where the sample fails now
                    remove_trace(tracer.out, sample.id)
                tracer.trace(batch)  # the whole batch: its padding changes the last digits
                packer.count(len(unfinished))
                progress.update(len(unfinished))
                finished = finished.union(sample.id for sample in unfinished)
            if interrupted():
                raise stop_run(len(finished), total)


def _load_methods(method: Any, parameters: Mapping[str, Any], engine: str) -> list[Method]:
    """Return the methods that change the answer.

    Raises:
        InputError: a method, an argument of `trace` or a parameter is unknown, or a method cannot be traced.
    """
    _check_names(load_methods(method), parameters)
    methods = [
        loaded
        for loaded in load_methods(method, **parameters)
        if loaded.name != "plain" and not loaded.neutral
    ]
    for loaded in methods:
        if isinstance(loaded, PromptMethod):
            raise InputError(
                f"method {loaded.name}: generates several answers, so no single one can be traced"
            )
    if methods and engine != "native":
        raise InputError(f"method {methods[0].name}: needs the native engine, not {engine}")
    return methods


def _check_names(methods: Sequence[Method], names: Iterable[str]) -> None:
    """Raise InputError if a keyword is neither an argument of `trace` nor a parameter of the methods."""
    known = [parameter.name for method in methods for parameter in fields(method)]
    for name in names:
        if name not in known:
            keywords = inspect.signature(trace).parameters.values()
            known += [keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
            method = "+".join(method.name for method in methods)
            raise unknown_name(f"trace with method {method}: argument or parameter", name, known)
