"""Workers: processes that take batches from one list make the run of one process, even where they are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.datasets import read_datasets

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.models.loading import load_shapes
from mmprobe.samples import Sample
from mmprobe.traces import Processes
from mmprobe.traces.workers import Crew, Event, Job


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

    def start(self, worker: int, job: Job) -> None:
        self.unwritten[worker] = []
        self.events.append(Event(worker, "ready", "report"))

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
        self.events.append(Event(worker, "done" if batch else "ended", None))

    def wait(self) -> list[Event]:
        return [self.events.pop(self.rng.randrange(len(self.events)))]

    def stop(self) -> None:
        pass


class GroupsOfThree:
    """Batches of two samples in groups of three, some of which are finished."""

    def __init__(self, workers: MortalWorkers):
        self.workers, self.given_up = workers, []
        samples = [Sample(id=f"s{index:02}", question="?") for index in range(30)]
        batches = [samples[first : first + 2] for first in range(0, 30, 2)]
        self.ids = [sample.id for sample in samples]
        self.groups = [batches[first : first + 3] for first in range(0, 15, 3)]

    def plan(self, report: Any) -> list[list[list[Sample]]]:
        assert report == "report"
        return self.groups

    def is_finished(self, sample: Sample) -> bool:
        return sample.id in self.workers.written

    def give_up(self, sample: Sample) -> None:
        self.given_up.append(sample.id)


@pytest.mark.parametrize("killers", [set(), {"s07", "s20"}], ids=["random deaths", "deadly samples"])
def test_nothing_is_lost_when_workers_die(killers):
    """So few workers die at random that no innocent sample is part of four deaths."""
    for seed in range(40):
        workers = MortalWorkers(3, seed, 2 if killers else 3, killers)
        lists = GroupsOfThree(workers)
        list(Crew(workers, None, lists).results())
        assert sorted(lists.given_up) == sorted(killers)
        assert sorted({*workers.written, *killers}) == lists.ids
        if not workers.deaths and not killers:
            assert len(workers.written) <= 30 + 3 * 4, "only the newest two batches are asked again"


def test_ctrl_c_stops_all_workers_behind_their_batches():
    workers = MortalWorkers(3, 0, 0, set(), interrupt_at=6)
    with pytest.raises(KeyboardInterrupt):
        list(Crew(workers, None, GroupsOfThree(workers)).results())
    assert 6 <= len(workers.written) <= 2 * 8


class StillbornWorkers(MortalWorkers):
    def start(self, worker: int, job: Job) -> None:
        self.events.append(Event(worker, "died", -9))


def test_workers_that_never_start_end_the_run():
    workers = StillbornWorkers(2, 0, 0, set())
    with pytest.raises(
        InputError, match="workers die before they are ready .exit code -9.; if memory is short, use fewer"
    ):
        list(Crew(workers, None, GroupsOfThree(workers)).results())


def test_a_model_with_weights_is_refused(tiny_spd, tmp_path):
    sample = Sample(id="a", question="Is there a star?")
    with pytest.raises(InputError, match="give one without weights, from load_shapes"):
        mp.trace(tiny_spd, [sample], tmp_path / "run", workers=Processes(2))
    assert not (tmp_path / "run").exists()


class OneIsKilled(Processes):
    """Worker processes, one of which is killed when the first trace is there."""

    def __init__(self, count: int, out: Path):
        super().__init__(count, "cpu")
        self.out, self.exit_codes = out, []

    def start(self, worker: int, job: Job) -> None:
        super().start(worker, job)
        if worker == 0 and not self.exit_codes:
            threading.Thread(target=self.kill, args=(self.running[worker][0].pid,), daemon=True).start()

    def kill(self, process: int) -> None:
        while not list(self.out.glob("samples/*.h5")):
            time.sleep(0.005)
        os.kill(process, signal.SIGKILL)

    def wait(self) -> list[Event]:
        events = super().wait()
        self.exit_codes += [event.content for event in events if event.kind == "died"]
        return events


@pytest.mark.stress
def test_a_run_with_a_killed_worker_is_that_of_one_process(tiny_spd, tmp_path):
    data = make_pairs(tmp_path / "pairs", n=4, seed=5)
    samples = mp.load_samples(data)
    gone = samples[3].model_copy(update={"images": [tmp_path / "gone.png"]})
    samples[3] = gone
    options = {"max_new_tokens": 12, "batch_size": 2}
    whole = mp.trace(tiny_spd, samples, tmp_path / "whole", **options)
    shapes, workers = load_shapes("tiny-spd", device="cpu"), OneIsKilled(2, tmp_path / "run")
    run = mp.trace(shapes, samples, tmp_path / "run", workers=workers, **options)
    assert workers.exit_codes == [-signal.SIGKILL]
    for name in ("run.json", "failures.jsonl"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert run.ids == whole.ids and {path.name for path in run.path.iterdir()} == {
        *("run.json", "failures.jsonl", "samples")
    }
    for name in run.ids:
        assert read_datasets(run[name].file) == read_datasets(whole[name].file)
