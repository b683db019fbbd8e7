"""Answers of a model, with few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmprobe.interventions import GeneratedAnswer, generate_batch, load_methods
from mmprobe.models import Model
from mmprobe.models.reading import PrefixStore
from mmprobe.samples import Answer, Lengths, Sample
from mmprobe.settings import AskSettings
from mmprobe.traces.asking import LocalModel, answer

OF_SETTINGS = ("temperature", "seed", "repetition_penalty", "shared_prefix", "compile")


def make_settings(
    max_new_tokens: Lengths = 256, batch_size: int = 1, method: Any = "plain", **more: Any
) -> AskSettings:
    """Return settings; what is not one of them is a parameter of the method."""
    own = {name: more.pop(name) for name in OF_SETTINGS if name in more}
    return AskSettings(
        method=load_methods(method, **more), max_new_tokens=max_new_tokens, batch_size=batch_size, **own
    )


def ask(
    source: Model | LocalModel,
    samples: Sequence[Sample],
    max_new_tokens: Lengths,
    batch_size: int = 1,
    **more: Any,
) -> dict[str, Answer]:
    """Return the answers by id."""
    return dict(answer(source, samples, None, make_settings(max_new_tokens, batch_size, **more)))


def answer_batch(
    model: Model,
    samples: Sequence[Sample],
    method: Any = "plain",
    max_new_tokens: int = 256,
    prefixes: PrefixStore | None = None,
    **more: Any,
) -> list[GeneratedAnswer]:
    """Return the answers to samples in one batch."""
    return generate_batch(model, samples, make_settings(max_new_tokens, method=method, **more), prefixes)
