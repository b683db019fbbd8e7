"""The run loop: trace every sample into a run's folder."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache import Run, open_run
from mmprobe.cache.hdf5 import compression_filters
from mmprobe.cache.run import hash_config
from mmprobe.errors import InputError
from mmprobe.interventions.base import Method
from mmprobe.interventions.parameters import unknown_name
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.lock import lock_folder
from mmprobe.models import Model
from mmprobe.models.generation import (
    build_generation_kwargs,
    check_generation_arguments,
    use_repetition_penalty,
)
from mmprobe.samples import Sample, load_samples
from mmprobe.traces.batch import BatchTracer
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.engines import load_engine, resolve_capture
from mmprobe.traces.interrupt import finish_batch_on_interrupt
from mmprobe.traces.plan import max_trace_bytes
from mmprobe.traces.run_folder import (
    check_space,
    open_folder,
    remove_partial_files,
    remove_trace,
    run_config,
)
from mmprobe.traces.writer_thread import WriterThread


def trace(
    model: Model,
    samples: Sequence[Sample] | str | Path,
    out: str | Path,
    *,
    capture: str | Path | CaptureSpec = "default",
    max_new_tokens: int = 256,
    engine: str = "native",
    batch_size: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    remote: bool | str = False,
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    repetition_penalty: float | None = None,
    **parameters: Any,
) -> Run:
    """Let the model answer every sample, and record its internals.

    The answers are the same, token by token, as those of `model.hf.generate`. A sample that fails is listed
    in `failures.jsonl`, and the run continues. An interrupted run keeps its finished samples. A run that may be
    larger than the free disk space starts with a warning.

    Args:
        model: the model, from `load_model`.
        samples: samples with unique ids, or the path of a samples file.
        out: the run's folder.
        capture: `default`, `full`, a YAML file, or a `CaptureSpec`.
        max_new_tokens: the maximum length of an answer.
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
        parameters: the method's parameters, such as `eta=0`, in place of its defaults.

    Returns:
        The run, as `open_run(out)` opens it.

    Raises:
        InputError: an argument, method or parameter is unknown or out of range; the method cannot be traced;
            `out` holds a run already, or one that cannot be resumed; another process is tracing into `out`; or
            the model or the engine cannot provide the capture.
        OSError: the disk is full or cannot be written any more; finished samples are kept.

    Example:
        >>> import mmprobe as mp                                                       # doctest: +SKIP
        >>> model = mp.load_model("tiny-spd")                                          # doctest: +SKIP
        >>> run = mp.trace(model, "pairs/samples.jsonl", "runs/demo")                  # doctest: +SKIP
        >>> run = mp.trace(model, samples, "runs/sage", method="sage", eta=0)          # doctest: +SKIP
    """
    out = Path(out)
    if isinstance(samples, str | Path):
        samples = load_samples(samples)
    ids = [sample.id for sample in samples]
    if len(set(ids)) != len(ids):
        raise InputError("samples: two have the same id; give each its own")
    check_generation_arguments(max_new_tokens, temperature, seed, repetition_penalty)
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}: must be 1 or more")
    spec = resolve_capture(load_capture(capture), model, engine, batch_size, remote)
    compression_filters(spec.compression)  # a missing plugin is reported before the model runs
    methods = _load_methods(method, parameters, engine)
    generation = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if repetition_penalty is not None:
        generation["repetition_penalty"] = repetition_penalty
    config = run_config(model, ids, spec, engine, batch_size, generation, methods)
    options = build_generation_kwargs(model, max_new_tokens, temperature)
    record = load_engine(engine).record
    if remote:
        record = partial(record, remote=remote)
    with lock_folder(out, "tracing into it"):
        finished = open_folder(out, config, samples, resume, overwrite)
        check_space(out, (len(ids) - len(finished)) * max_trace_bytes(model, spec, max_new_tokens))
        with _clean_up(out), WriterThread() as thread, use_repetition_penalty(model, repetition_penalty):
            tracer = BatchTracer(
                model, spec, out, record, options, methods, seed, thread, batch_size, hash_config(config)
            )
            _trace_batches(tracer, _batches(model, samples, batch_size), finished, len(samples))
        return open_run(out)


@contextmanager
def _clean_up(out: Path) -> Iterator[None]:
    """Remove the files of unfinished traces at the end. An error of the disk says how to go on."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; finished samples are kept, continue with resume=True"
        raise OSError(error.errno, reason, error.filename or str(out)) from None
    finally:
        remove_partial_files(out)


def _trace_batches(
    tracer: BatchTracer, batches: Iterable[Sequence[Sample]], finished: set[str], n_samples: int
) -> None:
    """Trace every batch with an unfinished sample. After an interrupt, stop behind the current batch."""
    progress = tqdm(desc="trace", unit="sample", initial=len(finished), total=n_samples, disable=None)
    n_finished = len(finished)
    with progress, finish_batch_on_interrupt() as interrupted:
        for batch in batches:
            unfinished = [sample for sample in batch if sample.id not in finished]
            if unfinished:
                for sample in unfinished:  # a spoiled trace must not stay where the sample fails now
                    remove_trace(tracer.out, sample.id)
                tracer.trace(batch)  # the whole batch: its padding changes the last digits
                n_finished += len(unfinished)
                progress.update(len(unfinished))
            if interrupted():
                raise KeyboardInterrupt(
                    f"{n_finished} of {n_samples} samples are finished; continue with resume=True"
                )


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
            raise InputError(f"method {loaded.name}: asks several times, so there is no one answer to trace")
    if methods and engine != "native":
        raise InputError(f"method {methods[0].name}: needs the native engine, not {engine}")
    return methods


def _check_names(methods: Sequence[Method], names: Iterable[str]) -> None:
    """Raise InputError if a keyword is no argument of `trace` and no parameter of the methods."""
    known = [parameter.name for method in methods for parameter in fields(method)]
    for name in names:
        if name not in known:
            keywords = inspect.signature(trace).parameters.values()
            known += [keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
            method = "+".join(method.name for method in methods)
            raise unknown_name(f"trace with method {method}: argument or parameter", name, known)


def _batches(model: Model, samples: Sequence[Sample], batch_size: int) -> Iterator[list[Sample]]:
    """Yield batches of samples in order. Samples with images and samples without do not share a batch.

    In families with cross-attention, samples with different numbers of images do not share one either: there,
    transformers lets text before the first image attend to all images, including the batch's padding.
    """

    def image_key(sample: Sample) -> int:
        return len(sample.images) if model.has_cross_attention else bool(sample.images)

    for _, group in groupby(samples, key=image_key):
        alike = list(group)
        for first in range(0, len(alike), batch_size):
            yield alike[first : first + batch_size]
