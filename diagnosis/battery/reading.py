"""Read given answers in one forward pass: how likely each token is, and where the model looks meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.models import Model
from mmprobe.models.attention import AttentionCall, softmax_rows
from mmprobe.models.prompt import Chat
from mmprobe.models.reading import Reading, read_chats


class AnswerReading(NamedTuple):
    """An answer as the model reads it.

    Attributes:
        logprobs: log-probability of each token, [step].
        likeliest: id of the token that the model would have said, int [step].
        margins: how far each token is above the likeliest other one, nat [step]; below 0 where that is likelier.
        last: log-probability of every token at the last step, [token].
        looks: mean attention of the answer's queries to each visual token, [layer * head, visual]; None where
            it was not asked for.
    """

    logprobs: np.ndarray
    likeliest: np.ndarray
    margins: np.ndarray
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
    reading, layers = read_chats(model, chats, answers), dict[int, list[Tensor]]()
    looked = range(model.n_layers if looks else 0)
    observers = {("call", layer): partial(_keep_looks, reading, layers, layer) for layer in looked}
    return [
        AnswerReading(
            said.logprobs.cpu().numpy().astype(float),
            said.likeliest.cpu().numpy(),
            said.margins.cpu().numpy().astype(float),
            said.last.cpu().numpy(),
            torch.cat([layer[row] for layer in layers.values()]).cpu().numpy() if looks else None,
        )
        for row, said in enumerate(reading.predict(observers=observers))
    ]


def _keep_looks(reading: Reading, layers: dict[int, list[Tensor]], layer: int, call: AttentionCall) -> None:
    """Keep the mean attention of each answer's queries to its visual tokens, [head, visual]."""
    layers[layer] = []
    for number, row in enumerate(reading.rows):
        padding, queries = row.prompt.padding, row.queries
        weights = softmax_rows(call, number, slice(queries.start + padding, queries.stop + padding))
        places = torch.as_tensor(row.prompt.visual_positions + padding, device=weights.device)
        layers[layer].append(weights[:, :, places].mean(1))
