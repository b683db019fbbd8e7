"""Answer samples: the one way in which answers come about, for traces, benchmarks, comparisons and probes.

Samples become batches. Those with the same images share what is read of their common beginning. A batch that runs out
of memory is halved, and one that fails is answered one by one. What is finished is kept in a folder at once, so that a
second call continues it. Workers and shards divide the batches; a recorder looks at the model while it answers. Answers
that come from elsewhere (a server, an earlier run, a person) are traced without being generated.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from tqdm import tqdm

from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError, option, shorten
from mmprobe.files import (
    JsonRecord,
    Text,
    append_lines,
    cut_torn_line,
    json_lines,
    make_folders,
    read_records,
    redact,
    write_atomic,
)
from mmprobe.interventions.generate import check_combination, generate_batch
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.loading import describe_place
from mmprobe.models.pixels import tell_seen
from mmprobe.models.prompt import Chat, build_chat, check_template, check_videos
from mmprobe.models.reading import PrefixKey, PrefixStore, repeated_keys, sort_by_images
from mmprobe.peers import read_answers
from mmprobe.registry import find_plug_in
from mmprobe.samples import Answer, Sample, load_samples
from mmprobe.settings import AskSettings

if TYPE_CHECKING:
    from mmprobe.traces.run import Recorder, Recording
    from mmprobe.traces.workers import RayActors


log = logging.getLogger("mmprobe")

RESPONSES = "responses.jsonl"
FAILURES = "failures.jsonl"


class EndsRun(Exception):
    """An error that is not that of one sample: no other sample would be answered either."""


class Unanswered(NamedTuple):
    """Why a sample has no answer: the class of the error, and the first line of its message, without keys and shortened."""

    error: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Unanswered:
        """Return the failure that an error is.

        Example:
            >>> Unanswered.of(ValueError("too long\\nby a lot"))
            Unanswered(error='ValueError', message='too long')
        """
        name, plug_in = type(error).__name__, find_plug_in(error)
        message = (str(error).strip().splitlines() or [name])[0]
        return cls(name, shorten(redact(f"{plug_in}: {message}" if plug_in else message)))


Answered = tuple[str, str | Unanswered]
"""The id of a sample, and its answer; an `Answer` where more is known than the text."""
Ask = Callable[[Sequence[Sample], AskSettings], Generator[Answered]]
"""Yields answers in completion order: a model behind an API."""


@dataclass(frozen=True)
class LocalModel:
    """A model that is loaded here or by workers.

    Attributes:
        model: the model; without weights (`load_shapes`) where workers load it.
        workers: the processes that answer; None for this one.
    """

    model: Model
    workers: RayActors | None = None


Source = Model | LocalModel | Ask
"""Where answers come from."""


class RunPlan(NamedTuple):
    """What a sink of traces has to know of a model, which may be loaded elsewhere.

    Attributes:
        config: the content of `run.json`, but for the order.
        trace_bytes: the maximum size of one trace.
    """

    config: dict[str, Any]
    trace_bytes: int


class Sink(Protocol):
    """Where answers go, each as soon as it is there: nowhere, into lines of `responses.jsonl`, or into traces."""

    def open(self, plan: RunPlan | None) -> AbstractContextManager[set[str]]:
        """Within the block, take answers. Yield the ids of the samples that have one from an earlier call.

        Args:
            plan: of the traces that a model makes; None where nothing is recorded.
        """

    def keep(self, name: str, answer: Answer) -> None:
        """Keep the answer to a sample."""

    def fail(self, name: str, failure: Unanswered) -> None:
        """List a sample that has no answer."""

    def has(self, name: str) -> bool:
        """Return whether the answer to a sample is kept by now. A worker may have written it."""

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        """Yield answers that are kept."""


def answer(
    source: Source,
    samples: Sequence[Sample],
    folder: Path | None,
    settings: AskSettings,
    recorder: Recording | None = None,
    title: str = "answers",
    among: Sequence[Sample] | None = None,
) -> Generator[tuple[str, Answer]]:
    """Answer samples, keep each answer as soon as it is there, and yield it.

    Samples with an answer in the folder are not answered again; their answers come last. A sample that fails is listed
    in `failures.jsonl` there, and has no answer. After Ctrl-C the current batch is finished.

    Args:
        source: a model, here or in workers; answers that are given; or a function that asks a model behind an API.
        folder: keeps `responses.jsonl`, or traces where a recorder makes them; the caller has locked it for the
            former. With None nothing is kept, and the first failure is raised.
        settings: how the samples are answered.
        recorder: what is recorded of the model; it needs a local model and a folder.
        title: of the progress bar.
        among: all samples, where these are a shard of them: what they share depends on the others, too.

    Raises:
        InputError: the methods cannot act together, or the recorder cannot record this model's answers.
        OSError: the disk is full or cannot be written; finished samples are kept.

    Example:
        >>> dict(answer(model, samples, None, AskSettings(max_new_tokens=32)))               # doctest: +SKIP
        {'0001': 'Yes.'}
    """
    job, sink = _prepare(source, samples, folder, settings, recorder, among)
    earlier = yield from _answer_new(source, samples, job, sink, title)
    yield from sink.read(sample.id for sample in samples if sample.id in earlier)


def keep_answers(
    source: Source,
    samples: Sequence[Sample],
    folder: Path,
    settings: AskSettings,
    recorder: Recording | None = None,
    title: str = "answers",
    among: Sequence[Sample] | None = None,
) -> int:
    """Answer samples into a folder, as `answer` does, and return the number of new answers.

    Example:
        >>> keep_answers(model, samples, Path("out"), AskSettings())                         # doctest: +SKIP
        12
    """
    job, sink = _prepare(source, samples, folder, settings, recorder, among)
    return sum(1 for _ in _answer_new(source, samples, job, sink, title))


def _prepare(
    source: Source,
    samples: Sequence[Sample],
    folder: Path | None,
    settings: AskSettings,
    recorder: Recording | None,
    among: Sequence[Sample] | None,
) -> tuple[Job, Sink]:
    """Check that a source can answer samples; return how it does, and where the answers go."""
    model = source if isinstance(source, Model) else source.model if isinstance(source, LocalModel) else None
    tell_seen(samples, model)
    sink: Sink = NullSink() if folder is None else LineSink(folder, samples)
    if folder is not None and recorder is not None:
        assert model is not None, "a recorder needs a local model"
        sink = recorder.sink(folder, samples, model)
    if model is not None:
        check_videos(model, samples)
        check_template(model, samples)
        for method in settings.methods:
            method.check_model(model)
    if recorder is None:
        check_combination(settings)
    return Job(settings, repeated_keys(among or samples), folder, recorder), sink


def _answer_new(
    source: Source, samples: Sequence[Sample], job: Job, sink: Sink, title: str
) -> Generator[tuple[str, Answer], None, set[str]]:
    """Yield the answers to samples that the sink has none to; return the ids of the others."""
    local = LocalModel(source) if isinstance(source, Model) else source
    with ExitStack() as stack:
        progress = stack.enter_context(tqdm(desc=title, unit="answer", disable=None))
        plan, answer_rest = stack.enter_context(_open_source(local, samples, job, sink))
        earlier = set(stack.enter_context(sink.open(plan)))
        left = {sample.id for sample in samples} - earlier  # shrinks, so that a long run does not grow
        if left and isinstance(local, LocalModel) and local.workers is None:
            _tell_once(describe_place(local.model))
        progress.reset(len(samples))
        progress.update(len(earlier))
        interrupted = stack.enter_context(finish_batch_on_interrupt())
        with closing(answer_rest(earlier, interrupted)) as stream:
            for answered in stream:
                for name, got in answered:
                    if name not in left:
                        continue
                    left.remove(name)
                    progress.update()
                    if isinstance(got, Unanswered):
                        sink.fail(name, got)
                    else:
                        text = got if isinstance(got, Answer) else Answer(got)
                        sink.keep(name, text)
                        yield name, text
        if interrupted():
            raise _stop_run(len(samples) - len(left), len(samples))
    return earlier


@cache
def _tell_once(line: str) -> None:
    """Say where a model computes, once a process: a benchmark asks several times."""
    log.info("%s", line)


AnswerRest = Callable[[set[str], Callable[[], bool]], Generator[list[Answered]]]
"""Yields the answers to all samples but those with these ids, batch by batch, until a function says that Ctrl-C was pressed.

