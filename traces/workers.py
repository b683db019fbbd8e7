"""Hand batches to workers, each with its own model, and retry those of a worker that died.

Workers are actors of Ray, on this machine or on the nodes of a cluster: started, sent batches, listened to and stopped.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mmprobe.errors import InputError
from mmprobe.models import Model, load_model
from mmprobe.models.devices import has_weights
from mmprobe.models.reading import prefix_key
from mmprobe.registry import describe_error, find_plug_in
from mmprobe.samples import Sample
from mmprobe.settings import FolderSettings, ModelSettings
from mmprobe.traces.asking import Answered, Job, RunPlan, Unanswered, unfinished

if TYPE_CHECKING:
    from types import ModuleType


log = logging.getLogger("mmprobe")


RETRIES = 3  # retries of a sample after its worker died

SampleBatch = list[Sample]


class WorkerPool:
    """Workers that take batches from one list.

    A worker that dies is replaced. The unfinished samples of its newest two batches are retried, since the
    results of the newest but one may not be written yet. The first retry is in the same batch, later ones
    are one by one, so that only a sample that kills its workers is given up.

    Args:
        workers: where batches are answered.
        model: how each worker loads its model.
        job: how it answers batches.
        has: returns whether the answer to the sample of an id is kept.

    Attributes:
        plan: what a sink of traces has to know, as the first worker says; None where nothing is recorded.

    Raises:
        InputError, OSError: a worker stopped for a reason that all share, or workers die before they are ready.
    """

    def __init__(self, workers: RayActors, model: ModelSettings, job: Job, has: Callable[[str], bool]):
        self.workers, self.model, self.job, self.has = workers, model, job, has
        self.plan: RunPlan | None = None
        self.groups: deque[deque[SampleBatch]] | None = None  # None until it is known what is finished
        self.interrupted: Callable[[], bool] = lambda: False
        self.current: dict[int, deque[SampleBatch]] = {}  # the rest of the group that each worker is at
        self.sent: dict[int, deque[SampleBatch]] = {}  # the newest two batches of each worker
        self.active: set[int] = set()
        self.ready: set[int] = set()
        self.n_lost: Counter[str] = Counter()  # by sample, the workers that died with it
        self.n_failed_starts = 0
        self.failed: set[str] = set()
        self.given_up: list[Answered] = []

    def __enter__(self) -> WorkerPool:
        """Start the workers, and wait until the first one is ready."""
        try:
            for worker in range(self.workers.count):
                self._start(worker)
            while not self.ready:
                for event in self.workers.wait():
                    self._handle(event)
        except BaseException:
            self.workers.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.stop()

    def answer(
        self, batches: Iterable[SampleBatch], finished: set[str], interrupted: Callable[[], bool]
    ) -> Generator[list[Answered]]:
        """Yield the answers of each batch as soon as they are there. Batches about the same images go to one worker.

        After Ctrl-C, the batches under way are finished.

        Args:
            finished: ids of the samples that have an answer.
            interrupted: returns whether Ctrl-C was pressed.
        """
        groups: dict[tuple[Any, ...], deque[SampleBatch]] = {}
        for batch in unfinished(batches, finished):
            groups.setdefault(prefix_key(batch[0]), deque()).append(batch)
        self.groups, self.interrupted = deque(groups.values()), interrupted
        for worker in sorted(self.ready):
            self._send(worker)
        while self._has_work():
            for event in self.workers.wait():
                if event.kind == "done":
                    self.failed.update(name for name, got in event.content if isinstance(got, Unanswered))
                    yield event.content
                self._handle(event)
        yield self.given_up

    def _has_work(self) -> bool:
        """Return whether a worker is at a batch, or batches wait for one that is still starting."""
        waits = self.groups != deque() and not self.interrupted()
        return bool(self.active & self.ready) or (waits and bool(self.active))

    def _start(self, worker: int) -> None:
        self.sent[worker], self.current[worker] = deque(maxlen=2), deque()
        self.active.add(worker)
        self.workers.start(worker, self.model, self.job)

    def _handle(self, event: Event) -> None:
        worker = event.worker
        if event.kind == "ready":
            self.ready.add(worker)
            self.plan = self.plan or event.content
        elif event.kind == "failed":
            raise event.content
        elif event.kind == "ended":
            self.active.remove(worker)
        elif event.kind == "died":
            self.active.remove(worker)
            self._recover(worker, event.content)
            if self.groups != deque() and not self.interrupted():
                self._start(worker)
        if event.kind in ("ready", "done") and self.groups is not None:
            self._send(worker)

    def _send(self, worker: int) -> None:
        self.workers.send(worker, None if self.interrupted() else self._next_batch(worker))

    def _is_finished(self, sample: Sample) -> bool:
        return sample.id in self.failed or self.has(sample.id)

    def _give_up(self, sample: Sample) -> None:
        self.failed.add(sample.id)
        self.given_up.append((sample.id, Unanswered("WorkerDied", f"its worker died {RETRIES + 1} times")))

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
            unfinished = [sample for sample in batch if not self._is_finished(sample)]
            if batch is self.sent[worker][-1]:  # the one before was finished, and perhaps not written
                self.n_lost.update(sample.id for sample in unfinished)
            if all(self.n_lost[sample.id] <= 1 for sample in unfinished):
                again += [batch] if unfinished else []
                continue
            for sample in unfinished:
                if self.n_lost[sample.id] <= RETRIES:
                    again.append([sample])
                else:
                    self._give_up(sample)
        again += self.current[worker]
        if again and self.groups is not None:
            self.groups.appendleft(again)


def open_workers(folder: FolderSettings, device: str = "auto") -> RayActors | None:
    """Return the workers, or None where this process does the work. Without an address they are on this machine.

    Args:
        device: `auto`, or a device that all workers use.

    Example:
        >>> open_workers(FolderSettings(out="runs/7b")) is None
        True
    """
    if folder.one_process:
        return None
    if folder.workers is not None and not isinstance(folder.workers, int):
        return folder.workers
    return RayActors(folder.ray or "local", folder.workers, device)


def model_of_workers(model: Model) -> ModelSettings:
    """Return how workers load a model, given the one without weights: in its dtype and revision, each on its own device.

    Raises:
        InputError: the model has weights. Workers could not load them, nor what was changed in them.
    """
    if has_weights(model.hf):
        raise InputError(
            f"model {model.name}: workers load the model themselves; give one without weights, from load_shapes"
        )
    dtype = str(model.hf.dtype).removeprefix("torch.")
    return model.settings.replace(dtype=dtype, revision=model.revision)


class Event(NamedTuple):
    """News of a worker.

    Attributes:
        worker: its number.
        kind: `ready`, `done` (a batch), `ended`, `failed` (an error that ends the run) or `died`.
        content: the plan of the traces, the answers, the error, or why it died.
    """

    worker: int
    kind: str
    content: Any


def _do_job(
    model: ModelSettings, job: Job, device: str, next_batch: Callable[[], SampleBatch | None]
) -> Iterator[tuple[str, Any]]:
    """Load a model and answer batches, one by one; yield the kind and the content of each `Event`."""
    try:
        with job.open(load_model(**model.replace(device=device).chosen)) as answer_batch:
            yield "ready", answer_batch.plan
            while (batch := next_batch()) is not None:
                yield "done", answer_batch(batch)
        yield "ended", None
    except (InputError, OSError) as error:
        yield "failed", error
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
        yield "failed", RuntimeError(f"{find_plug_in(error) or 'a worker'}: {describe_error(error)}")


_WAIT_SECONDS = 1.0  # between looks at whether Ctrl-C was pressed
_SILENT_SECONDS = 60.0  # until a line says that no worker is ready yet
_THREAD_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


class RayActors:
    """Actors of Ray: one on each GPU of the cluster, or on each node where it has no GPUs.

    More actors than GPUs share these; without GPUs, actors of a node share its cores. All nodes need mmprobe, the model, the images and the run's folder, under the same paths.

    Args:
        address: of the cluster's head, such as `10.0.0.1:6379`; `auto` for the cluster that this machine belongs to,
            `local` for a new one on this machine.
        count: number of actors; None for one a GPU or node.
        device: `auto`, or a device that all actors use.

    Raises:
        InputError: Ray is not installed, the cluster cannot be reached, or it has no free place for a worker.

    Example:
        >>> run = mp.trace(shapes, samples, "runs/7b", workers=RayActors(count=2))       # doctest: +SKIP
    """

    def __init__(self, address: str = "local", count: int | None = None, device: str = "auto"):
        self.address, self.device = address, device
        self.ray = _connect(address, count)
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        n_gpus = int(sum(node.get("GPU", 0) for node in nodes))
        cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        self.on_gpus = n_gpus > 0 and device in ("auto", "cuda")
        if not cores:
            raise InputError(
                f"Ray cluster {address}: no node has CPU cores for workers; start one with --num-cpus"
            )
        self.count = count or (n_gpus if self.on_gpus else len(cores))
        self.gpus_each = min(n_gpus / self.count, 1) if self.on_gpus else 0
        self.cores_each = 1 if self.on_gpus else max(min(cores) // -(-self.count // len(cores)), 1)
        self.actors: dict[int, Any] = {}
        self.answers: dict[Any, int] = {}  # what each worker will say next
        self.silent_since: float | None = time.monotonic()  # None once a worker was heard, or it was said

    def start(self, worker: int, model: ModelSettings, job: Job) -> None:
        """Start a worker, or another one in the place of one that died."""
        arguments = (version("mmprobe"), model, job, self.device, os.getcwd(), self.cores_each)
        self.actors[worker] = self._actor_class.remote(*arguments)
        self.answers[self.actors[worker].next_news.remote()] = worker

    @cached_property
    def _actor_class(self) -> Any:
        # The pool starts a dead worker anew, and knows what to retry. Ray would repeat the same call.
        return self.ray.remote(
            num_cpus=self.cores_each,
            num_gpus=self.gpus_each,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _thread_variables()},
        )(_Worker)

    def send(self, worker: int, batch: SampleBatch | None) -> None:
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
        kind, needed = ("GPU", self.gpus_each) if self.on_gpus else ("CPU", self.cores_each)
        has, free = (
            resources.get(kind, 0)
            for resources in (self.ray.cluster_resources(), self.ray.available_resources())
        )
        return (
            f"Ray cluster {self.address}: waiting for a worker to start, for {_SILENT_SECONDS:.0f} s so far; "
            f"each takes {needed:g} {kind}, the cluster has {has:g}, {free:g} of them free"
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

    def __init__(
        self, expected: str, model: ModelSettings, job: Job, device: str, folder: str, n_threads: int
    ):
        if version("mmprobe") != expected:
            raise RuntimeError(f"its node has mmprobe {version('mmprobe')}, not {expected}")
        with suppress(OSError):
            os.chdir(folder)  # where relative paths start
        torch.set_num_threads(n_threads)
        self.news = _do_job(model, job, device, lambda: self.batch)

    def next_news(self, batch: list[Sample] | None = None) -> tuple[str, Any]:
        """Start if this is the first call, else work on a batch; return the kind and the content of the event."""
        self.batch = batch
        return next(self.news)


def _thread_variables() -> dict[str, str]:
    """Return how OpenMP's threads wait in workers: as here. Threads that spin take cores from each other."""
    chosen = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return chosen or {"OMP_WAIT_POLICY": "PASSIVE"}


def _connect(address: str, count: int | None) -> ModuleType:
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
        raise InputError(
            "workers: need Ray, which is not installed; pip install 'mmprobe[ray]', or give each of several calls "
            "a part of the samples with shard"
        ) from None
    if not ray.is_initialized():
        try:
            cores: dict[str, Any] = (
                {"num_cpus": max(os.cpu_count() or 1, count or 1)} if address == "local" else {}
            )
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **cores)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"Ray cluster {address}: cannot be reached ({reason}); start one with: ray start --head"
            ) from None
    return ray
