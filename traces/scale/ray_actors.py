"""Workers on the nodes of a Ray cluster: started, sent batches, listened to and stopped."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.traces.scale.processes import Event, Job, do_job

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger("mmprobe")
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
