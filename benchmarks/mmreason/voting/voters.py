"""Who votes: models that are loaded here and models behind an API, which draw their answers at random."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import groupby

from mmprobe.benchmarks.core.api_models import api, is_api
from mmprobe.benchmarks.core.runner import Answer
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth, ask
from mmprobe.benchmarks.mmreason.labels import TEXT
from mmprobe.benchmarks.mmreason.voting import WITH_PICTURES, Ask
from mmprobe.interventions import generate_batch
from mmprobe.models import Model, load_model
from mmprobe.models.aliases import locate
from mmprobe.samples import Sample

TEMPERATURE = 0.7  # ours; the paper does not state how its rounds differ


def check_voters(voters: Sequence[str]) -> None:
    """Find every voter before any is asked.

    Raises:
        InputError: a model is neither known nor a folder, or an API's package or key is missing.

    Example:
        >>> check_voters(["tiny-spd"])
    """
    for voter in voters:
        if is_api(voter):
            api(voter, 1)
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
    given: Mapping[str, Answer] | None = None,
) -> Ask:
    """What `vote` asks with: each round draws answers with a seed of its own, `seed` + round.

    One local model is held at a time, and is loaded when its first question is asked.

    Args:
        truth: whose questions are asked.
        max_new_tokens: longest answer.
        temperature: of the sampling; at 0 the rounds of a local model are all alike.
        seed: what is drawn depends on it and on which questions are asked together.
        batch_size: questions that a local model answers together.
        device, dtype: of local models.
        given: voters by name that answer in a way of their own, whatever the round.

    Example:
        >>> dict(ask_voters(truth, 64)("tiny-spd", ["0001"], 1))                     # doctest: +SKIP
        {'0001': 'The star is red.'}
    """
    samples = {sample.id: sample for sample in ask(truth)}
    held: dict[str, Model] = {}

    def answers(voter: str, chosen: Sequence[Sample], turn: int) -> Generator[tuple[str, str]]:
        if given is not None and voter in given:
            return given[voter](chosen)
        if is_api(voter):
            return api(voter, max_new_tokens, temperature, seed + turn)(chosen)
        if voter not in held:
            held.clear()
            held[voter] = load_model(voter, device=device, dtype=dtype)
        return _drawn(held[voter], chosen, max_new_tokens, temperature, seed + turn, batch_size)

    def asked(voter: str, names: Sequence[str], turn: int) -> Generator[tuple[str, str]]:
        alone = {
            name: name if turn == WITH_PICTURES or name + TEXT not in samples else name + TEXT
            for name in names
        }
        whose = {sample: name for name, sample in alone.items()}
        with closing(answers(voter, [samples[alone[name]] for name in names], turn)) as found:
            for sample, text in found:
                yield whose[sample], text

    return asked


def _drawn(
    model: Model,
    samples: Sequence[Sample],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    batch_size: int,
) -> Generator[tuple[str, str]]:
    # Some families cannot mix numbers of pictures in a batch.
    in_turn = sorted(samples, key=lambda sample: len(sample.images))
    for _, alike in groupby(in_turn, key=lambda sample: len(sample.images)):
        group = list(alike)
        for start in range(0, len(group), batch_size):
            together = group[start : start + batch_size]
            found = generate_batch(
                model, together, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
            for sample, one in zip(together, found, strict=True):
                yield sample.id, one.text.strip()
