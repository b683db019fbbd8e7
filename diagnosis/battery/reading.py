"""Read given answers in one forward pass: how likely each token is, and where the model looks meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.models import Model
from mmprobe.models.attention import AttentionCall, observe_attention
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch
from mmprobe.probes.interchange.answer_logprobs import read_logits


class AnswerReading(NamedTuple):
    """An answer as the model reads it.

    Attributes:
        logprobs: log-probability of each token, [step].
        likeliest: id of the token that the model would have said, int [step].
        last: log-probability of every token at the last step, [token].
        looks: mean attention of the answer's queries to each visual token, [layer * head, visual]; None where
            it was not asked for.
    """

    logprobs: np.ndarray
    likeliest: np.ndarray
    last: np.ndarray
    looks: np.ndarray | None = None


def read_answers(
    model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]], looks: bool = False
) -> list[AnswerReading]:
    """Return the reading of each answer after its chat, all in one forward pass.

    Args:
        chats: all of them with equally many images.
        answers: token ids, at least one each.
        looks: also return the attention to the images. Not for models with cross-attention.
    """
    maps: list[np.ndarray | None] = [None] * len(chats)
    if looks:
        with _observe_looks(model, chats, answers) as layers:
            logits = read_logits(model, chats, answers)
        maps = [torch.cat([layer[row] for layer in layers]).cpu().numpy() for row in range(len(chats))]
    else:
        logits = read_logits(model, chats, answers)
    readings = []
    for row, answer, seen in zip(logits, answers, maps, strict=True):
        logprobs = row[: len(answer)].log_softmax(-1)
        own = logprobs.gather(1, torch.as_tensor(answer)[:, None])[:, 0]
        readings.append(
            AnswerReading(own.numpy().astype(float), logprobs.argmax(-1).numpy(), logprobs[-1].numpy(), seen)
        )
    return readings


@contextmanager
def _observe_looks(
    model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]]
) -> Iterator[list[list[Tensor]]]:
    """Within the block, collect the attention to the images: by layer and answer [head, visual]."""
    layers: list[list[Tensor]] = []
    prompts = build_batch(model, chats).prompts
    places = [torch.as_tensor(prompt.visual_positions + prompt.padding) for prompt in prompts]
    longest = max(map(len, answers))

    def collect(call: AttentionCall) -> None:
        first = call.query.shape[2] - longest - 1
        rows = []
        for row, (answer, visual) in enumerate(zip(answers, places, strict=True)):
            steps = slice(first, first + len(answer))
            weights = _attention_rows(call, row, steps)
            rows.append(weights[:, :, visual.to(weights.device)].mean(1))
        layers.append(rows)

    attentions = [model.family.parts(layer).attention for layer in model.family.decoder(model.hf).layers]
    with observe_attention([model.hf.config.get_text_config()], dict.fromkeys(attentions, collect)):
        yield layers


def _attention_rows(call: AttentionCall, row: int, steps: slice) -> Tensor:
    """Return the attention weights of some queries of one answer, [head, step, key]."""
    query, key = call.query[row, :, steps].float(), call.key[row].float()
    key = key.repeat_interleave(len(query) // len(key), 0)
    scores = query @ key.transpose(1, 2) * call.scale
    if call.mask is None:
        visible = torch.ones(call.query.shape[2], key.shape[1], dtype=torch.bool, device=key.device).tril()
        return scores.masked_fill(~visible[steps], -torch.inf).softmax(-1)
    mask = call.mask[row if len(call.mask) > 1 else 0][:, steps]
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)
