"""Answer questions with several workers, each with its own model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mmprobe.benchmarks.core.benchmark import Answer
from mmprobe.benchmarks.scale.batches import GenerationSettings, answer_batches, batch_answerer
from mmprobe.models import Model
from mmprobe.models.shared_prefix import prefix_key, repeated_keys
from mmprobe.samples import Sample
from mmprobe.traces.scale.crew import RETRIES, Crew, SampleBatch, Workers
from mmprobe.traces.scale.trace_workers import ModelChoice, WorkerDied


@dataclass(frozen=True)
class AnswerJob:
    """Answer batches; `repeated` are keys of questions that share prefixes, if the settings let them."""

    choice: ModelChoice
    settings: GenerationSettings
    repeated: frozenset[tuple[Any, ...]]

    @contextmanager
    def open(self, device: str) -> Iterator[tuple[None, Callable[[SampleBatch], list[tuple[str, Answer]]]]]:
        """Load the model; yield nothing to report, and the function that answers a batch."""
        yield None, batch_answerer(self.choice.load(device), self.settings, self.repeated)


class _AnswerLists:
    """The batches to answer, and which questions have an answer."""

    def __init__(self, batches: list[SampleBatch]):
        self.batches = batches
        self.answered: set[str] = set()

    def plan(self, report: None) -> list[list[SampleBatch]]:
        groups: dict[tuple[Any, ...], list[SampleBatch]] = {}
        for batch in self.batches:
            groups.setdefault(prefix_key(batch[0]), []).append(batch)
        return list(groups.values())

    def is_finished(self, sample: Sample) -> bool:
        return sample.id in self.answered

    def give_up(self, sample: Sample) -> None:
        raise WorkerDied(
            f"question {sample.id}: its worker died {RETRIES + 1} times; what was answered is kept"
        )


def answer_with_workers(
    model: Model, settings: GenerationSettings, samples: Sequence[Sample], workers: Workers
) -> Generator[tuple[str, Answer]]:
    """Yield the id and the answer of each question. Raises WorkerDied where workers died each time."""
    job = AnswerJob(ModelChoice.of_shapes(model), settings, repeated_keys(samples))
    lists = _AnswerLists(answer_batches(samples, settings))
    for _, answers in Crew(workers, job, lists).results():
        lists.answered.update(name for name, _ in answers)
        yield from answers
