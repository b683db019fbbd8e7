"""Trace every sample into a run's folder: what is recorded, and how the folder is made, resumed or replaced."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from tqdm import tqdm

from mmprobe.cache import Run, Trace, TraceWriter, open_run
from mmprobe.cache.hdf5 import compression_filters, digest_matches
from mmprobe.cache.run import HASHED_KEYS, hash_config
from mmprobe.cache.schema import FORMAT_VERSION, GROUP_NAMES, SPANS
from mmprobe.cache.trace import PACKS, split_answer, write_pack
from mmprobe.cache.verify import check_trace
from mmprobe.errors import InputError, option
from mmprobe.files import format_bytes, make_subfolder, write_atomic, writing_error
from mmprobe.interventions.base import Method
from mmprobe.interventions.generate import GeneratedAnswer, generate_batch
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.ledger import (
    FINGERPRINT,
    Ledger,
    fingerprint,
    hash_images,
    hash_questions,
    library_versions,
    lock_folder,
    name_remedy,
    warn_of_versions,
)
from mmprobe.models import Batch, Group, Model, Prompt, load_model
from mmprobe.models.compiled import say_compiled
from mmprobe.models.loading import settings_in_force
from mmprobe.models.prompt import Chat, decode_sequence
from mmprobe.models.reading import Gap, PrefixStore, SharedStart
from mmprobe.registry import check_made
from mmprobe.samples import Answer, Sample, load_samples, longest, place_files, with_template
from mmprobe.settings import AskSettings, FolderSettings, TraceArgs, sort_settings
from mmprobe.thoughts import find_spans
from mmprobe.traces.asking import (
    GivenAnswer,
    GivenAnswers,
    LocalModel,
    RunPlan,
    Unanswered,
    append_failure,
    check_length,
    digest,
    drop_failures,
    keep_answers,
    read_given_answers,
    sort_failures,
)
from mmprobe.traces.capture import CaptureSpec, load_capture, max_trace_bytes
from mmprobe.traces.engines import find_way, load_engine, resolve_capture, why_whole_prompts
from mmprobe.traces.recorder import BackgroundWriter, SampleRecorder, WriterThread, give_back_memory
from mmprobe.traces.workers import open_workers

log = logging.getLogger("mmprobe")


def trace(
    model: Model | str,
    samples: Sequence[Sample] | str | Path,
    out: str | Path,
    *,
    capture: str | Path | CaptureSpec = "default",
    engine: str = "native",
    remote: bool | str = False,
    pack_every: int | None = None,
    answers: GivenAnswers | None = None,
    **settings: Unpack[TraceArgs],
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
        engine: `native`, `nnsight` or `transformer_lens`.
        remote: with the engine nnsight, True runs the model on NDIF's cluster, and a text on the host of that
            address. The model may then have no weights (`mmprobe.models.load_shapes`).
        pack_every: number of finished traces that are joined into one file of `packs/`; a long run then needs few files.
            None leaves each trace in its own file. Either way, a killed run loses nothing that was finished.
        answers: trace these answers in place of generating any: a file of lines of `{"id", "response"}` or `{"id",
            "token_ids"}`, the folder of a benchmark's results, a run or its folder, or texts or token ids by id. A sample
            without an answer, or with one that the model could not have given, is a failure. `max_new_tokens`,
            `temperature` and `seed` are not used.
        settings: fields of `AskSettings` and `FolderSettings`, and parameters of the method, such as `eta=0`, in place of its
            defaults:

            - `max_new_tokens` (256): of an answer; or the lengths by the `type` in a sample's metadata, such as
              `{"steps": 512, "other": 128}`.
            - `batch_size` (1): samples answered together, padded on the left; halved when memory runs out.
            - `temperature` (0.0): 0 for greedy answers; above 0, each token is drawn from the 50 most likely ones.
            - `seed` (0): of the sampling, set again for each batch.
            - `repetition_penalty`: above 1, tokens of the prompt and the answer become less likely. None for the
              checkpoint's own.
            - `method` (`plain`): a decoding-time method, or several; as in `mmprobe.generate`. The trace shows the model
              with the method at work. Methods need the native engine.
            - `template`: arguments of the model's chat template, such as `{"enable_thinking": False}`, for all samples. A
              sample's own ones come first.
            - `shared_prefix` (True): samples with the same images and system prompt share one vision pass and one prefill
              of their common beginning. Numbers then differ from those of separate passes by rounding alone. Other
              engines, data sets of `prompt/` and `vision/`, and some families and methods need whole prompts.
            - `compile` (False): decode with compiled layers and a cache of fixed size; traces are read by the model as it is.
              Where that cannot be, a warning and `run.json` say why. In half precision answers may have other tokens.
            - `resume`: keep the finished samples of an earlier, equal call, and trace the others. Traces that are damaged
              or of another sample are made again, with a warning.
            - `overwrite`: delete an earlier run in `out` first.
            - `shard`: `i/n` traces the i-th of n parts of the samples. Processes make the shards of one `out` without
              each other. The last one that finishes merges them into the whole run, which contains what a single
              process would have written; `merge_shards` does so, too. Batches are formed before the parts, and
              samples with the same images stay together unless a batch mixes them with others.
            - `workers`, `ray`: the number of workers, each on one GPU or on some of the CPU cores, and the address of their
              Ray cluster; or `mmprobe.traces.RayActors`. They load the model themselves, so `model` has no weights then
              (`mmprobe.models.load_shapes`). A worker that dies is replaced. Its unfinished samples are retried, at most
              three times.

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
    asking, folder = sort_settings(trace, {**settings, "out": out}, AskSettings, FolderSettings)
    _ = asking.methods  # checks their parameters
    samples = with_template(check_samples(samples), asking.template)
    model = load_model(model) if isinstance(model, str) else model
    given = None if answers is None else read_given_answers(answers, samples)
    source = LocalModel(model, open_workers(folder))
    recording = Recording(capture, engine, remote, pack_every, folder.resume, folder.overwrite, given)
    if folder.part is not None:
        from mmprobe.traces.shards import trace_shard

        return trace_shard(folder.part, source, samples, folder.out, asking, recording)
    keep_answers(source, samples, folder.out, asking, recording, "trace")
    return open_run(folder.out)


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


@dataclass(frozen=True)
class Recording:
    """What is recorded of answers, and how their run is kept.

    Attributes:
        capture, engine, remote, pack_every, resume, overwrite: as in `trace`.
        given: answers by id that are read in place of generating any; None to generate them.
        adds: whether the folder may contain the traces of other samples, to which these are added.
        whole: the folder of the whole run, where this is a shard of it.
    """

    capture: str | Path | CaptureSpec = "default"
    engine: str = "native"
    remote: bool | str = False
    pack_every: int | None = None
    resume: bool = False
    overwrite: bool = False
    given: Mapping[str, GivenAnswer] | None = None
    adds: bool = False
    whole: Path | None = None

    @contextmanager
    def open(self, model: Model, settings: AskSettings, folder: Path) -> Iterator[Recorder]:
        """Yield what records a model's answers in a folder. At the end of the block all traces are written.

        Raises:
            InputError: the model's answers cannot be recorded.
        """
        with WriterThread() as thread:
            yield Recorder(self, model, settings, folder, thread)

    def sink(self, folder: Path, samples: Sequence[Sample], model: Model) -> TraceSink:
        """Return what keeps the traces of these samples in a folder.

        Raises:
            InputError: a sample has videos, and something is recorded of the vision encoder, whose patches of frames have no
                place in the trace format.
        """
        with_video = next((sample.id for sample in samples if sample.videos), None)
        encoder = [name for name in load_capture(self.capture).datasets if name.startswith("vision/")]
        if with_video is not None and encoder:
            raise InputError(
                f"{encoder[0]}: is recorded of images alone, and sample {with_video} has videos; leave it out"
            )
        return TraceSink(self, folder, samples, model)


class TraceSink:
    """Keeps traces in a run's folder. A recorder writes them, here or in a worker."""

    def __init__(self, recording: Recording, folder: Path, samples: Sequence[Sample], model: Model):
        self.recording, self.folder, self.samples, self.model = recording, folder, samples, model
        self.packer = Packer(folder, recording.pack_every)

    @contextmanager
    def open(self, plan: RunPlan | None) -> Iterator[set[str]]:
        """Lock and open the folder, and yield the ids of the finished samples."""
        assert plan is not None
        with lock_folder(self.folder, "tracing into it"):
            ids = [sample.id for sample in self.samples]
            config, asked = plan.config | {"order": ids}, self.recording
            if asked.whole is not None:
                from mmprobe.traces.shards import warn_of_begun_shards

                warn_of_begun_shards(asked.whole, self.folder, config)
            finished = open_folder(
                self.folder, config, self.samples, asked.resume, asked.overwrite, asked.adds
            )
            warn_of_space(self.folder, (len(ids) - len(finished)) * plan.trace_bytes)
            for name in ids:  # a spoiled trace must not stay where the sample fails now
                if name not in finished:
                    _remove_trace(self.folder, name)
            with _clean_up(self.folder):
                yield finished
            self.packer.finish()
            sort_failures(self.folder, open_run(self.folder).config["order"])

    def keep(self, name: str, answer: Answer) -> None:
        """Count a sample whose trace the recorder writes."""
        self.packer.count(1)

    def fail(self, name: str, failure: Unanswered) -> None:
        """List a sample that has no trace."""
        append_failure(self.folder, name, failure)

    def has(self, name: str) -> bool:
        """Return whether the trace of a sample is written by now."""
        return name in open_run(self.folder)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        """Yield the answers of traces."""
        run = open_run(self.folder)
        for name in names:
            with run[name].keep_open() as trace:
                ids = trace.steps["id"].values.tolist()
                truncated = bool(ids) and ids[-1] not in self.model.eos_token_ids
                yield name, Answer(trace.response, truncated, ids, trace.opened)


