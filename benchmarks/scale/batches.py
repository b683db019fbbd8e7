"""Batches of questions, and how a model answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Answer, Sampling, sampling_of
from mmprobe.interventions import generate_batch
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.models.shared_prefix import PrefixStore
from mmprobe.samples import Lengths, Sample, length_of


class GenerationSettings(NamedTuple):
    """How questions are answered without a trace; the fields are arguments of `local_answerer`."""

    max_new_tokens: Lengths
    batch_size: int
    methods: Sequence[Method]
    repetition_penalty: float | None
    shared_prefix: bool

    def alike(self, sample: Sample) -> tuple[int, Sampling, int]:
        """Return what is equal for questions of a batch: images, sampling, longest answer.

        Some families cannot mix numbers of images in a batch.
        """
        sampling = sampling_of(sample) or Sampling(0.0, 0)
        return len(sample.images), sampling, length_of(sample, self.max_new_tokens)


def answer_batches(samples: Iterable[Sample], settings: GenerationSettings) -> list[list[Sample]]:
    """Return the batches to answer, in the order that takes least time.

    Like questions follow each other, since their answers have like lengths. Where prompts share what was read of
    them, questions about the same images do.
    """

    def place(sample: Sample) -> tuple[Any, ...]:
        images = [str(path) for path in sample.images] if settings.shared_prefix else []
        if settings.batch_size == 1:
            return len(sample.images), images, *settings.alike(sample), sample.question
        return *settings.alike(sample), images, sample.question

    batches: list[list[Sample]] = []
    for _, members in groupby(sorted(samples, key=place), key=settings.alike):
        group = list(members)
        size = settings.batch_size
        batches += [group[first : first + size] for first in range(0, len(group), size)]
    return batches


def batch_answerer(
    model: Model, settings: GenerationSettings, repeated: frozenset[tuple[Any, ...]]
) -> Callable[[list[Sample]], list[tuple[str, Answer]]]:
    """Return a function that answers a batch.

    Args:
        repeated: keys of the questions that share prefixes, if the settings let them.
    """
    shares = settings.shared_prefix and repeated
    keeps_states = any(method.needs_final_states for method in settings.methods)
    prefixes = PrefixStore(model, repeated, keeps_states) if shares else None

    def answer_batch(batch: list[Sample]) -> list[tuple[str, Answer]]:
        n_images, sampling, length = settings.alike(batch[0])
        usable = [method for method in settings.methods if n_images or not method.needs_images]
        answers = generate_batch(
            model,
            batch,
            usable or "plain",
            max_new_tokens=length,
            repetition_penalty=settings.repetition_penalty,
            prefixes=prefixes,
            **sampling._asdict(),
        )
        pairs = zip(batch, answers, strict=True)
        return [(sample.id, Answer(each.text.strip(), each.is_truncated(model))) for sample, each in pairs]

    return answer_batch