What it began to write is written when it ends."""


@contextmanager
def _open_source(
    source: LocalModel | Ask, samples: Sequence[Sample], job: Job, sink: Sink
) -> Iterator[tuple[RunPlan | None, AnswerRest]]:
    """Yield what a sink of traces has to know, and the function that answers the samples that are left."""
    if not isinstance(source, LocalModel):
        yield None, partial(_ask, source, samples, job.settings)
        return
    batches = form_batches(samples, job.settings, source.model.has_cross_attention)
    if source.workers is not None:
        from mmprobe.traces.workers import WorkerPool, model_of_workers

        with WorkerPool(source.workers, model_of_workers(source.model), job, sink.has) as pool:
            yield pool.plan, partial(pool.answer, batches)
        return
    with job.open(source.model) as answer_batch:
        yield answer_batch.plan, partial(_answer_here, answer_batch, batches)


def _ask(
    source: Ask,
    samples: Sequence[Sample],
    settings: AskSettings,
    finished: set[str],
    interrupted: Callable[[], bool],
) -> Generator[list[Answered]]:
    with closing(source([sample for sample in samples if sample.id not in finished], settings)) as stream:
        for pair in stream:
            yield [pair]
            if interrupted():
                return


def _answer_here(
    answer_batch: BatchAnswerer,
    batches: list[list[Sample]],
    finished: set[str],
    interrupted: Callable[[], bool],
) -> Generator[list[Answered]]:
    if answer_batch.prefixes is not None:
        batches = sort_by_images(batches)
    try:
        for batch in unfinished(batches, finished):
            yield answer_batch(batch)
            if interrupted():
                break
    finally:
        answer_batch.wait()
    answer_batch.check()


def unfinished(batches: Iterable[list[Sample]], finished: set[str]) -> Iterator[list[Sample]]:
    """Yield the batches with a sample that is not finished, whole: a batch's padding changes the last digits."""
    return (batch for batch in batches if any(sample.id not in finished for sample in batch))


