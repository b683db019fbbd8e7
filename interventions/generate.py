"""Answer samples with one or several methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, check_chat, intervene
from mmprobe.interventions.prompt_method import PromptMethod, Start
from mmprobe.models import Batch, Model
from mmprobe.models.compiled import use_compiled
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import (
    build_generation_kwargs,
    use_repetition_penalty,
)
from mmprobe.models.prompt import Chat, build_batch, build_chat, decode_answer, find_opened_thought
from mmprobe.models.reading import PrefixKey, PrefixStore, SharedStart, prefix_key
from mmprobe.samples import Sample, length_of, with_template
from mmprobe.settings import AskSettings, GenerateArgs, MethodSource, sort_settings

Decode = Callable[[Batch, Mapping[str, Any], SharedStart | None], list[list[int]]]
"""Returns the token ids of each answer of a batch, given arguments of transformers' `generate`."""


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
    model: Model, sample: Sample, method: MethodSource = "plain", **settings: Unpack[GenerateArgs]
) -> GeneratedAnswer:
    """Answer a sample with one or several methods.

    Args:
        model: a model from `load_model`.
        sample: a sample from `load_samples`, or one that you made.
        method: a method's name (see `METHODS`), a YAML file, a `Method`, or a sequence of these, which
            act together.
        settings: fields of `AskSettings`, such as `max_new_tokens` (256) and `temperature` (0.0, greedy); and parameters of
            the method that replace its defaults.

    Returns:
        The answer. With neutral parameters it is exactly the answer of `plain`.

    Raises:
        InputError: the method, a setting or a parameter is unknown, a value is out of range, or the method cannot act on
            this model or this sample. It is raised before the model runs.

    Example:
        >>> answer = generate(model, sample, method="sage", eta=0.25)      # doctest: +SKIP
        >>> answer.text                                                    # doctest: +SKIP
        'No. There is a red circle in the second picture only.'
    """
    (asking,) = sort_settings(generate, {**settings, "method": method}, AskSettings)
    (sample,) = with_template([sample], asking.template)
    (answer,) = generate_batch(model, [sample], asking, _store_prefix(model, sample, asking))
    return answer


def _store_prefix(model: Model, sample: Sample, asking: AskSettings) -> PrefixStore | None:
    """Return a store for the beginning of a sample's prompts if a method asks about its images several times."""
    methods, has_images = asking.methods, bool(sample.images) and not sample.videos
    if (
        not asking.shared_prefix
        or not has_images
        or not any(each.asks_again and not each.neutral for each in methods)
    ):
        return None
    keeps_states = any(each.needs_final_states for each in methods)
    return PrefixStore(model, frozenset([prefix_key(sample)]), keeps_states)


def generate_batch(
    model: Model,
    samples: Sequence[Sample],
    settings: AskSettings,
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
        >>> answers = generate_batch(model, samples, AskSettings(method="sage"))            # doctest: +SKIP
        >>> [answer.text for answer in answers]                                           # doctest: +SKIP
        ['Yes.', 'No. The star was removed.']
    """
    if not samples:
        return []
    length, methods = length_of(samples[0], settings.lengths), settings.methods
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

    acting = [each for each in methods if not isinstance(each, PromptMethod)]
    ask = _Asker(model, settings.acting(acting).replace(max_new_tokens=length), start, decode)
    with use_repetition_penalty(model, settings.repetition_penalty):
        if prompt_method is None:
            return ask(chats)
        return prompt_method.answer(model, chats, ask, settings.seed or 0, length)


@dataclass(frozen=True)
class _Asker:
    """Answers chats as the settings say: an `AskFunction`."""

    model: Model
    settings: AskSettings
    start: Start
    decode: Decode | None

    def __call__(
        self,
        chats: Sequence[Chat],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        extra: Sequence[Method] = (),
    ) -> list[GeneratedAnswer]:
        own = self.settings
        asked = own.acting([*own.methods, *extra]).replace(
            temperature=own.temperature if temperature is None else temperature,
            seed=own.seed if seed is None else seed,
        )
        return _answer_chats(self.model, chats, asked, self.start, self.decode)


def check_combination(settings: AskSettings) -> PromptMethod | None:
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
    """Return each chat's prefix key; empty if its images are no sample's.

    Args:
        chats: of the samples.
        asked: with the images of one of the chats, or with images that a method made.
    """
    keys = {
        tuple(map(id, chat.images)): prefix_key(sample) for sample, chat in zip(samples, chats, strict=True)
    }
    return [keys.get(tuple(map(id, chat.images)), ()) for chat in asked]


def _answer_chats(
    model: Model, chats: Sequence[Chat], settings: AskSettings, start: Start, decode: Decode | None
) -> list[GeneratedAnswer]:
    """Answer chats in one batch with methods that act while the model decodes."""
    seed, length = settings.seed or 0, settings.lengths
    torch.manual_seed(seed)
    batch = build_batch(model, chats)
    assert isinstance(length, int)
    options = build_generation_kwargs(model, length, settings.temperature)
    shared = start(chats, batch)
    acts = any(not each.neutral for each in settings.methods)
    acting = intervene(model, settings.methods, chats, batch, seed, shared)
    watching = watch_finite(model, batch.inputs, samples=settings.temperature > 0)
    with torch.inference_mode(), acting as intervention, watching:
        generates = partial(_generate, model, settings.compile and not acts)
        answers = (decode or generates)(batch, options | intervention.options, shared)
    return [
        make_answer(model, chat, ids, intervention.report(row, len(ids)))
        for row, (chat, ids) in enumerate(zip(chats, answers, strict=True))
    ]


def make_answer(model: Model, chat: Chat, ids: list[int], diagnostics: dict[str, Any]) -> GeneratedAnswer:
    """Return the answer to a chat from its token ids."""
    text = decode_answer(model.tokenizer, ids)
    return GeneratedAnswer(text, ids, diagnostics, find_opened_thought(model, chat, text))


def _generate(
    model: Model, compiled: bool, batch: Batch, options: Mapping[str, Any], shared: SharedStart | None
) -> list[list[int]]:
    """Return the token ids of each answer, its end token included."""
    inputs = batch.inputs if shared is None else shared.inputs
    with use_compiled(model, inputs, options, compiled) as arguments:
        output = model.hf.generate(**arguments)
    answers = []
    for ids in output[:, batch.inputs["input_ids"].shape[1] :].tolist():
        ends = [place for place, token in enumerate(ids, 1) if token in model.eos_token_ids]
        answers.append(ids[: ends[0] if ends else len(ids)])
    return answers
