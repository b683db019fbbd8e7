"""Trace with several workers, each with its own model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.models import Model, load_model
from mmprobe.models.devices import has_weights
from mmprobe.models.shared_prefix import prefix_key, repeated_keys
from mmprobe.samples import Sample
from mmprobe.traces.run import RunSettings, Settings, open_part, open_tracer, prepare_run
from mmprobe.traces.run_folder import append_failure, remove_trace, sort_failures
from mmprobe.traces.scale.crew import RETRIES, Crew, SampleBatch, Workers
from mmprobe.traces.scale.packing import Packer
from mmprobe.traces.scale.shards import Part, choose_part, finish_run, open_whole


class WorkerDied(InputError):
    """A sample's worker died each time that it was asked."""


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
class TraceJob:
    """Trace batches into the run's folder.

    Attributes:
        asked: what the caller of `trace` asks for.
        repeated: keys of samples that share prefixes, if the settings let them.
    """

    choice: ModelChoice
    folder: Path
    asked: Settings
    repeated: frozenset[tuple[Any, ...]]

    @contextmanager
    def open(self, device: str) -> Iterator[tuple[RunSettings, Callable[[SampleBatch], None]]]:
        """Load the model; yield the run's settings, and the function that traces a batch."""
        model = self.choice.load(device)
        settings = prepare_run(model, self.asked)
        with open_tracer(model, settings, self.folder, self.repeated) as tracer:
            yield settings, tracer.trace


class _TraceLists:
    """The batches of a part of a run, and which of its samples are finished.

    Args:
        open_folder: opens the part's folder, given the settings, and returns the ids of the finished samples.
        packer: joins finished traces.
    """

    def __init__(
        self,
        choose: Callable[[RunSettings], Part],
        open_folder: Callable[[Part, RunSettings], set[str]],
        packer: Packer,
    ):
        self.choose, self.open_folder, self.packer = choose, open_folder, packer
        self.progress = tqdm(desc="trace", unit="sample", disable=None)

    def plan(self, report: RunSettings) -> Iterable[list[SampleBatch]]:
        self.part = self.choose(report)
        self.finished = self.open_folder(self.part, report)
        self.progress.reset(sum(map(len, self.part.batches)))
        self.progress.update(len(self.finished))
        groups: dict[tuple[Any, ...], list[SampleBatch]] = {}
        for batch in self.part.batches:
            unfinished = [sample for sample in batch if sample.id not in self.finished]
            for sample in unfinished:
                remove_trace(self.part.folder, sample.id)
            if unfinished:
                groups.setdefault(prefix_key(batch[0]), []).append(batch)
        return groups.values()

    def is_finished(self, sample: Sample) -> bool:
        run = open_run(self.part.folder)
        return sample.id in run or any(failure["id"] == sample.id for failure in run.failures)

    def count(self, batch: SampleBatch) -> None:
        """Advance the progress bar by a batch, and join traces."""
        new = {sample.id for sample in batch} - self.finished
        self.finished |= new
        self.progress.update(len(new))
        self.packer.count(len(new))

    def give_up(self, sample: Sample) -> None:
        reason = f"its worker died {RETRIES + 1} times"
        append_failure(self.part.folder, sample.id, WorkerDied(reason))


def trace_with_workers(
    choice: ModelChoice,
    samples: Sequence[Sample],
    out: Path,
    workers: Workers,
    shard: str | None,
    resume: bool,
    overwrite: bool,
    pack_every: int | None,
    asked: Settings,
) -> Run:
    """Trace samples with workers; the arguments are those of `trace`."""
    folder = choose_part(out, shard, [[sample] for sample in samples]).folder
    with ExitStack() as stack:
        lists = _TraceLists(
            lambda settings: choose_part(out, shard, settings.form_batches(samples)),
            lambda part, settings: stack.enter_context(open_part(part, settings, resume, overwrite)),
            Packer(folder, pack_every),
        )
        with lists.progress:
            job = TraceJob(choice, folder, asked, repeated_keys(samples))
            for batch, _ in Crew(workers, job, lists).results():
                lists.count(batch)
        lists.packer.finish()
        sort_failures(folder, lists.part.samples)
        run = finish_run(lists.part)
    return open_whole(lists.part, run)