def form_batches(
    samples: Sequence[Sample], settings: AskSettings, separates_counts: bool = False
) -> list[list[Sample]]:
    """Return batches of samples.

    Samples with images and samples without do not share a batch, nor do those whose answers may have different lengths
    or are sampled in different ways. In families with cross-attention, samples with different numbers of images do not
    share one either: there, transformers lets text before the first image attend to all images, including the batch's
    padding. Samples about the same images are together, and then samples with the same question, whose answers have like
    lengths.

    Example:
        >>> samples = [Sample(id=name, question=f"{name}?") for name in "cab"]
        >>> [[sample.id for sample in batch] for batch in form_batches(samples, AskSettings(batch_size=2))]
        [['a', 'b'], ['c']]
    """
    size = settings.batch_size
    if size == 1:
        return [[sample] for sample in samples]

    def place(sample: Sample) -> tuple[Any, ...]:
        images = [str(path) for path in sample.files] if settings.shared_prefix else []
        return images, sample.question, sample.id

    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in sorted(samples, key=place):
        n_images = len(sample.images) if separates_counts else bool(sample.images)
        groups.setdefault((n_images, bool(sample.videos), *settings.alike(sample)), []).append(sample)
    return [
        members[first : first + size] for members in groups.values() for first in range(0, len(members), size)
    ]


@dataclass(frozen=True)
class Job:
    """How batches are answered, here or by a worker.

    Attributes:
        repeated: keys of the samples that share prefixes, if the settings let them.
        folder: where traces go; None where nothing is kept.
        recording: what is recorded; None for answers alone.
    """

    settings: AskSettings
    repeated: frozenset[PrefixKey]
    folder: Path | None
    recording: Recording | None

    @contextmanager
    def open(self, model: Model) -> Iterator[BatchAnswerer]:
        """Yield what answers batches with a model. At the end of the block all traces are written."""
        with ExitStack() as stack:
            recorder = None
            if self.recording is not None:
                assert self.folder is not None
                recorder = stack.enter_context(self.recording.open(model, self.settings, self.folder))
            yield BatchAnswerer(model, self, recorder)


