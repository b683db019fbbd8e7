"""Hand batches to workers, each with its own model, and retry those of a worker that died."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mmprobe.errors import InputError
from mmprobe.models import Model, load_model
from mmprobe.models.devices import has_weights
from mmprobe.models.shared_prefix import prefix_key
from mmprobe.samples import Sample
from mmprobe.traces.asking import (
    Answered,
    LocalModel,
    Unanswered,
    Work,
    finish_batch_on_interrupt,
)
from mmprobe.traces.scale.processes import Event, Job

if TYPE_CHECKING:
    from mmprobe.traces.run import PreparedRun

RETRIES = 3  # retries of a sample after its worker died

SampleBatch = list[Sample]


class Workers(Protocol):
    """Workers of any kind: `Processes` of this machine, or `RayActors` of a cluster."""

    count: int

    def start(self, worker: int, job: Job) -> None: ...
    def send(self, worker: int, batch: SampleBatch | None) -> None: ...
    def wait(self) -> list[Event]: ...
    def stop(self) -> None: ...


class Lists(Protocol):
    """What there is to do, and what is done."""

    def plan(self, report: Any) -> Iterable[list[SampleBatch]]:
        """Return groups of batches, given the first worker's report. A group's batches go to one worker."""

    def is_finished(self, sample: Sample) -> bool:
        """Return whether a sample needs no worker any more."""

    def give_up(self, sample: Sample) -> None:
        """Note that a sample's worker died too often."""


class Crew:
    """Workers that take batches from one list.

    A worker that dies is replaced. The unfinished samples of its newest two batches are retried, since the
    results of the newest but one may not be written yet. The first retry is in the same batch, later ones
    are one by one, so that only a sample that kills its workers is given up.

    Args:
        workers: where batches are worked on.
        job: what each worker does.
        lists: what there is to do.
    """

    def __init__(self, workers: Workers, job: Job, lists: Lists):
        self.workers, self.job, self.lists = workers, job, lists
        self.groups: deque[deque[SampleBatch]] | None = None  # None until a worker is ready
        self.current: dict[int, deque[SampleBatch]] = {}  # the rest of the group that each worker is at
        self.sent: dict[int, deque[SampleBatch]] = {}  # the newest two batches of each worker
        self.active: set[int] = set()
        self.ready: set[int] = set()
        self.n_lost: Counter[str] = Counter()  # by sample, the workers that died with it
        self.n_failed_starts = 0

    def results(self) -> Iterator[tuple[SampleBatch, Any]]:
        """Work through all batches, and yield each with its result as soon as it is there.

        After Ctrl-C, the batches under way are finished, and KeyboardInterrupt is raised.

        Raises:
            InputError, OSError: a worker stopped for a reason that all share, or workers die before they
                are ready.
        """
        try:
            with finish_batch_on_interrupt() as interrupted:
                for worker in range(self.workers.count):
                    self._start(worker)
                while self._has_work(interrupted):
                    for event in self.workers.wait():
                        if event.kind == "done":
                            yield self.sent[event.worker][-1], event.content
                        self._handle(event, interrupted)
                if interrupted():
                    raise KeyboardInterrupt
        finally:
            self.workers.stop()

    def _has_work(self, interrupted: Callable[[], bool]) -> bool:
        """Return whether a worker is at a batch, or batches wait for one that is still starting."""
        waits = self.groups != deque() and not interrupted()
        return bool(self.active & self.ready) or (waits and bool(self.active))

    def _start(self, worker: int) -> None:
        self.sent[worker], self.current[worker] = deque(maxlen=2), deque()
        self.active.add(worker)
        self.workers.start(worker, self.job)

    def _handle(self, event: Event, interrupted: Callable[[], bool]) -> None:
        worker = event.worker
        if event.kind == "ready":
            self.ready.add(worker)
            if self.groups is None:
                self.groups = deque(deque(group) for group in self.lists.plan(event.content))
        elif event.kind == "failed":
            raise event.content
        elif event.kind == "ended":
            self.active.remove(worker)
        elif event.kind == "died":
            self.active.remove(worker)
            self._recover(worker, event.content)
            if self.groups != deque() and not interrupted():
                self._start(worker)
        if event.kind in ("ready", "done"):
            self.workers.send(worker, None if interrupted() else self._next_batch(worker))

    def _next_batch(self, worker: int) -> SampleBatch | None:
        assert self.groups is not None
        if not self.current[worker] and self.groups:
            self.current[worker] = self.groups.popleft()
        if not self.current[worker]:
            return None
        batch = self.current[worker].popleft()
        self.sent[worker].append(batch)
        return batch

    def _recover(self, worker: int, reason: object) -> None:
        """Put what a dead worker left back into the list.

        Args:
            reason: of its death; an exit code or a text.
        """
        if worker not in self.ready:
            self.n_failed_starts += 1
            if self.n_failed_starts > RETRIES:
                known = reason if isinstance(reason, str) else f"exit code {reason}"
                raise InputError(
                    f"workers die before they are ready ({known}); if memory is short, use fewer"
                )
            return
        self.ready.discard(worker)
        again: deque[SampleBatch] = deque()
        for batch in self.sent[worker]:
            unfinished = [sample for sample in batch if not self.lists.is_finished(sample)]
            if batch is self.sent[worker][-1]:  # the one before was finished, and perhaps not written
                self.n_lost.update(sample.id for sample in unfinished)
            if all(self.n_lost[sample.id] <= 1 for sample in unfinished):
                again += [batch] if unfinished else []
                continue
            for sample in unfinished:
                if self.n_lost[sample.id] <= RETRIES:
                    again.append([sample])
                else:
                    self.lists.give_up(sample)
        again += self.current[worker]
        if again and self.groups is not None:
            self.groups.appendleft(again)


