"""Hand batches to workers, each with its own model, and retry those of a worker that died.

Workers are processes of this machine or actors on the nodes of a Ray cluster: started, sent batches, listened to and
stopped.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from mmprobe.errors import InputError
from mmprobe.models import Model, load_model
from mmprobe.models.devices import has_weights
from mmprobe.models.reading import prefix_key
from mmprobe.registry import describe_error, find_plug_in
from mmprobe.samples import Sample
from mmprobe.traces.asking import (
    Answered,
    LocalModel,
    Unanswered,
    Work,
    finish_batch_on_interrupt,
)

if TYPE_CHECKING:
    from types import ModuleType

    from mmprobe.traces.run import PreparedRun


log = logging.getLogger("mmprobe")


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


class Job(Protocol):
    """What every worker does. It is sent to the workers, so it contains no model."""

    def open(self, device: str) -> AbstractContextManager[tuple[Any, Callable[[list[Sample]], Any]]]:
        """Load the model; yield what the worker reports then, and the function that works on a batch."""


class Event(NamedTuple):
    """News of a worker.

    Attributes:
        worker: its number.
        kind: `ready`, `done` (a batch), `ended`, `failed` (an error that ends the run) or `died`.
        content: the job's report, the function's result, the error, or the exit code.
    """

    worker: int
    kind: str
    content: Any


class Processes:
    """Worker processes: one a GPU, or one a group of cores where the model runs on a CPU.

    Args:
        count: number of workers.
        device: `auto`, or a device that all workers share.
    """

    def __init__(self, count: int, device: str = "auto"):
        self.count, self.device = count, device
        self.running: dict[int, tuple[BaseProcess, Connection]] = {}

    def start(self, worker: int, job: Job) -> None:
        """Start a worker, or another one in the place of one that died."""
        context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
        here, there = context.Pipe()
        arguments = (job, self._device_of(worker), self.count, there)
        process = context.Process(target=_work, args=arguments, name=f"mmprobe-worker-{worker}", daemon=True)
        with _block_interrupts():  # workers stop when they are told to
            process.start()
        there.close()
        self.running[worker] = process, here

    def _device_of(self, worker: int) -> str:
        if self.device in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{worker % torch.cuda.device_count()}"
        return self.device

    def send(self, worker: int, batch: list[Sample] | None) -> None:
        """Give a worker a batch, or None to let it end. A worker that died meanwhile is reported by `wait`."""
        with suppress(OSError):
            self.running[worker][1].send(batch)

    def wait(self) -> list[Event]:
        """Wait until a worker has something to say, and return the news."""
        by_connection = {connection: worker for worker, (_, connection) in self.running.items()}
        events = []
        for connection in wait(list(by_connection)):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            try:
                event = Event(worker, *connection.recv())
            except (EOFError, OSError):
                process = self.running[worker][0]
                process.join()
                event = Event(worker, "died", process.exitcode)
            if event.kind in ("ended", "died"):
                del self.running[worker]
            events.append(event)
        return events

    def stop(self) -> None:
        """End all workers at once."""
        for process, _ in self.running.values():
            process.kill()
            process.join()
        self.running.clear()


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Within the block, block Ctrl-C. Processes that are started there never get it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let signals through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, device: str, n_workers: int, connection: Connection) -> None:
    """Do a job, batch by batch, in this process. It stops when it is told to, not at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max((os.cpu_count() or 1) // n_workers, 1))
    for news in do_job(job, device, connection.recv):
        connection.send(news)


def do_job(job: Job, device: str, next_batch: Callable[[], list[Sample] | None]) -> Iterator[tuple[str, Any]]:
    """Do a job, batch by batch; yield the kind and the content of each `Event`."""
    try:
        with job.open(device) as (report, work_on):
            yield "ready", report
            while (batch := next_batch()) is not None:
                yield "done", work_on(batch)
        yield "ended", None
    except (InputError, OSError) as error:
        yield "failed", error
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
        yield "failed", RuntimeError(f"{find_plug_in(error) or 'a worker'}: {describe_error(error)}")


def _end_with_parent() -> None:
    """End this process when its parent is gone, even where the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


_WAIT_SECONDS = 1.0  # between looks at whether Ctrl-C was pressed
_SILENT_SECONDS = 60.0  # until a line says that no worker is ready yet
_THREAD_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


class RayActors:
    """Actors of Ray: one a GPU of the cluster, or one a node where it has no GPUs.

    All nodes need mmprobe, the model, the images and the run's folder, under the same paths.

    Args:
        address: of the cluster's head, such as `10.0.0.1:6379`; `auto` for the cluster that this machine belongs to,
            `local` for a new one on this machine.
        count: number of actors; None for one a GPU or node. Without GPUs, actors of a node share its cores.
        device: `auto`, or a device that all actors use.

    Raises:
        InputError: Ray is not installed, the cluster cannot be reached, or it has no free place for a worker.

    Example:
        >>> run = mp.trace(shapes, samples, "runs/7b", workers=RayActors("auto"))       # doctest: +SKIP
    """

    def __init__(self, address: str, count: int | None = None, device: str = "auto"):
        self.address, self.device = address, device
        self.ray = _connect(address)
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        n_gpus = int(sum(node.get("GPU", 0) for node in nodes))
        cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        self.on_gpus = n_gpus > 0 and device in ("auto", "cuda")
        if not cores:
            raise InputError(
                f"Ray cluster {address}: no node has CPU cores for workers; start one with --num-cpus"
            )
        self.count = count or (n_gpus if self.on_gpus else len(cores))
        self.cores_each = 1 if self.on_gpus else max(min(cores) // -(-self.count // len(cores)), 1)
        self.actors: dict[int, Any] = {}
        self.answers: dict[Any, int] = {}  # what each worker will say next
        self.silent_since: float | None = time.monotonic()  # None once a worker was heard, or it was said

    def start(self, worker: int, job: Job) -> None:
        """Start a worker, or another one in the place of one that died."""
        arguments = (version("mmprobe"), job, self.device, os.getcwd(), self.cores_each)
        self.actors[worker] = self._actor_class.remote(*arguments)
        self.answers[self.actors[worker].next_news.remote()] = worker

    @cached_property
    def _actor_class(self) -> Any:
        # The crew starts a dead worker anew, and knows what to retry. Ray would repeat the same call.
        return self.ray.remote(
            num_cpus=self.cores_each,
            num_gpus=int(self.on_gpus),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _thread_variables()},
        )(_Worker)

    def send(self, worker: int, batch: list[Sample] | None) -> None:
        """Give a worker a batch, or None to let it end."""
        self.answers[self.actors[worker].next_news.remote(batch)] = worker

    def wait(self) -> list[Event]:
        """Wait until a worker has something to say, and return the news; none if that takes long."""
        arrived, _ = self.ray.wait(list(self.answers), timeout=_WAIT_SECONDS)
        events = []
        for answer in arrived:
            worker = self.answers.pop(answer)
            try:
                event = Event(worker, *self.ray.get(answer))
            except self.ray.exceptions.RayError as error:
                event = self._explain_death(worker, error)
            if event.kind in ("ended", "died"):
                self._end(worker)  # one that cannot be reached any more may still run
            events.append(event)
        if events:
            self.silent_since = None
        elif self.silent_since is not None and time.monotonic() - self.silent_since > _SILENT_SECONDS:
            self.silent_since = None
            log.warning("%s", self._describe_wait())
        return events

    def _explain_death(self, worker: int, error: Exception) -> Event:
        """Return the event of a worker that died. One that could not start for an error never will."""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if "creation task" not in lines[0]:
            return Event(worker, "died", lines[0].strip())
        problem = InputError(
            f"Ray cluster {self.address}: a worker could not start ({lines[-1].strip()}); install mmprobe "
            f"{version('mmprobe')} on all nodes, and call it where no folder hides it, such as a checkout"
        )
        return Event(worker, "failed", problem)

    def _describe_wait(self) -> str:
        """Return a line that says what workers need, and what the cluster has; starting ones keep their places."""
        kind, needed = ("GPU", 1) if self.on_gpus else ("CPU", self.cores_each)
        has, free = (
            resources.get(kind, 0)
            for resources in (self.ray.cluster_resources(), self.ray.available_resources())
        )
        return (
            f"Ray cluster {self.address}: waiting for a worker to start, for {_SILENT_SECONDS:.0f} s so far; "
            f"each takes {needed} {kind}, the cluster has {has:g}, {free:g} of them free"
        )

    def _end(self, worker: int) -> None:
        with suppress(self.ray.exceptions.RayError, ValueError):
            self.ray.kill(self.actors.pop(worker))

    def stop(self) -> None:
        """End all workers at once. The connection to the cluster stays open."""
        for worker in list(self.actors):
            self._end(worker)
        self.answers.clear()


class _Worker:
    """Does a job in a process of Ray, batch by batch.

    Args:
        expected: the version of mmprobe that started it; another one ends the run.
    """

    def __init__(self, expected: str, job: Job, device: str, folder: str, n_threads: int):
        if version("mmprobe") != expected:
            raise RuntimeError(f"its node has mmprobe {version('mmprobe')}, not {expected}")
        with suppress(OSError):
            os.chdir(folder)  # where relative paths start
        torch.set_num_threads(n_threads)
        self.news = do_job(job, device, lambda: self.batch)

    def next_news(self, batch: list[Sample] | None = None) -> tuple[str, Any]:
        """Start if this is the first call, else work on a batch; return the kind and the content of the event."""
        self.batch = batch
        return next(self.news)


def _thread_variables() -> dict[str, str]:
    """Return how OpenMP's threads wait in workers: as here. Threads that spin take cores from each other."""
    chosen = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return chosen or {"OMP_WAIT_POLICY": "PASSIVE"}


def _connect(address: str) -> ModuleType:
    """Return Ray's module, connected to a cluster.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached.
    """
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's future default, said in a warning
    try:
        import ray
    except ImportError:
        raise InputError("Ray: is not installed; install it with: pip install 'mmprobe[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"Ray cluster {address}: cannot be reached ({reason}); start one with: ray start --head"
            ) from None
    return ray
