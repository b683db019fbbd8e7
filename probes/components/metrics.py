"""Metrics: one number for the logits of an answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.probes.teacher_forcing import TeacherForcing

Metric = str | tuple[str, str] | Callable[[Tensor], Tensor]
MetricFunction = Callable[[Tensor], Tensor]


def make_metric(metric: Metric, forcing: TeacherForcing, clean_logits: Tensor) -> tuple[MetricFunction, str]:
    """Return a function from logits [step, vocabulary] to one number, and its name.

    - `logprob`: log-probability of the whole answer, in nat
    - `kl`: minus the divergence of the next-token distributions from the clean ones, sum over steps, in nat.
      It is 0 for the clean logits, and so is its gradient
    - two words, such as `("Yes", "No")`: logit of the first at the first step, minus that of the second
    - any function of the logits that returns one number

    Args:
        clean_logits: of the prompt as it is, for `kl`.

    Raises:
        InputError: there is no such metric, or a word does not begin with one token that the other lacks.

    Example:
        >>> measure, name = make_metric("logprob", forcing, logits)          # doctest: +SKIP
        >>> measure(logits)                                                  # doctest: +SKIP
        tensor(-0.0312)
    """
    ids = forcing.ids
    if metric == "logprob":
        return lambda logits: logits.log_softmax(-1).gather(1, ids[:, None]).sum(), "logprob"
    if metric == "kl":
        clean = clean_logits.log_softmax(-1)
        return lambda logits: (clean.exp() * (logits.log_softmax(-1) - clean)).sum(), "kl"
    if isinstance(metric, tuple) and len(metric) == 2:
        tokenizer = forcing.model.tokenizer
        first, second = (tokenizer(word, add_special_tokens=False)["input_ids"][:1] for word in metric)
        if not first or first == second:
            raise InputError(f"metric {metric!r}: the two words must begin with different tokens")
        return lambda logits: logits[0, first[0]] - logits[0, second[0]], " - ".join(metric)
    if not callable(metric):
        raise InputError(f"metric {metric!r}: choose logprob, kl, two words, or a function of the logits")

    def measure(logits: Tensor) -> Tensor:
        value = torch.as_tensor(metric(logits))
        if value.numel() != 1:
            raise InputError(f"metric: must return one number, not {tuple(value.shape)}")
        return value.reshape(())

    return measure, getattr(metric, "__name__", "function")