@dataclass(frozen=True)
class ModelChoice:
    """How each worker loads the model.

    Attributes:
        name: alias, local folder or hub id.
    """

    name: str
    dtype: str
    revision: str | None

    @classmethod
    def of_shapes(cls, model: Model) -> ModelChoice:
        """Return the choice of a model that was loaded without weights.

        Raises:
            InputError: the model has weights. Workers could not load them, nor what was changed in them.
        """
        if has_weights(model.hf):
            raise InputError(
                f"model {model.name}: workers load the model themselves; give one without weights, from load_shapes"
            )
        return cls(model.name, str(model.hf.dtype).removeprefix("torch."), model.revision)

    def load(self, device: str) -> Model:
        """Load the model."""
        return load_model(self.name, device=device, dtype=self.dtype, revision=self.revision)


@dataclass(frozen=True)
class AnswerJob:
    """Answer batches with a model of its own."""

    choice: ModelChoice
    work: Work

    @contextmanager
    def open(
        self, device: str
    ) -> Iterator[tuple[PreparedRun | None, Callable[[SampleBatch], list[Answered]]]]:
        """Load the model; yield its recorder, and the function that answers a batch."""
        with self.work.open(self.choice.load(device)) as opened:
            yield opened


class _Batches:
    """The batches to answer, and which of their samples are finished.

    Args:
        begin: opens the folder, and returns the ids of the finished samples.
    """

    def __init__(self, batches: list[SampleBatch], begin: Callable[..., set[str]], keeper: Any):
        self.batches, self.begin, self.keeper = batches, begin, keeper
        self.failed: set[str] = set()
        self.given_up: list[Answered] = []

    def plan(self, report: PreparedRun | None) -> Iterable[list[SampleBatch]]:
        finished = self.begin(report)
        groups: dict[tuple[Any, ...], list[SampleBatch]] = {}
        for batch in self.batches:
            if any(sample.id not in finished for sample in batch):
                groups.setdefault(prefix_key(batch[0]), []).append(batch)
        return groups.values()

    def is_finished(self, sample: Sample) -> bool:
        return sample.id in self.failed or self.keeper.is_kept(sample.id)

    def give_up(self, sample: Sample) -> None:
        self.failed.add(sample.id)
        self.given_up.append((sample.id, Unanswered("WorkerDied", f"its worker died {RETRIES + 1} times")))


def answer_with_workers(
    source: LocalModel,
    work: Work,
    batches: list[SampleBatch],
    begin: Callable[..., set[str]],
    keeper: Any,
) -> Iterator[list[Answered]]:
    """Yield the answers of each batch; the arguments are those of `mmprobe.traces.asking`."""
    assert source.workers is not None
    lists = _Batches(batches, begin, keeper)
    job = AnswerJob(ModelChoice.of_shapes(source.model), work)
    for _, answered in Crew(source.workers, job, lists).results():
        lists.failed.update(name for name, got in answered if isinstance(got, Unanswered))
        yield answered
    yield lists.given_up