@contextmanager
def _clean_up(out: Path) -> Iterator[None]:
    """Remove the files of unfinished traces at the end. Add to a disk error how to continue."""
    try:
        yield
    except OSError as error:
        raise name_remedy(error, out) from None
    finally:
        _remove_partial_files(out)


class Recorder:
    """Records the answers of a model in a folder.

    Args:
        recording: what is recorded.
        folder: the run's folder.
        thread: the thread that writes the traces.

    Attributes:
        plan: what the folder's `TraceSink` has to know.
        spec: the part of the capture that can be recorded.
        methods: those that change the answers.
        record: the engine's `record`.
        shares_prefixes: whether samples with the same images share what is read of their common beginning.
    """

    def __init__(
        self,
        recording: Recording,
        model: Model,
        settings: AskSettings,
        folder: Path,
        thread: WriterThread,
    ):
        self.model, self.folder, self.thread = model, folder, thread
        self.given = given = recording.given
        engine, remote, batch_size = recording.engine, recording.remote, settings.batch_size
        if given is not None and engine != "native":
            raise InputError(f"engine {engine}: generates its answers; use native to trace given ones")
        self.spec = resolve_capture(load_capture(recording.capture), model, engine, batch_size, remote)
        compression_filters(self.spec.compression)  # a missing plugin is reported before the model runs
        self.methods = _traceable(settings.methods, engine)
        self.record: Callable[..., torch.Tensor] = load_engine(engine).record
        made, elsewhere = settings.record(), "" if given is None else "they are given"
        if engine == "native":
            way = find_way(model, self.spec, self.methods)
            elsewhere = elsewhere or ("" if way.name == "read" else way.text)
            made |= say_compiled(model, settings, [each.name for each in self.methods], elsewhere)
            self.record = partial(self.record, way=way.name, compiled=made.get("compile") is True)
        else:
            made |= say_compiled(model, settings, (), f"engine {engine} decodes by itself")
        if remote:
            self.record = partial(self.record, remote=remote)
        length = longest(settings.lengths)
        if given is not None:
            length = max(each.longest for each in given.values())
            # with `adds`, more may be given later
            made["answers"] = "given" if recording.adds else {"n": len(given), "sha256": digest(given)}
        config = run_config(model, self.spec, engine, batch_size, made, self.methods)
        self.plan = RunPlan(config, max_trace_bytes(model, self.spec, length))
        self.run_hash = hash_config(config)
        whole = why_whole_prompts(model, self.spec, engine, self.methods)
        self.shares_prefixes = settings.shared_prefix and whole is None

    @property
    def keeps_states(self) -> bool:
        """Whether shared prefixes keep the states that the unembedding reads."""
        return self.spec.wants("tam/")

    def answer(
        self,
        samples: Sequence[Sample],
        chats: Sequence[Chat],
        settings: AskSettings,
        prefixes: PrefixStore | None,
    ) -> list[GeneratedAnswer]:
        """Answer a batch, or take the given answers, and write its traces. Those of a batch that fails are discarded."""
        writers: list[TraceWriter] = []
        recorders: list[SampleRecorder] = []

        def decode(batch: Batch, options: Mapping[str, Any], start: SharedStart | None) -> list[list[int]]:
            own: dict[str, Any] = {"start": start} if start else {}  # of the native engine alone
            if self.given is not None:
                own["answers"] = [self.given[sample.id].read(self.model) for sample in samples]
                for prompt, ids in zip(batch.prompts, own["answers"], strict=True):
                    check_length(self.model, prompt, ids)
            for sample, prompt in zip(samples, batch.prompts, strict=True):
                writers.append(self.open_writer(sample))
                writer = BackgroundWriter(writers[-1], self.thread)
                recorders.append(SampleRecorder(self.model, prompt, self.spec, writer))
            output = self.record(self.model, batch, recorders, self.spec, dict(options), **own)
            output = check_made(self.record, output, torch.Tensor, np.ndarray).tolist()
            starts = [each.prompt.padding + len(each.prompt.ids) for each in recorders]
            return [
                ids[first : first + each.n_steps]
                for ids, first, each in zip(output, starts, recorders, strict=True)
            ]

        try:
            answers = generate_batch(self.model, samples, settings, prefixes, chats, decode)
            for recorder, writer, given in zip(recorders, writers, answers, strict=True):
                if recorder.gap is not None:
                    self._record_gap(writer, recorder.gap)
                self.thread.submit(_finish_trace, self.model, recorder.prompt, given, writer)
        except BaseException:
            self.thread.wait()
            for writer in writers:
                writer.discard()
            raise
        return answers

    def open_writer(self, sample: Sample) -> TraceWriter:
        """Return the writer of a sample's trace."""
        model, spec = self.model, self.spec
        coordinates = {
            "layer": np.array(spec.layer_indices(model.n_layers), np.int32),
            "head": np.array(spec.head_indices(model.n_heads), np.int32),
            "group": np.array(GROUP_NAMES),
        }
        found = place_files(sample, Path.absolute)  # so that they can be read from any folder
        attributes = {
            "sample": found.model_dump_json(),
            "model": model.source,
            "neurons": str(model.n_neurons),
            "run_hash": self.run_hash,
            "fingerprint": json.dumps(model.fingerprint),
        }
        if spec.groups is not None:
            attributes["prompt_groups"] = ", ".join(spec.groups)
        if image_hash := sample.files and hash_images(sample):
            attributes["image_hash"] = image_hash
        path = self.folder / "samples" / f"{sample.id}.h5"
        return TraceWriter(path, coordinates, attributes, spec.dtype == "float16", spec.compression)

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
        return 1e-3 if self.model.rounding == torch.float32 else 0.5


