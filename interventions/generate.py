"""Answer samples with one or several methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, check_chat, intervene
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.models import Batch, Model
from mmprobe.models.loading import (
    build_generation_kwargs,
    use_repetition_penalty,
)
from mmprobe.models.prompt import Chat, build_batch, build_chat, decode_answer, find_opened_thought
from mmprobe.models.reading import PrefixKey, PrefixStore, SharedStart, prefix_key
from mmprobe.samples import Lengths, Sample, length_of, sampling_of

Start = Callable[[Sequence[Chat], Batch], SharedStart | None]
"""Returns where a batch of chats starts after what was read already, or None if it is read whole."""
Decode = Callable[[Batch, Mapping[str, Any], SharedStart | None], list[list[int]]]
"""Returns the token ids of each answer of a batch, given arguments of transformers' `generate`."""


@dataclass(frozen=True)
class Settings:
    """How samples are answered: by a trace, a benchmark, a comparison, a probe.

    Attributes:
        methods: what acts while the model answers; none for plain answers.
        max_new_tokens: the longest answer; or lengths by the `type` in a sample's metadata, with `other`.
        batch_size: the most samples that are answered together.
        temperature: 0 for greedy answers. A sample's own sampling (`sampling_of`) replaces it and the seed.
        seed: of the sampling and of the random numbers of methods, set again for each batch.
        repetition_penalty: None for the checkpoint's own.
        shared_prefix: whether samples with the same images share what is read of their common beginning.

    Raises:
        InputError: a value is out of range.

    Example:
        >>> Settings(max_new_tokens=64, batch_size=8).temperature
        0.0
    """

    methods: Sequence[Method] = ()
    max_new_tokens: Lengths = 256
    batch_size: int = 1
    temperature: float = 0.0
    seed: int = 0
    repetition_penalty: float | None = None
    shared_prefix: bool = True

    def __post_init__(self) -> None:
        lengths = self.max_new_tokens
        if not isinstance(lengths, int) and "other" not in lengths:
            raise InputError(f"max_new_tokens {dict(lengths)}: lacks 'other', the length of the other types")
        shortest = lengths if isinstance(lengths, int) else min(lengths.values())
        if shortest < 1:
            raise InputError(f"max_new_tokens {shortest}: must be 1 or more")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature {self.temperature}: must be a number of 0 or more")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed {self.seed}: must be 0 or more, and less than 2**63")
        penalty = self.repetition_penalty
        if penalty is not None and not 0 < penalty < math.inf:
            raise InputError(f"repetition_penalty {penalty}: must be a number above 0")
        if self.batch_size < 1:
            raise InputError(f"batch_size {self.batch_size}: must be 1 or more")

    def alike(self, sample: Sample) -> tuple[Any, ...]:
        """Return what samples have in common that can be answered together: sampling and longest answer."""
        return sampling_of(sample), length_of(sample, self.max_new_tokens)

    def of(self, sample: Sample) -> Settings:
        """Return the settings of a sample, and of those that are `alike`."""
        sampling = sampling_of(sample)
        own = {} if sampling is None else sampling._asdict()
        return replace(self, max_new_tokens=length_of(sample, self.max_new_tokens), **own)


class GeneratedAnswer(NamedTuple):
    """An answer that was generated with methods.

    Attributes:
        text: the answer without control tokens, but for marks of thoughts.
        token_ids: ids of the answer's tokens, with its end token if it has one.
        diagnostics: what each method reports, by the method's name.
        opened: the mark of a thought that the prompt opened and the answer did not close, such as `<think>`.
    """

    text: str
    token_ids: list[int]
    diagnostics: dict[str, Any]
    opened: str = ""

    @property
    def response(self) -> str:
        """The answer as readers of answers take it: a thought that was cut off has its mark, though the prompt opened it."""
        return self.opened + self.text

    def is_truncated(self, model: Model) -> bool:
        """Return whether the longest answer was reached before the model ended its answer."""
        return bool(self.token_ids) and self.token_ids[-1] not in model.eos_token_ids


def generate(
    model: Model,
    sample: Sample,
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    repetition_penalty: float | None = None,
    **parameters: Any,
) -> GeneratedAnswer:
    """Answer a sample with one or several methods.

    Args:
        model: a model from `load_model`.
        sample: a sample from `load_samples`, or one that you made.
        method: a method's name (see `METHODS`), a YAML file, a `Method`, or a sequence of these, which
            act together.
        max_new_tokens: maximum number of tokens of the answer.
        temperature: 0 decodes greedily; a value above 0 samples.
        seed: seed of the sampling and of the random numbers that a method draws.
        repetition_penalty: above 1, tokens of the prompt and the answer become less likely. None for the
            checkpoint's own.
        parameters: parameters of the method that replace its defaults.

    Returns:
        The answer. With neutral parameters it is exactly the answer of `plain`.

    Raises:
        InputError: the method or a parameter is unknown, a value is out of range, or the method cannot act on
            this model or this sample. It is raised before the model runs.

    Example:
        >>> answer = generate(model, sample, method="sage", eta=0.25)      # doctest: +SKIP
        >>> answer.text                                                    # doctest: +SKIP
        'No. There is a red circle in the second picture only.'
    """
    methods = load_methods(method, **parameters)
    settings = Settings(
        methods,
        max_new_tokens,
        temperature=temperature,
        seed=seed,
        repetition_penalty=repetition_penalty,
    )
    (answer,) = generate_batch(model, [sample], settings, _store_prefix(model, sample, methods))
    return answer


def _store_prefix(model: Model, sample: Sample, methods: Sequence[Method]) -> PrefixStore | None:
    """Return a store for the beginning of a sample's prompts if a method asks about its images several times."""
    if (
        not sample.images
        or sample.videos
        or not any(each.asks_again and not each.neutral for each in methods)
    ):
        return None
    keeps_states = any(each.needs_final_states for each in methods)
    return PrefixStore(model, frozenset([prefix_key(sample)]), keeps_states)