class BatchAnswerer:
    """Answers batches of samples, and traces the answers if there is a recorder.

    Methods that need images do not act in samples without any, unless they are traced.

    Attributes:
        plan: what a sink of traces has to know; None without a recorder.
        settings: those of the job, with the methods that act.
        prefixes: what samples with the same images share; None to read each prompt whole.
        max_size: the most samples that were answered together without running out of memory.
    """

    def __init__(self, model: Model, job: Job, recorder: Recorder | None):
        self.model, self.job, self.recorder = model, job, recorder
        self.settings, self.max_size = job.settings, job.settings.batch_size
        self.plan = None if recorder is None else recorder.plan
        keeps_states, shares = False, self.settings.shared_prefix
        if recorder is not None:
            self.settings = self.settings.acting(recorder.methods)
            keeps_states, shares = recorder.keeps_states, recorder.shares_prefixes
        self.prefixes = None
        if shares and job.repeated:
            keeps_states = keeps_states or any(each.needs_final_states for each in self.settings.methods)
            self.prefixes = PrefixStore(model, job.repeated, keeps_states)

    def wait(self) -> None:
        """Wait until the traces of the batches are written, or one could not be."""
        if self.recorder is not None:
            self.recorder.thread.wait()

    def check(self) -> None:
        """Raise the error of a trace that could not be written."""
        if self.recorder is not None:
            self.recorder.thread.check()

    def __call__(self, samples: Sequence[Sample]) -> list[Answered]:
        """Answer samples together: fewer at a time when memory runs out, one by one when a sample fails."""
        answered, pending = self._read_chats(samples)
        max_size = self.max_size
        while pending:
            size = min(max_size, len(pending))
            try:
                answered += self._answer_together(pending[:size])
                pending = pending[size:]
            except (OSError, EndsRun):
                raise
            except Exception as error:
                if size == 1:
                    if self.job.folder is None:
                        error.add_note(f"at sample {pending[0][0].id}")
                        raise
                    answered.append((pending.pop(0)[0].id, Unanswered.of(error)))
                elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
                    self.max_size = max_size = size // 2
                    log.warning("out of memory with %d samples at a time; continuing with %d", size, max_size)
                else:
                    max_size = 1
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    doing = "answering" if self.recorder is None else "tracing"
                    log.warning("a batch of %d samples failed (%s); %s them one by one", size, reason, doing)
            if torch.cuda.is_available() and max_size < size:
                torch.cuda.empty_cache()
        return answered

    def _read_chats(self, samples: Sequence[Sample]) -> tuple[list[Answered], list[tuple[Sample, Chat]]]:
        """Return the samples that cannot be read, as failures, and the others with their chats."""
        failed: list[Answered] = []
        pending = []
        given = None if self.job.recording is None else self.job.recording.given
        for sample in samples:
            try:
                if given is not None:
                    if sample.id not in given:
                        raise InputError("no answer to it is given")
                    given[sample.id].read(self.model)
                pending.append((sample, build_chat(sample, self.model)))
            except InputError as error:
                if self.job.folder is None:
                    raise
                failed.append((sample.id, Unanswered.of(error)))
        return failed, pending

    def _answer_together(self, pending: Sequence[tuple[Sample, Chat]]) -> list[Answered]:
        samples, chats = [sample for sample, _ in pending], [chat for _, chat in pending]
        if self.recorder is None:
            methods = [each for each in self.settings.methods if samples[0].files or not each.needs_images]
            settings = self.settings.of(samples[0]).acting(methods)
            answers = generate_batch(self.model, samples, settings, self.prefixes, chats)
        else:
            answers = self.recorder.answer(samples, chats, self.settings, self.prefixes)
        answered: list[Answered] = []
        for sample, each in zip(samples, answers, strict=True):
            text = each.response if self.recorder is not None else each.response.strip()
            is_truncated = each.is_truncated(self.model)
            answered.append((sample.id, Answer(text, is_truncated, each.token_ids, each.opened)))
        return answered


class NullSink:
    """Keeps no answer."""

    @contextmanager
    def open(self, plan: RunPlan | None) -> Iterator[set[str]]:
        yield set()

    def keep(self, name: str, answer: Answer) -> None:
        pass

    def fail(self, name: str, failure: Unanswered) -> None:
        pass

    def has(self, name: str) -> bool:
        return False

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        return iter(())


class LineSink:
    """Keeps answers as lines of `responses.jsonl`."""

    def __init__(self, folder: Path, samples: Sequence[Sample]):
        self.folder, self.file = folder, folder / RESPONSES
        self.ids = [sample.id for sample in samples]
        self.answers: dict[str, Answer] = {}

    @contextmanager
    def open(self, plan: RunPlan | None) -> Iterator[set[str]]:
        make_folders(self.folder)
        if cut_torn_line(self.file):
            for _, line in json_lines(self.file):
                self.answers[line["id"]] = Answer(
                    line["response"] or "", line.get("truncated"), opened=line.get("opened", "")
                )
        drop_failures(self.folder, self.ids)
        append_lines(self.file, [])  # the call is begun, even if no answer comes
        yield self.answers.keys() & set(self.ids)
        sort_failures(self.folder, self.ids)

    def keep(self, name: str, answer: Answer) -> None:
        self.answers[name] = answer
        append_lines(self.file, [answer.line(name)], ensure_ascii=False)

    def fail(self, name: str, failure: Unanswered) -> None:
        append_failure(self.folder, name, failure)

    def has(self, name: str) -> bool:
        return name in self.answers

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        return ((name, self.answers[name]) for name in names)


