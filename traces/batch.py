"""Form batches of samples, and trace one batch, in smaller ones when memory runs out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, intervene
from mmprobe.ledger import hash_images
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.chat import Chat, build_chat
from mmprobe.models.prompt import build_batch, decode_tokens
from mmprobe.models.reading import Gap
from mmprobe.models.shared_prefix import PrefixStore, prefix_key
from mmprobe.samples import Lengths, Sample, length_of
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.given_answers import GivenAnswer, check_length
from mmprobe.traces.recorder import SampleRecorder, UnobservedChange
from mmprobe.traces.run_folder import append_failure
from mmprobe.traces.writer_thread import BackgroundWriter, WriterThread, WritingFailed

log = logging.getLogger("mmprobe")


@dataclass
class BatchTracer:
    """Traces the batches of one run.

    Attributes:
        out: the run's folder.
        record: the engine's `record`.
        options: arguments of transformers' `generate`.
        seed: set before each batch.
        thread: the thread that writes the traces.
        max_size: the most samples that were traced together without running out of memory.
        run_hash: `hash_config` of the run, written to each trace.
        lengths: longest answers. Samples of a batch have the same.
        prefixes: what samples with the same images share; None if each prompt is read whole.
        answers: answers that are given, by id; None to generate them.
    """

    model: Model
    spec: CaptureSpec
    out: Path
    record: Callable[..., torch.Tensor]
    options: dict[str, Any]
    methods: Sequence[Method]
    seed: int
    thread: WriterThread
    max_size: int
    run_hash: str
    lengths: Lengths
    prefixes: PrefixStore | None = None
    answers: Mapping[str, GivenAnswer] | None = None

    def trace(self, samples: Sequence[Sample]) -> None:
        """Trace samples together: fewer at a time when memory runs out, one by one when a sample fails."""
        pending = self._read_chats(samples)
        max_size = self.max_size
        while pending:
            size = min(max_size, len(pending))
            try:
                self._trace_together(pending[:size])
                pending = pending[size:]
            except (OSError, WritingFailed, UnobservedChange):
                raise
            except Exception as error:
                if size == 1:
                    append_failure(self.out, pending.pop(0)[0].id, error)
                elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
                    self.max_size = max_size = size // 2
                    log.warning("out of memory with %d samples at a time; continuing with %d", size, max_size)
                else:
                    max_size = 1
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    log.warning("a batch of %d samples failed (%s); tracing them one by one", size, reason)
            if torch.cuda.is_available() and max_size < size:
                torch.cuda.empty_cache()

    def _read_chats(self, samples: Sequence[Sample]) -> list[tuple[Sample, Chat]]:
        """Return each readable sample with its chat; list the others as failures."""
        chats = []
        for sample in samples:
            try:
                if self.answers is not None:
                    if sample.id not in self.answers:
                        raise InputError("no answer to it is given")
                    self.answers[sample.id].read(self.model)
                chats.append((sample, build_chat(sample)))
            except InputError as error:
                append_failure(self.out, sample.id, error)
        return chats

    def _trace_together(self, pending: Sequence[tuple[Sample, Chat]]) -> None:
        chats = [chat for _, chat in pending]
        torch.manual_seed(self.seed)
        batch = build_batch(self.model, chats)
        begun = None
        if self.prefixes is not None:
            begun = self.prefixes.start([prefix_key(sample) for sample, _ in pending], chats, batch)
        options: dict[str, Any] = {"start": begun} if begun else {}  # of the native engine alone
        if self.answers is not None:
            options["answers"] = [self.answers[sample.id].read(self.model) for sample, _ in pending]
            for prompt, answer in zip(batch.prompts, options["answers"], strict=True):
                check_length(self.model, prompt, answer)
        writers = [self._open_writer(sample) for sample, _ in pending]
        try:
            recorders = [
                SampleRecorder(self.model, prompt, self.spec, BackgroundWriter(writer, self.thread))
                for prompt, writer in zip(batch.prompts, writers, strict=True)
            ]
            methods = intervene(self.model, self.methods, chats, batch, self.seed, begun)
            with torch.inference_mode(), methods as intervention:
                length = length_of(pending[0][0], self.lengths)
                generate = self.options | {"max_new_tokens": length} | intervention.options
                output = self.record(self.model, batch, recorders, self.spec, generate, **options)
            rows = zip(recorders, writers, output.cpu().numpy(), strict=True)
            for row, (recorder, writer, ids) in enumerate(rows):
                start = recorder.prompt.padding + len(recorder.prompt.ids)
                answer_ids = ids[start : start + recorder.n_steps]
                report = intervention.report(row, recorder.n_steps)
                if recorder.gap is not None:
                    self._record_gap(writer, recorder.gap)
                self.thread.submit(_finish_trace, self.model, recorder.prompt, answer_ids, report, writer)
        except BaseException:
            self.thread.wait()
            for writer in writers:
                writer.discard()
            raise

    def _record_gap(self, writer: TraceWriter, gap: Gap) -> None:
        """Write how far the reading of an answer is from its decoding, and warn if it is far."""
        self.thread.submit(writer.set_attributes, {"reading": json.dumps(gap._asdict())})
        if not gap.difference <= self.largest_gap:
            log.warning(
                "%s: reading the answer gives log-probabilities up to %.2g nat from those of decoding it, and the same "
                "most likely token in %.0f %% of the steps",
                writer.path.stem,
                gap.difference,
                100 * gap.agreeing / gap.steps,
            )

    @property
    def largest_gap(self) -> float:
        """The largest difference in nat that rounding explains in the model's type; our choice."""
        return 1e-3 if self.model.hf.dtype == torch.float32 else 0.5

    def _open_writer(self, sample: Sample) -> TraceWriter:
        model, spec = self.model, self.spec
        coordinates = {
            "layer": np.array(spec.layer_indices(model.n_layers), np.int32),
            "head": np.array(spec.head_indices(model.n_heads), np.int32),
            "group": np.array(GROUP_NAMES),
        }
        images = [path.absolute() for path in sample.images]  # so that they can be read from any folder
        attributes = {
            "sample": sample.model_copy(update={"images": images}).model_dump_json(),
            "model": model.source,
            "neurons": str(model.n_neurons),
            "run_hash": self.run_hash,
            "fingerprint": json.dumps(model.fingerprint),
        }
        if image_hash := sample.images and hash_images(sample):
            attributes["image_hash"] = image_hash
        path = self.out / "samples" / f"{sample.id}.h5"
        return TraceWriter(path, coordinates, attributes, spec.dtype == "float16", spec.compression)