def _finish_trace(model: Model, prompt: Prompt, given: GeneratedAnswer, writer: TraceWriter) -> None:
    """Write the tokens, the images and the answer, and give the trace its name."""
    answer_ids = np.array(given.token_ids, np.int64)
    ids = np.concatenate([prompt.ids, answer_ids])
    sizes = [prompt.sizes[source] for source in prompt.sources]
    group = np.concatenate([prompt.group, np.full(len(answer_ids), Group.GENERATED)])
    texts = [_replace_nul(text) for text in decode_sequence(model, ids)]
    writer.write("tokens/id", ids)
    writer.write("tokens/group", group)
    writer.write("tokens/image", np.concatenate([prompt.image, np.full(len(answer_ids), -1)]))
    writer.write("tokens/text", np.array(texts, dtype=object))
    writer.write(SPANS, find_spans(*split_answer(texts, group)))
    writer.write("images/grid", np.reshape(prompt.grids, (-1, 2)))
    writer.write("images/size", np.reshape(sizes, (-1, 2)))
    writer.write("images/source", np.array(prompt.sources, np.int32))
    writer.write("images/box", np.reshape([view.box for view in prompt.views], (-1, 4)))
    if prompt.clips:
        video, frames, times = _place_in_videos(prompt)
        writer.write("images/video", video)
        writer.write("images/frames", frames)
        writer.write("images/time", times)
    if given.diagnostics:
        texts = [json.dumps({"method": name, "report": own}) for name, own in given.diagnostics.items()]
        writer.write("methods/report", np.array(texts, dtype=object))
    writer.set_attributes({"answer": _replace_nul(given.text)})
    writer.commit()


