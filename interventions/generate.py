"""Answer a sample with a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, intervening
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import load_methods
from mmprobe.models import Model
from mmprobe.models.chat import Chat, build_chat
from mmprobe.models.generation import build_generation_kwargs, check_generation_arguments
from mmprobe.models.prompt import build_batch
from mmprobe.samples import Sample


class Generated(NamedTuple):
    """An answer: its text, the ids of its tokens, and what each method has to say of what it did, by its name."""

    text: str
    token_ids: list[int]
    diagnostics: dict[str, Any]


def generate(
    model: Model,
    sample: Sample,
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    **parameters: Any,
) -> Generated:
    """Answer a sample with a decoding-time method, or with several at once.

    Args:
        model: from `load_model`.
        sample: from `load_samples`, or made by hand.
        method: a name (see `method_names`), a YAML file, a method, or a sequence of these, which act together.
        max_new_tokens: longest answer.
        temperature: 0 answers greedily; above 0 samples.
        seed: of the sampling and of whatever a method draws at random.
        parameters: of the method, instead of its defaults.

    Returns:
        The answer; with neutral parameters it is exactly that of `plain`.

    Raises:
        InputError: unknown method or parameter, a value out of range, or a method that cannot act on this model or
            this sample; before the model runs.

    Example:
        >>> out = generate(model, sample, method="sage", eta=0.25)      # doctest: +SKIP
        >>> out.text                                                    # doctest: +SKIP
        'No. There is a red circle in the second picture only.'
    """
    return generate_batch(
        model,
        [sample],
        method,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        **parameters,
    )[0]


def generate_batch(
    model: Model,
    samples: Sequence[Sample],
    method: str | Path | Method | Sequence[str | Path | Method] = "plain",
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    **parameters: Any,
) -> list[Generated]:
    """Answer several samples together; as `generate`, with one answer a sample, in their order.

    What is drawn at random depends on which samples stand together.

    Args:
        samples: with as many pictures each as the others where the family cannot mix them.

    Example:
        >>> [each.text for each in generate_batch(model, samples, "sage")]      # doctest: +SKIP
        ['Yes.', 'No. The star was removed.']
    """
    methods = load_methods(method, **parameters)
    check_generation_arguments(max_new_tokens, temperature, seed)
    if not samples:
        return []
    prompting = [each for each in methods if isinstance(each, PromptMethod)]
    if len(prompting) > 1:
        names = " and ".join(each.name for each in prompting)
        raise InputError(f"methods {names}: both ask anew, so they cannot act together; choose one")
    chats = [build_chat(sample) for sample in samples]
    for each in methods:
        for chat in chats:
            each.check_supported(model, len(chat.images), chat.name)
    decoding = [each for each in methods if not isinstance(each, PromptMethod)]

    def ask(
        chats: Sequence[Chat],
        temperature: float = temperature,
        seed: int = seed,
        extra: Sequence[Method] = (),
    ) -> list[Generated]:
        return _answer(model, chats, [*decoding, *extra], max_new_tokens, temperature, seed)

    asking = [each for each in prompting if not each.neutral]
    if asking and asking[0].alone and (temperature > 0 or any(not each.neutral for each in decoding)):
        raise InputError(
            f"method {asking[0].name}: it searches by itself, so no temperature or other method can act"
        )
    return asking[0].answer(model, chats, ask, seed, max_new_tokens) if asking else ask(chats)


def _answer(
    model: Model,
    chats: Sequence[Chat],
    methods: Sequence[Method],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[Generated]:
    torch.manual_seed(seed)
    batch = build_batch(model, chats)
    options = build_generation_kwargs(model, max_new_tokens, temperature)
    with torch.inference_mode(), intervening(model, methods, chats, batch, seed) as intervention:
        output = model.hf.generate(**batch.inputs, **options, **intervention.options)
    found = []
    for row, ids in enumerate(output[:, batch.inputs["input_ids"].shape[1] :].tolist()):
        end = next((place for place, each in enumerate(ids, 1) if each in model.eos_token_ids), len(ids))
        text = model.tokenizer.decode(ids[:end], skip_special_tokens=True)
        found.append(Generated(text, ids[:end], intervention.report(row, end)))
    return found