def append_failure(folder: Path, name: str, failure: Unanswered) -> None:
    """Add a sample to the failures in a folder."""
    append_lines(folder / FAILURES, [{"id": name, "error": failure.error, "message": failure.message}])


def read_failures(folder: Path) -> dict[str, Any]:
    """Return the lines about the samples that failed, by id."""
    file = folder / FAILURES
    return {line["id"]: line for _, line in json_lines(file)} if cut_torn_line(file) else {}


def drop_failures(folder: Path, ids: Iterable[str]) -> None:
    """Remove samples that are tried again from the failures of an earlier call."""
    failures = read_failures(folder)
    left = [failures[name] for name in failures.keys() - set(ids)]
    _write_failures(folder, left)


def sort_failures(folder: Path, order: Sequence[str]) -> None:
    """Order the failures as the samples, each once. They are listed as they occur; others come first."""
    failures = read_failures(folder)
    place = {name: index for index, name in enumerate(order)}
    _write_failures(
        folder, [failures[name] for name in sorted(failures, key=lambda each: place.get(each, -1))]
    )


def _write_failures(folder: Path, failures: Sequence[Mapping[str, Any]]) -> None:
    if failures:
        write_atomic(folder / FAILURES, "".join(json.dumps(each) + "\n" for each in failures))
    else:
        (folder / FAILURES).unlink(missing_ok=True)


@contextmanager
def finish_batch_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed within the block.

    The first Ctrl-C raises nothing, so that the current batch can be finished. The second one raises
    KeyboardInterrupt at once. Outside the main thread, Ctrl-C is left alone.

    Example:
        >>> with finish_batch_on_interrupt() as interrupted:
        ...     interrupted()
        False
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        log.warning("stopping after this sample; Ctrl-C again stops at once")

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def _stop_run(n_finished: int, total: int) -> KeyboardInterrupt:
    """Return the interrupt that ends a run, with a message that says how far it came.

    Example:
        >>> _stop_run(28, 440)
        KeyboardInterrupt('28 of 440 samples are finished; continue with resume=True')
    """
    return KeyboardInterrupt(
        f"{n_finished} of {total} samples are finished; continue with {option('resume')}"
    )


QUESTIONS = "questions.jsonl"  # in the results of a benchmark
GivenAnswers = str | Path | Run | Mapping[str, str | Sequence[int]]
"""A file of lines, the folder of a benchmark's results or of a run, a run, or answers by id of their sample."""


class _Line(JsonRecord):
    id: str
    response: Text | None = None
    token_ids: list[int] | None = None
    opened: Text = ""


class GivenAnswer(NamedTuple):
    """One answer, as text or as token ids.

    Attributes:
        text: None where token ids are given.
        ids: token ids; None where a text is given.
        made_by: the model whose token ids they are; None if nobody knows.
    """

    text: str | None
    ids: tuple[int, ...] | None
    made_by: str | None = None

    @property
    def longest(self) -> int:
        """The largest number of tokens that it can have, whatever the tokenizer."""
        return len(self.ids) if self.ids is not None else len((self.text or "").encode())

    def read(self, model: Model) -> list[int]:
        """Return the answer's token ids.

        Token ids of another model, and texts, are tokenised by themselves and follow the prompt.

        Raises:
            InputError: the model could not have given this answer.
        """
        ids = self.ids if self.made_by in (None, model.source) else None
        if ids is None:
            ids = tuple(model.tokenizer(self.text or "", add_special_tokens=False)["input_ids"])
        if not ids:
            raise InputError("the given answer is empty")
        largest = model.hf.get_input_embeddings().num_embeddings - 1
        if not 0 <= min(ids) <= max(ids) <= largest:
            raise InputError(f"the given answer has token ids that the model lacks; they are 0 to {largest}")
        if self.made_by is not None and ids == self.ids:
            return list(ids)  # the model has given this answer
        body = ids[:-1] if ids[-1] in model.eos_token_ids else ids
        special = set(model.tokenizer.all_special_ids) | set(model.eos_token_ids)
        if found := [each for each in body if each in special]:
            token = model.tokenizer.convert_ids_to_tokens(found[0])
            raise InputError(
                f"the given answer holds the special token {token!r}, which ends or begins no answer's text"
            )
        return list(ids)