def _place_in_videos(prompt: Prompt) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which video each view shows, its first and last frame, and the time of the first.

    Returns:
        int32 [view], int32 [view, 2] and float32 [view] in seconds; -1 and NaN for views of images, and NaN where the
        frames a second are not known.
    """
    video = np.full(len(prompt.views), -1, np.int32)
    frames = np.full((len(prompt.views), 2), -1, np.int32)
    times = np.full(len(prompt.views), np.nan, np.float32)
    for number, clip in enumerate(prompt.clips):
        for view, source in enumerate(prompt.sources):
            if clip.pictures.start <= source < clip.pictures.stop:
                first = source - clip.start
                last = min(first + prompt.views[view].pictures, len(clip.indices)) - 1
                video[view], frames[view] = number, (clip.indices[first], clip.indices[last])
                times[view] = clip.indices[first] / clip.fps if clip.fps else np.nan
    return video, frames, times


def _replace_nul(text: str) -> str:
    """Replace NUL characters, which end a text in HDF5 and which a model can generate."""
    return text.replace("\0", "\ufffd")


def _traceable(methods: Sequence[Method], engine: str) -> list[Method]:
    """Return the methods that change the answer.

    Raises:
        InputError: one of them cannot be traced.
    """
    methods = [loaded for loaded in methods if loaded.name != "plain" and not loaded.neutral]
    for loaded in methods:
        if isinstance(loaded, PromptMethod):
            raise InputError(
                f"method {loaded.name}: generates several answers, so no single one can be traced"
            )
    if methods and engine != "native":
        raise InputError(f"method {methods[0].name}: needs the native engine, not {engine}")
    return methods


def run_config(
    model: Model,
    spec: CaptureSpec,
    engine: str,
    batch_size: int,
    generation: dict[str, Any],
    methods: Sequence[Method] = (),
) -> dict[str, Any]:
    """Return the content of `run.json`; the order of the samples is still to come."""
    libraries = {"h5py": version("h5py")}
    if engine != "native":
        with suppress(PackageNotFoundError):  # an engine of another package has a name of its own
            libraries[engine.replace("_", "-")] = version(engine.replace("_", "-"))
    if methods:
        generation = generation | {"methods": {method.name: asdict(method) for method in methods}}
    return {
        "format": FORMAT_VERSION,
        "model": {
            "name": model.name,
            "source": model.source,
            "revision": model.revision,
            "family": model.family.name,
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            "layers": model.n_layers,
            **({"pixels": model.settings.pixels} if model.settings.pixels else {}),
            **({"load_in": model.settings.load_in} if model.settings.load_in else {}),
        },
        "capture": spec.model_dump(exclude=None if spec.groups else {"groups"}),
        "generate": generation,
        "generation_settings": settings_in_force(
            model, generation["temperature"], generation.get("repetition_penalty")
        ),
        "engine": engine,
        "batch_size": batch_size,
        "versions": library_versions() | libraries,
        FINGERPRINT: fingerprint(
            model.fingerprint, methods={each.name: each.fingerprint for each in methods}
        ),
        "order": [],
    }


def _run_ledger(out: Path) -> Ledger:
    """Return what `trace` keeps in a run's folder."""
    return Ledger(
        out,
        settings="run.json",
        holds="a run",
        differs="was traced with another {words}",
        remedy=f"{option('resume')} needs the same, or use {option('overwrite')}",
        offer=f"use {option('resume')} to finish it or {option('overwrite')} to replace it",
    )


