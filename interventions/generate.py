"""Answer samples with one or several methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, intervene
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.models import Batch, Model
from mmprobe.models.chat import Chat, build_chat
from mmprobe.models.generation import (
    build_generation_kwargs,
    check_generation_arguments,
    use_repetition_penalty,
)
from mmprobe.models.prompt import build_batch
from mmprobe.models.shared_prefix import PrefixKey, PrefixStore, SharedStart, prefix_key
from mmprobe.samples import Sample

Start = Callable[[Sequence[Chat], Batch], SharedStart | None]
"""Returns where a batch of chats starts after what was read already, or None if it is read whole."""


class GeneratedAnswer(NamedTuple):
    """An answer that was generated with methods.

    Attributes:
        text: the answer without special tokens.
        token_ids: ids of the answer's tokens, with its end token if it has one.
        diagnostics: what each method reports, by the method's name.
    """

    text: str
    token_ids: list[int]
    diagnostics: dict[str, Any]

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
    (answer,) = generate_batch(
        model,
        [sample],
        methods,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        repetition_penalty=repetition_penalty,
        prefixes=_store_prefix(model, sample, methods),
    )
    return answer


def _store_prefix(model: Model, sample: Sample, methods: Sequence[Method]) -> PrefixStore | None:
    """Return a store for the beginning of a sample's prompts if a method asks about its images several times."""
    if not sample.images or not any(each.asks_again and not each.neutral for each in methods):
        return None
    keeps_states = any(each.needs_final_states for each in methods)
    return PrefixStore(model, frozenset([prefix_key(sample)]), keeps_states)


def generate_batch(
    model: Model,
    samples: Sequence[Sample],
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    repetition_penalty: float | None = None,
    prefixes: PrefixStore | None = None,
    **parameters: Any,
) -> list[GeneratedAnswer]:
    """Answer several samples in one batch.

    The arguments are those of `generate`. With a temperature above 0, an answer depends on the other samples
    of the batch.

    Args:
        model: a model from `load_model`.
        samples: the samples; some families need the same number of images in each.
        prefixes: what samples with the same images share. Prompts are read whole where a method changes how they
            are read (`Method.shares_prefix`).

    Returns:
        One answer for each sample, in order.

    Raises:
        InputError: as `generate` raises it.

    Example:
        >>> [answer.text for answer in generate_batch(model, samples, "sage")]      # doctest: +SKIP
        ['Yes.', 'No. The star was removed.']
    """
    methods = load_methods(method, **parameters)
    check_generation_arguments(max_new_tokens, temperature, seed, repetition_penalty)
    if not samples:
        return []
    prompt_methods = [each for each in methods if isinstance(each, PromptMethod)]
    decoding_methods = [each for each in methods if not isinstance(each, PromptMethod)]
    if len(prompt_methods) > 1:
        names = " and ".join(each.name for each in prompt_methods)
        raise InputError(f"methods {names}: both ask the model again, so they cannot be combined; choose one")
    chats = [build_chat(sample) for sample in samples]
    for loaded_method in methods:
        for chat in chats:
            loaded_method.check_supported(model, len(chat.images), chat.name)

    shares = all(each.neutral or each.shares_prefix for each in methods)

    def start(asked: Sequence[Chat], batch: Batch) -> SharedStart | None:
        if prefixes is None or not shares:
            return None
        return prefixes.start(_find_keys(samples, chats, asked), asked, batch)

    def ask(
        chats: Sequence[Chat],
        temperature: float = temperature,
        seed: int = seed,
        extra: Sequence[Method] = (),
    ) -> list[GeneratedAnswer]:
        acting = [*decoding_methods, *extra]
        return _answer_chats(model, chats, acting, max_new_tokens, temperature, seed, start)

    if not prompt_methods or prompt_methods[0].neutral:
        with use_repetition_penalty(model, repetition_penalty):
            return ask(chats)
    prompt_method = prompt_methods[0]
    others_act = temperature > 0 or any(not each.neutral for each in decoding_methods)
    if prompt_method.exclusive and others_act:
        raise InputError(
            f"method {prompt_method.name}: it decodes by itself, so no temperature and no other method can act; "
            "leave them out"
        )
    with use_repetition_penalty(model, repetition_penalty):
        return prompt_method.answer(model, chats, ask, seed, max_new_tokens)


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
    model: Model,
    chats: Sequence[Chat],
    methods: Sequence[Method],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    start: Start,
) -> list[GeneratedAnswer]:
    """Answer chats in one batch with methods that act while the model decodes."""
    torch.manual_seed(seed)
    batch = build_batch(model, chats)
    options = build_generation_kwargs(model, max_new_tokens, temperature)
    shared = start(chats, batch)
    inputs = batch.inputs if shared is None else shared.inputs
    with torch.inference_mode(), intervene(model, methods, chats, batch, seed, shared) as intervention:
        output = model.hf.generate(**inputs, **options, **intervention.options)
    prompt_length = batch.inputs["input_ids"].shape[1]
    answers = []
    for row, ids in enumerate(output[:, prompt_length:].tolist()):
        ends = [place for place, token in enumerate(ids, 1) if token in model.eos_token_ids]
        length = ends[0] if ends else len(ids)
        text = model.tokenizer.decode(ids[:length], skip_special_tokens=True)
        answers.append(GeneratedAnswer(text, ids[:length], intervention.report(row, length)))
    return answers
