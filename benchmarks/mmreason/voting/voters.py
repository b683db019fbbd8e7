"""The voters: local models and models behind an API. They sample their answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing

from mmprobe.benchmarks.core.api_models import api_answerer, is_api
from mmprobe.benchmarks.core.runner import Answerer, local_answerer
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth, ask_questions
from mmprobe.benchmarks.mmreason.labels import TEXT
from mmprobe.benchmarks.mmreason.voting.votes import WITH_IMAGES, Ask
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

    def find_answerer(voter: str) -> Answerer:
        if answerers is not None and voter in answerers:
            return answerers[voter]
        if is_api(voter):
            return api_answerer(voter, max_new_tokens)
        if voter not in loaded:
            loaded.clear()
            loaded[voter] = load_model(voter, device=device, dtype=dtype)
        return local_answerer(loaded[voter], max_new_tokens, batch_size)

    def ask(voter: str, ids: Sequence[str], round_number: int) -> Generator[tuple[str, str]]:
        sampling = {"temperature": temperature, "seed": seed + round_number}
        asked: dict[str, Sample] = {}  # by question id
        for name in ids:
            text = name + TEXT
            sample = samples[text if round_number != WITH_IMAGES and text in samples else name]
            asked[name] = sample.model_copy(update={"metadata": sample.metadata | {"sampling": sampling}})
        names = {sample.id: name for name, sample in asked.items()}
        with closing(find_answerer(voter)(list(asked.values()))) as answers:
            for sample_id, text in answers:
                yield names[sample_id], text

    return ask