def open_folder(
    out: Path,
    config: dict[str, Any],
    samples: Sequence[Sample],
    resume: bool,
    overwrite: bool,
    adds: bool = False,
) -> set[str]:
    """Make a run's folder, or open it again, and return the ids of the finished samples.

    The caller must have locked the folder. With `adds`, the samples are added to those of an earlier run.

    Raises:
        InputError: `out` contains other files, a run while neither `resume` nor `overwrite` is set, or a run that
            cannot be resumed; or it cannot be written.
        OSError: the disk is full.
    """
    ledger = _run_ledger(out)
    if not ledger.begun and (out / "shards").is_dir():
        raise InputError(f"{out}: contains shards; finish them, then merge them with: mmprobe merge {out}")
    unstarted = ledger.is_empty(["samples"]) and not any(out.glob("samples/*"))
    if not ledger.begun and not unstarted:
        raise InputError(f"{out}: is not empty and contains no run; choose another folder")
    ledger.check(resume and not overwrite, overwrite)
    try:
        if ledger.begun and not overwrite:
            return _resume(out, config, samples, adds)
        if ledger.begun:
            ledger.clear()
        make_subfolder(out / "samples")
    except OSError as error:
        raise writing_error(out, error) from None
    ledger.begin(config)
    return set()


def _resume(out: Path, config: dict[str, Any], samples: Sequence[Sample], adds: bool) -> set[str]:
    """Return the ids of the finished samples, less those whose trace has to be made again."""
    make_subfolder(out / "samples")  # somebody may have deleted it
    _remove_damaged(out)
    earlier = open_run(out)
    settings = {key: config[key] for key in HASHED_KEYS}
    order, ids = list(earlier.config["order"]), config["order"]
    if not adds:
        settings["order"] = ids
    _run_ledger(out).check_same(earlier.config, settings, config.get(FINGERPRINT))
    warn_of_versions(out, earlier.config.get("versions"))
    if new := [name for name in ids if name not in set(order)]:
        content = json.loads((out / "run.json").read_bytes()) | {"order": [*order, *new]}
        write_atomic(out / "run.json", json.dumps(content, indent=1) + "\n")
    drop_failures(out, ids)
    _remove_partial_files(out)
    samples_by_id = {sample.id: sample for sample in samples}
    progress = tqdm(earlier.ids, desc="check", unit="trace", disable=None)
    recorded = {**config, FINGERPRINT: earlier.config.get(FINGERPRINT)}
    kept = {
        name
        for name in progress
        if name not in samples_by_id or _is_sound(earlier[name], samples_by_id[name], recorded)
    }
    if n_spoiled := len(earlier) - len(kept):
        log.warning(
            "%s: %d of %d finished traces are damaged, or of other questions or images; they are made again",
            out,
            n_spoiled,
            len(earlier),
        )
    _keep_packed(out, kept)
    return kept & samples_by_id.keys()


