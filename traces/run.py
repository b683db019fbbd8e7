"""The run loop: trace every sample of a data set into a folder."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from mmprobe.cache import Run, TraceWriter, open_run
from mmprobe.cache.hdf5 import filters
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, intervening
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.models import Model, Prompt
from mmprobe.models.generation import check_generation, generate_options
from mmprobe.models.prompt import Chat, build_batch, chat_of, token_texts
from mmprobe.samples import Sample
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.engines import available, load_engine
from mmprobe.traces.plan import most_bytes
from mmprobe.traces.recorder import SampleRecorder
from mmprobe.traces.run_folder import check_space, describe, note_failure, open_folder, remove_torn
from mmprobe.traces.writer_thread import Background, BackgroundWriter, WritingFailed

log = logging.getLogger("mmprobe")


def trace(
    model: Model,
    samples: Sequence[Sample],
    out: str | Path,
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
    parameters: Mapping[str, Any] | None = None,
) -> Run:
    """Let the model answer every sample and record what happens inside.

    The answers are those of `model.hf.generate`, token by token. A sample that fails goes to
    `failures.jsonl` and the run goes on; whatever was finished before an interruption stays.

    Args:
        model: from `load_model`.
        samples: from `load_samples`; ids must be unique.
        out: the run's folder.
        capture: `default`, `full`, a YAML file, or a `CaptureSpec`.
        max_new_tokens: longest answer.
        engine: `native`, `nnsight` or `transformer_lens`.
        batch_size: samples that are answered together, padded on the left; halved when memory runs out.
        temperature: 0 answers greedily; above 0 samples from the 50 most likely tokens, seeded anew for each batch.
        seed: of the sampling.
        resume: keep what an earlier, equal call finished in `out`, and do the rest.
        overwrite: delete an earlier run in `out` first.
        remote: with engine nnsight, let NDIF's cluster run the model (or the host of an address); the model
            may then be one without weights, from `mmprobe.models.load_shapes`.
        method: a decoding-time method, or several, that act while the model answers; the trace shows what they
            made of it. As in `mmprobe.generate`; with the native engine only.
        parameters: of the method, instead of its defaults.

    Raises:
        InputError: an unknown method or parameter, or a method that cannot act while traced; a run is there already, cannot be resumed, or does not fit on the disk; or the model or
            the engine cannot give what the capture wants.
        OSError: the disk is full or not writable any more; finished samples are kept.

    Example:
        >>> import mmprobe as mp                                     # doctest: +SKIP
        >>> run = mp.trace(model, samples, out="runs/demo")          # doctest: +SKIP
    """
    out = Path(out)
    check_generation(max_new_tokens, temperature, seed)
    if batch_size < 1:
        raise InputError(f"--batch-size {batch_size}: must be 1 or more")
    ids = [sample.id for sample in samples]
    if len(set(ids)) != len(ids):
        raise InputError("samples: two have the same id")
    spec = available(load_capture(capture), model, engine, batch_size, remote)
    filters(spec.compression)  # before a model works in vain
    finished = len(list(out.glob("samples/*.h5"))) if resume else 0
    check_space(out, max(len(ids) - finished, 0) * most_bytes(model, spec, max_new_tokens))
    methods = _methods(method, parameters or {}, engine)
    asked: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if methods:
        asked["methods"] = {each.name: asdict(each) for each in methods}
    done = open_folder(out, describe(model, ids, spec, engine, batch_size, asked), resume, overwrite)
    options = generate_options(model, max_new_tokens, temperature)
    progress = tqdm(desc="trace", unit="sample", initial=len(done), total=len(samples), disable=None)
    try:
        with Background() as background, progress, _stopping_after_a_batch() as interrupted:
            of_engine = {"remote": remote} if remote else {}
            job = _Job(model, out, spec, engine, options, seed, background, methods, of_engine)
            fits = batch_size
            for batch in _batches(model, samples, batch_size):
                unfinished = [sample for sample in batch if sample.id not in done]
                if unfinished:
                    fits = job.trace(batch, fits)  # as a whole, since padding shows in the last digits
                    progress.update(len(unfinished))
                if interrupted():
                    raise KeyboardInterrupt
    except OSError as error:
        kept = "finished samples are kept, go on with --resume"
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", error.filename or str(out)) from None
    finally:
        remove_torn(out)
    return open_run(out)


def _methods(method: Any, parameters: Mapping[str, Any], engine: str) -> list[Method]:
    """The methods that do something, checked to be of those that act while the model decodes.

    Raises:
        InputError: unknown methods or parameters, or one that cannot be traced.
    """
    found = [each for each in load_methods(method, **parameters) if each.name != "plain" and not each.neutral]
    for each in found:
        if isinstance(each, PromptMethod):
            raise InputError(f"--method {each.name}: asks several times, so there is no one answer to trace")
    if found and engine != "native":
        raise InputError(f"--method {found[0].name}: acts within the native engine only, not {engine}")
    return found


class _Job(NamedTuple):
    model: Model
    out: Path
    spec: CaptureSpec
    engine: str
    options: dict[str, Any]
    seed: int
    background: Background
    methods: Sequence[Method]
    of_engine: dict[str, Any]

    def trace(self, samples: Sequence[Sample], fits: int) -> int:
        """Trace samples together, fewer at a time when memory runs out, one by one when one of them fails.

        Args:
            fits: how many at a time memory was enough for so far.

        Returns:
            The same, now.
        """
        at_most = fits
        chats = {}
        for sample in samples:
            try:
                chats[sample.id] = (sample, chat_of(sample))
            except InputError as error:
                note_failure(self.out, sample.id, error)
        pending = list(chats.values())
        while pending:
            size = min(at_most, len(pending))
            try:
                self._together(pending[:size])
                pending = pending[size:]
            except (OSError, WritingFailed):
                raise
            except Exception as error:
                out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
                if size == 1:
                    note_failure(self.out, pending.pop(0)[0].id, error)
                elif out_of_memory:
                    fits = at_most = size // 2
                    log.warning("out of memory with %d samples at a time; going on with %d", size, at_most)
                else:
                    at_most = 1
            if torch.cuda.is_available() and at_most < size:
                torch.cuda.empty_cache()
        return fits

    def _together(self, chats: Sequence[tuple[Sample, Chat]]) -> None:
        torch.manual_seed(self.seed)
        batch = build_batch(self.model, [chat for _, chat in chats])
        writers = [
            _writer(self.model, sample, self.out / "samples" / f"{sample.id}.h5", self.spec)
            for sample, _ in chats
        ]
        try:
            lanes = [
                SampleRecorder(self.model, prompt, self.spec, BackgroundWriter(writer, self.background))
                for prompt, writer in zip(batch.prompts, writers, strict=True)
            ]
            record = load_engine(self.engine).record
            acting = intervening(self.model, self.methods, [chat for _, chat in chats], batch, self.seed)
            with torch.inference_mode(), acting as intervention:
                options = self.options | intervention.options
                output = record(self.model, batch, lanes, self.spec, options, **self.of_engine)
            for lane, writer, row in zip(lanes, writers, output.cpu().numpy(), strict=True):
                padded = lane.prompt.padding + len(lane.prompt.ids)
                self.background.do(_finish, self.model, lane.prompt, row[padded : padded + lane.done], writer)
        except BaseException:
            self.background.settle()
            for writer in writers:
                writer.discard()
            raise


def _writer(model: Model, sample: Sample, path: Path, spec: CaptureSpec) -> TraceWriter:
    coordinates = {
        "layer": np.array(spec.layer_indices(model.n_layers), np.int32),
        "head": np.array(spec.head_indices(model.n_heads), np.int32),
        "group": np.array(GROUP_NAMES),
    }
    images = [image.absolute() for image in sample.images]  # to be found from any other folder, too
    about = {
        "sample": sample.model_copy(update={"images": images}).model_dump_json(),
        "model": model.source,
        "neurons": str(model.n_neurons),
    }
    return TraceWriter(path, coordinates, about, spec.dtype == "float16", spec.compression)


def _finish(model: Model, prompt: Prompt, generated: np.ndarray, writer: TraceWriter) -> None:
    """Write what belongs to the sample as a whole, and give the trace its name."""
    ids = np.concatenate([prompt.ids, generated])
    sizes = [prompt.sizes[source] for source in prompt.sources]
    writer.write("tokens/id", ids)
    writer.write("tokens/group", np.concatenate([prompt.group, np.full(len(generated), 4)]))
    writer.write("tokens/image", np.concatenate([prompt.image, np.full(len(generated), -1)]))
    writer.write("tokens/text", np.array([_storable(text) for text in token_texts(model, ids)], dtype=object))
    writer.write("images/grid", np.reshape(prompt.grids, (-1, 2)))
    writer.write("images/size", np.reshape(sizes, (-1, 2)))
    writer.write("images/source", np.array(prompt.sources, np.int32))
    writer.write("images/box", np.reshape([view.box for view in prompt.views], (-1, 4)))
    writer.set_attributes({"answer": _storable(model.tokenizer.decode(generated, skip_special_tokens=True))})
    writer.commit()


def _storable(text: str) -> str:
    """HDF5 texts end at a NUL; a model can generate one."""
    return text.replace("\0", "\ufffd")


def _batches(model: Model, samples: Sequence[Sample], size: int) -> Iterator[list[Sample]]:
    """Samples in their order, so many at a time; those with pictures and those without do not mix.

    Nor do different numbers of pictures where they are seen by cross-attention: transformers lets text
    before the first picture attend to all of them, the padding of the batch included.
    """

    def kind(sample: Sample) -> int:
        return len(sample.images) if model.has_cross_attention else bool(sample.images)

    for _, alike in groupby(samples, key=kind):
        group = list(alike)
        for first in range(0, len(group), size):
            yield group[first : first + size]


@contextmanager
def _stopping_after_a_batch() -> Iterator[Any]:
    """Within the block, the first Ctrl-C is only noted, for a call to ask for; the second interrupts."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted.is_set
        return

    def note(number: int, frame: Any) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()
        log.warning("stopping after this sample; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
