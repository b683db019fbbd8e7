"""Workers take batches from one list, and lose nothing where they die."""

from __future__ import annotations

import os
import random
import signal

import pytest

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.traces import RayActors
from mmprobe.traces.asking import RunPlan, finish_batch_on_interrupt
from mmprobe.traces.workers import Event, WorkerPool

PLAN = RunPlan({}, 0)


class MortalWorkers:
    """Workers without processes. Some die, at random or over one sample.

    A batch's results are written when the next batch is there, as a worker's writing thread may do it.
    """

    def __init__(self, count: int, seed: int, deaths: int, killers: set[str], interrupt_at: int = -1):
        self.count, self.rng, self.deaths, self.killers = count, random.Random(seed), deaths, killers
        self.events: list[Event] = []
        self.unwritten: dict[int, list[Sample]] = {}
        self.written: list[str] = []
        self.n_batches, self.interrupt_at = 0, interrupt_at

    def start(self, worker: int, model: None, job: None) -> None:
        self.unwritten[worker] = []
        self.events.append(Event(worker, "ready", PLAN))

    def send(self, worker: int, batch: list[Sample] | None) -> None:
        self.n_batches += 1
        if self.n_batches == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        dies = self.deaths > 0 and self.rng.random() < 0.3
        if dies or {sample.id for sample in batch or []} & self.killers:
            self.deaths -= dies
            if self.rng.random() < 0.5:
                self.written += [sample.id for sample in self.unwritten[worker]]
            self.events.append(Event(worker, "died", -9))
            return
        self.written += [sample.id for sample in self.unwritten[worker]]
        self.unwritten[worker] = batch or []
        self.events.append(Event(worker, "done" if batch else "ended", []))

    def wait(self) -> list[Event]:
        return [self.events.pop(self.rng.randrange(len(self.events)))]

    def stop(self) -> None:
        pass


SAMPLES = [Sample(id=f"s{index:02}", images=[f"{index // 6}.png"], question="?") for index in range(30)]
BATCHES = [SAMPLES[first : first + 2] for first in range(0, 30, 2)]  # in groups of three


def work(workers: MortalWorkers, finished: set[str] = frozenset()) -> list[str]:
    """Let workers answer all batches, and return the ids of the samples that are given up."""
    with (
        finish_batch_on_interrupt() as interrupted,
        WorkerPool(workers, None, None, lambda name: name in workers.written) as pool,
    ):
        assert pool.plan is PLAN
        answered = [pair for pairs in pool.answer(BATCHES, finished, interrupted) for pair in pairs]
    assert all(failure.error == "WorkerDied" for _, failure in answered)
    return [name for name, _ in answered]


@pytest.mark.parametrize("killers", [set(), {"s07", "s20"}], ids=["random deaths", "deadly samples"])
def test_nothing_is_lost_when_workers_die(killers):
    """So few workers die at random that no innocent sample is part of four deaths."""
    for seed in range(40):
        workers = MortalWorkers(3, seed, 2 if killers else 3, killers)
        assert sorted(work(workers)) == sorted(killers)
        assert sorted({*workers.written, *killers}) == [sample.id for sample in SAMPLES]
        if not workers.deaths and not killers:
            assert len(workers.written) <= 30 + 3 * 4, "only the newest two batches are asked again"


def test_finished_batches_are_not_answered_again():
    workers = MortalWorkers(2, 0, 0, set())
    assert work(workers, {sample.id for sample in SAMPLES[:9]}) == []
    assert sorted(workers.written) == [sample.id for sample in SAMPLES[8:]]


def test_ctrl_c_stops_all_workers_behind_their_batches():
    workers = MortalWorkers(3, 0, 0, set(), interrupt_at=6)
    assert work(workers) == []
    assert 6 <= len(workers.written) <= 2 * 8


class StillbornWorkers(MortalWorkers):
    def start(self, worker: int, model: None, job: None) -> None:
        self.events.append(Event(worker, "died", -9))


def test_workers_that_never_start_end_the_run():
    workers = StillbornWorkers(2, 0, 0, set())
    with pytest.raises(InputError, match="exit code -9"):
        work(workers)


def test_a_model_with_weights_is_refused(tiny_spd, tmp_path):
    sample = Sample(id="a", question="Is there a star?")
    with pytest.raises(InputError, match="load_shapes"):
        mp.trace(tiny_spd, [sample], tmp_path / "run", workers=RayActors(count=2))
    assert not (tmp_path / "run").exists()