def generate_batch(
    model: Model,
    samples: Sequence[Sample],
    settings: Settings,
    prefixes: PrefixStore | None = None,
    chats: Sequence[Chat] | None = None,
    decode: Decode | None = None,
) -> list[GeneratedAnswer]:
    """Answer several samples in one batch.

    With a temperature above 0, an answer depends on the other samples of the batch.

    Args:
        model: a model from `load_model`.
        samples: the samples, which are `alike`; some families need the same number of images in each.
        settings: how they are answered.
        prefixes: what samples with the same images share. Prompts are read whole where a method changes how they
            are read (`Method.shares_prefix`).
        chats: those of the samples, where they are built already.
        decode: what gives the answers of a batch in place of transformers' `generate`, such as a trace's recorder.

    Returns:
        One answer for each sample, in order.

    Raises:
        InputError: as `generate` raises it.

    Example:
        >>> answers = generate_batch(model, samples, Settings(load_methods("sage")))      # doctest: +SKIP
        >>> [answer.text for answer in answers]                                           # doctest: +SKIP
        ['Yes.', 'No. The star was removed.']
    """
    if not samples:
        return []
    length, methods = length_of(samples[0], settings.max_new_tokens), settings.methods
    prompt_method = check_combination(settings)
    chats = [build_chat(sample, model) for sample in samples] if chats is None else chats
    for method in methods:
        for chat in chats:
            check_chat(method, model, chat)
    shares = all(each.neutral or each.shares_prefix for each in methods)

    def start(asked: Sequence[Chat], batch: Batch) -> SharedStart | None:
        if prefixes is None or not shares:
            return None
        return prefixes.start(_find_keys(samples, chats, asked), asked, batch)

    def ask(
        chats: Sequence[Chat],
        temperature: float = settings.temperature,
        seed: int = settings.seed,
        extra: Sequence[Method] = (),
    ) -> list[GeneratedAnswer]:
        acting = [each for each in methods if not isinstance(each, PromptMethod)]
        asked = replace(
            settings,
            methods=[*acting, *extra],
            max_new_tokens=length,
            temperature=temperature,
            seed=seed,
        )
        return _answer_chats(model, chats, asked, start, decode)

    with use_repetition_penalty(model, settings.repetition_penalty):
        if prompt_method is None:
            return ask(chats)
        return prompt_method.answer(model, chats, ask, settings.seed, length)


def check_combination(settings: Settings) -> PromptMethod | None:
    """Return the method that asks the model again, or None.

    Raises:
        InputError: it cannot be combined with the other methods, or with a temperature.
    """
    prompt_methods = [each for each in settings.methods if isinstance(each, PromptMethod)]
    if len(prompt_methods) > 1:
        names = " and ".join(each.name for each in prompt_methods)
        raise InputError(f"methods {names}: both ask the model again, so they cannot be combined; choose one")
    if not prompt_methods or prompt_methods[0].neutral:
        return None
    prompt_method = prompt_methods[0]
    others_act = any(not each.neutral for each in settings.methods if each is not prompt_method)
    if prompt_method.exclusive and (settings.temperature > 0 or others_act):
        raise InputError(
            f"method {prompt_method.name}: it decodes by itself, so no temperature and no other method can act; "
            "leave them out"
        )
    return prompt_method


def _find_keys(samples: Sequence[Sample], chats: Sequence[Chat], asked: Sequence[Chat]) -> list[PrefixKey]:
    """Return the key of each chat that is asked, by which sample its images are of; an empty one for other images.

    Args:
        chats: of the samples.
        asked: with the images of one of the chats, or with images that a method made.
    """
    keys = {
        tuple(map(id, chat.images)): prefix_key(sample) for sample, chat in zip(samples, chats, strict=True)
    }
    return [keys.get(tuple(map(id, chat.images)), ()) for chat in asked]


def _answer_chats(
    model: Model, chats: Sequence[Chat], settings: Settings, start: Start, decode: Decode | None
) -> list[GeneratedAnswer]:
    """Answer chats in one batch with methods that act while the model decodes."""
    torch.manual_seed(settings.seed)
    batch = build_batch(model, chats)
    assert isinstance(settings.max_new_tokens, int)
    options = build_generation_kwargs(model, settings.max_new_tokens, settings.temperature)
    shared = start(chats, batch)
    acting = intervene(model, settings.methods, chats, batch, settings.seed, shared)
    with torch.inference_mode(), acting as intervention:
        answers = (decode or partial(_generate, model))(batch, options | intervention.options, shared)
    return [
        make_answer(model, chat, ids, intervention.report(row, len(ids)))
        for row, (chat, ids) in enumerate(zip(chats, answers, strict=True))
    ]


def make_answer(model: Model, chat: Chat, ids: list[int], diagnostics: dict[str, Any]) -> GeneratedAnswer:
    """Return the answer to a chat from its token ids."""
    text = decode_answer(model.tokenizer, ids)
    return GeneratedAnswer(text, ids, diagnostics, find_opened_thought(model, chat, text))


def _generate(
    model: Model, batch: Batch, options: Mapping[str, Any], shared: SharedStart | None
) -> list[list[int]]:
    """Return the token ids of each answer, its end token included."""
    inputs = batch.inputs if shared is None else shared.inputs
    output = model.hf.generate(**inputs, **options)
    answers = []
    for ids in output[:, batch.inputs["input_ids"].shape[1] :].tolist():
        ends = [place for place, token in enumerate(ids, 1) if token in model.eos_token_ids]
        answers.append(ids[: ends[0] if ends else len(ids)])
    return answers