def check_length(model: Model, prompt: Prompt, ids: Sequence[int]) -> None:
    """Raise InputError if a model cannot read an answer after its prompt."""
    room = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    if room is not None and len(prompt.ids) + len(ids) > room:
        raise InputError(
            f"the given answer has {len(ids)} tokens after a prompt of {len(prompt.ids)}, and the model reads {room}"
        )


def find_given(model: Model, sample: Sample, given: Mapping[str, GivenAnswer]) -> list[int]:
    """Return the token ids of the answer that is given to a sample.

    Raises:
        InputError: none is given, or the model could not have given it.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> len(find_given(model, sample, {"a": GivenAnswer("No.", None)}))
        2
    """
    if sample.id not in given:
        raise InputError("no answer to it is given")
    ids = given[sample.id].read(model)
    check_length(model, model.prompt(sample), ids)
    return ids


def read_given_answers(source: GivenAnswers, samples: Sequence[Sample]) -> dict[str, GivenAnswer]:
    """Return the answers of samples by id. Samples without an answer are missing.

    Args:
        source: lines of `{"id", "response"}` or `{"id", "token_ids"}`; the folder of a benchmark's results; the
            folder of a run, or a run, whose token ids are taken if the same model reads them; or texts or token ids by
            id.

    Raises:
        InputError: the source cannot be read, or has no answer to any of the samples.

    Example:
        >>> read_given_answers({"a": "Yes."}, [Sample(id="a", question="Is there a star?")])["a"].text
        'Yes.'
    """
    if isinstance(source, Mapping):
        answers = {
            name: GivenAnswer(answer, None)
            if isinstance(answer, str)
            else GivenAnswer(None, tuple(map(int, answer)))
            for name, answer in source.items()
        }
        where = "answers"
    else:
        where = str(source.path if isinstance(source, Run) else source)
        answers = _read_run(source) if isinstance(source, Run) else _read_path(Path(source))
    ids = {sample.id for sample in samples}
    found = {name: answer for name, answer in answers.items() if name in ids}
    if not found:
        raise InputError(
            f"{where}: has no answer to any of the {len(samples)} samples; their ids must be the same"
        )
    return found


def answered_samples(source: str | Path) -> list[Sample]:
    """Return the samples that the answers in a folder are to: of a run, or of a benchmark's results.

    Raises:
        InputError: the folder holds neither.

    Example:
        >>> answered_samples("results/pope")                                            # doctest: +SKIP
        [Sample(id='0000-0', ...), ...]
    """
    path = Path(source)
    if (path / "run.json").is_file():
        return [trace.sample for trace in open_run(path)]
    if (path / QUESTIONS).is_file():
        return load_samples(path / QUESTIONS)
    raise InputError(f"{path}: does not say what was asked; give the samples, as --data")


def _read_path(path: Path) -> dict[str, GivenAnswer]:
    if (path / "run.json").is_file():
        return _read_run(open_run(path))
    if (path / "responses.jsonl").is_file():
        path = path / "responses.jsonl"
    elif path.is_dir():
        raise InputError(f"{path}: holds neither a run nor responses.jsonl; give a file, results or a run")
    answers: dict[str, GivenAnswer] = {}
    if (of_peer := read_answers(path)) is not None:
        return {row["id"]: GivenAnswer(row["response"] or "", None) for _, row in of_peer}
    for number, record in read_records(path, _Line):
        if record.response is None and record.token_ids is None:
            raise InputError(f"{path}, line {number}: has neither `response` nor `token_ids`")
        ids = None if record.token_ids is None else tuple(record.token_ids)
        text = record.response and record.response.removeprefix(record.opened)  # which the prompt opens again
        answers[record.id] = GivenAnswer(text, ids)
    return answers


def _read_run(run: Run) -> dict[str, GivenAnswer]:
    source = run.config.get("model", {}).get("source")
    answers = {}
    for trace in run:
        tokens = trace.tokens
        ids = tokens["id"].values[tokens["group"].values == Group.GENERATED]
        answers[trace.id] = GivenAnswer(trace.answer, tuple(np.asarray(ids).tolist()), str(source))
    return answers


def digest(answers: Mapping[str, GivenAnswer]) -> str:
    """Return a hash of the answers, which tells a second call whether they are the same.

    Example:
        >>> digest({}) == digest({"a": GivenAnswer("Yes.", None)})
        False
    """
    content = json.dumps(sorted((name, *answer) for name, answer in answers.items()))
    return hashlib.sha256(content.encode()).hexdigest()
