"""The voters: local models and models behind an API. They sample their answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import groupby

from mmprobe.benchmarks.core.api_models import api_answerer, is_api
from mmprobe.benchmarks.core.runner import Answerer
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth, ask_questions
from mmprobe.benchmarks.mmreason.labels import TEXT
from mmprobe.benchmarks.mmreason.voting.votes import WITH_IMAGES, Ask
from mmprobe.interventions import generate_batch
from mmprobe.models import Model, load_model
from mmprobe.models.aliases import locate
from mmprobe.samples import Sample

TEMPERATURE = 0.7  # ours; the paper does not state how its rounds differ


def check_voters(voters: Sequence[str]) -> None:
    """Check that every voter exists, before any is asked.

    Raises:
        InputError: a model is neither known nor a folder, or the package or key of an API is missing.
    """
    for voter in voters:
        if is_api(voter):
            api_answerer(voter, 1)
        else:
            locate(voter)


def ask_voters(
    truth: MMReasonTruth,
    max_new_tokens: int,
    temperature: float = TEMPERATURE,
    seed: int = 0,
    batch_size: int = 1,
    device: str = "auto",
    dtype: str = "auto",
    answerers: Mapping[str, Answerer] | None = None,
) -> Ask:
    """Return the function that asks voters. Each round samples with its own seed, `seed` + round.

    Only one local model is in memory at a time. It is loaded with its first question.
    """
    samples = {sample.id: sample for sample in ask_questions(truth)}
    loaded: dict[str, Model] = {}

    def answer(voter: str, voter_samples: Sequence[Sample], round_number: int) -> Generator[tuple[str, str]]:
        if answerers is not None and voter in answerers:
            return answerers[voter](voter_samples)
        if is_api(voter):
            return api_answerer(voter, max_new_tokens, temperature, seed + round_number)(voter_samples)
        if voter not in loaded:
            loaded.clear()
            loaded[voter] = load_model(voter, device=device, dtype=dtype)
        return _generate_answers(
            loaded[voter], voter_samples, max_new_tokens, temperature, seed + round_number, batch_size
        )

    def ask(voter: str, ids: Sequence[str], round_number: int) -> Generator[tuple[str, str]]:
        question_ids = {}  # by sample id
        for name in ids:
            has_text_sample = name + TEXT in samples
            sample_id = name + TEXT if round_number != WITH_IMAGES and has_text_sample else name
            question_ids[sample_id] = name
        voter_samples = [samples[sample_id] for sample_id in question_ids]
        with closing(answer(voter, voter_samples, round_number)) as answers:
            for sample_id, text in answers:
                yield question_ids[sample_id], text

    return ask


def _generate_answers(
    model: Model,
    samples: Sequence[Sample],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    batch_size: int,
) -> Generator[tuple[str, str]]:
    # Some families cannot mix numbers of images in a batch.
    by_image_count = sorted(samples, key=lambda sample: len(sample.images))
    for _, members in groupby(by_image_count, key=lambda sample: len(sample.images)):
        group = list(members)
        for start in range(0, len(group), batch_size):
            batch = group[start : start + batch_size]
            generations = generate_batch(
                model, batch, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
            for sample, generation in zip(batch, generations, strict=True):
                yield sample.id, generation.text.strip()