def _is_sound(trace: Trace, sample: Sample, config: Mapping[str, Any]) -> bool:
    """Return whether a trace is undamaged and of this sample and run."""
    try:
        return not check_trace(trace, config) and _is_same(trace, sample)
    except (InputError, OSError, KeyError, ValueError):
        return False


def _is_same(trace: Trace, sample: Sample) -> bool:
    """Return whether a sample is the one that was traced. Its images may have moved, but not changed."""
    traced = trace.sample
    if hash_questions([traced]) != hash_questions([sample]):
        return False
    if trace.image_hash and (image_hash := hash_images(sample)):
        return trace.image_hash == image_hash
    return all(
        old == new.absolute() or not old.exists() or filecmp.cmp(old, new, shallow=False)
        for old, new in zip(traced.files, sample.files, strict=True)
    )


def _remove_trace(out: Path, sample_id: str) -> None:
    """Remove a sample's trace, or whatever is in its place."""
    path = out / "samples" / f"{sample_id}.h5"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_partial_files(out: Path) -> None:
    """Remove the files of unfinished traces."""
    for path in [*(out / "samples").glob("*.part"), *(out / PACKS).glob("*.part")]:
        with suppress(OSError):
            path.unlink()


def warn_of_space(out: Path, needed: int) -> None:
    """Warn if the disk of `out` has less free space than `needed` bytes, an estimate for the worst case."""
    free = shutil.disk_usage(out).free
    if needed > free:
        log.warning(
            "%s: the run can take up to %s and %s are free; it continues, since answers are often shorter, "
            "and a full disk loses no finished sample",
            out,
            format_bytes(needed),
            format_bytes(free),
        )