def _finish_trace(
    model: Model, prompt: Prompt, answer_ids: np.ndarray, report: dict[str, Any], writer: TraceWriter
) -> None:
    """Write the tokens, the images and the answer, and give the trace its name."""
    ids = np.concatenate([prompt.ids, answer_ids])
    sizes = [prompt.sizes[source] for source in prompt.sources]
    group = np.concatenate([prompt.group, np.full(len(answer_ids), Group.GENERATED)])
    texts = [_replace_nul(text) for text in decode_tokens(model, ids)]
    writer.write("tokens/id", ids)
    writer.write("tokens/group", group)
    writer.write("tokens/image", np.concatenate([prompt.image, np.full(len(answer_ids), -1)]))
    writer.write("tokens/text", np.array(texts, dtype=object))
    writer.write("images/grid", np.reshape(prompt.grids, (-1, 2)))
    writer.write("images/size", np.reshape(sizes, (-1, 2)))
    writer.write("images/source", np.array(prompt.sources, np.int32))
    writer.write("images/box", np.reshape([view.box for view in prompt.views], (-1, 4)))
    if report:
        texts = [json.dumps({"method": name, "report": own}) for name, own in report.items()]
        writer.write("methods/report", np.array(texts, dtype=object))
    answer = model.tokenizer.decode(answer_ids, skip_special_tokens=True)
    writer.set_attributes({"answer": _replace_nul(answer)})
    writer.commit()


def _replace_nul(text: str) -> str:
    """Replace NUL characters, which end a text in HDF5 and which a model can generate."""
    return text.replace("\0", "\ufffd")


def form_batches(
    samples: Sequence[Sample], size: int, separates_counts: bool, lengths: Lengths = 0
) -> list[list[Sample]]:
    """Return batches of samples in order. Samples with images and samples without do not share a batch.

    With `lengths` by type, nor do samples whose answers may have different lengths; those of one length follow each
    other.

    In families with cross-attention, samples with different numbers of images do not share one either: there,
    transformers lets text before the first image attend to all images, including the batch's padding.
    """

    def image_count(sample: Sample) -> int:
        return len(sample.images) if separates_counts else bool(sample.images)

    batches = []
    for _, group in groupby(samples, key=image_count):
        alike: dict[int, list[Sample]] = {}
        for sample in group:
            alike.setdefault(length_of(sample, lengths), []).append(sample)
        for members in alike.values():
            batches += [members[first : first + size] for first in range(0, len(members), size)]
    return batches