class Packer:
    """Joins the finished traces of a run's folder in files of so many traces, in `packs/`.

    The traces' own files are removed when the joined file is whole, so a process that is killed loses nothing.

    Args:
        folder: the run's folder. One process may pack into it at a time.
        every: number of traces in a file; None to leave each trace in its own file.

    Raises:
        InputError: the number is less than 1.
    """

    def __init__(self, folder: Path, every: int | None):
        if every is not None and every < 1:
            raise InputError(f"pack_every {every}: must be 1 or more")
        self.folder, self.every = folder, every
        self.n_new = 0

    def count(self, n_samples: int) -> None:
        """Count samples that were worked on, and join traces if there are enough."""
        self.n_new += n_samples
        if self.every is not None and self.n_new >= self.every:
            self._join(self.every)

    def finish(self) -> None:
        """Join the traces that are left at the end of a run."""
        if self.every is not None:
            self._join(1)

    def _join(self, least: int) -> None:
        """Join traces that have their own files, while there are at least so many."""
        assert self.every is not None
        files = sorted(
            (self.folder / "samples").glob("*.h5"), key=lambda path: (path.stat().st_mtime_ns, path)
        )
        while len(files) >= least and files:
            joined, files = files[: self.every], files[self.every :]
            make_subfolder(self.folder / PACKS)
            write_pack(map(Trace, joined), self._next_file())
            for path in joined:
                path.unlink()
            give_back_memory(below_peak=True)  # HDF5 frees 50 MB after 500 small traces
        self.n_new = len(files)

    def _next_file(self) -> Path:
        numbers = [int(path.stem) for path in (self.folder / PACKS).glob("*.h5") if path.stem.isdecimal()]
        return self.folder / PACKS / f"{max(numbers, default=0) + 1:06}.h5"


def _remove_damaged(folder: Path) -> None:
    """Remove files of joined traces that are damaged, with a warning; their traces are made again."""
    for file in (folder / PACKS).glob("*.h5"):
        if not digest_matches(file):
            log.warning("%s: damaged, or changed since it was written; its traces are made again", file)
            file.unlink()


def _keep_packed(folder: Path, kept: Iterable[str]) -> None:
    """Remove all other traces from the files of joined traces, and second copies of those that stay."""
    run, ids = open_run(folder), set(kept)
    names_of: dict[Path, list[str]] = {}
    for trace, name in zip(run, run.ids, strict=True):
        names_of.setdefault(trace.file, []).append(name)
    for file in (folder / PACKS).glob("*.h5"):
        names = names_of.get(file, [])
        sound = [name for name in names if name in ids]
        if not sound:
            file.unlink()
        elif len(sound) < len(names):
            write_pack((run[name] for name in sound), file)
        for name in sound:
            (folder / "samples" / f"{name}.h5").unlink(missing_ok=True)
