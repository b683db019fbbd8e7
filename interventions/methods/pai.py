"""Pay attention to image: larger scores of visual keys, and against the same question without pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import Contrast, plausible
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.parameters import number, whole
from mmprobe.interventions.visual import Cells
from mmprobe.models.attention_bias import AttentionBias, LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch


@dataclass(frozen=True)
class Pai(Method):
    """Scores e + alpha |e| of visual keys for the query of each step, and logits gamma (s - u) + u.

    s and u are log-probabilities with and without the pictures; the second path has no changed attention, having
    no visual keys. Tokens with s < log(beta) + max s are left out, except where gamma is 1.

    Parameters:
        alpha: 0 to 10; the paper's 0.2 to 0.5, by model.
        gamma: 1 to 10; the paper's 1.1. 1 leaves the second path out.
        beta: 0 to 1; 0.1 as in the released code. 0 leaves no token out.
        first_layer: 0 to 1000, from which layer on attention is changed; 2 as in the released code.
    """

    name: ClassVar[str] = "pai"
    reference: ClassVar[str] = (
        "Liu et al., 2024, Paying more attention to image: a training-free method for alleviating hallucination in "
        "LVLMs, equations 3 and 6"
    )
    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True

    alpha: float = number(0.5, 0, 10, "share of the scores' size that is added to those of visual keys")
    gamma: float = number(1.1, 1, 10, "weight of the contrast with the text alone")
    beta: float = number(0.1, 0, 1, "share of the largest probability below which tokens are left out")
    first_layer: int = whole(2, 0, 1000, "from which layer on attention is changed")

    @property
    def neutral(self) -> bool:
        return self.alpha == 0 and self.gamma == 1

    def begin(self, asked: MethodContext) -> MethodState:
        return _Pai(self, asked)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary]."""
        with_pictures, without = main.log_softmax(-1), second.log_softmax(-1)
        combined = self.gamma * (with_pictures - without) + without
        return plausible(combined, with_pictures, self.beta)


class _Pai(Contrast):
    def __init__(self, method: Pai, asked: MethodContext):
        text = _text_alone(asked) if method.gamma > 1 else {}
        super().__init__(lambda: SecondPath(asked.model, text), method.combine)
        self.method, self.n_layers, self.step = method, asked.model.n_layers, 0
        self.cells = Cells(asked.marked(lambda prompt: prompt.visual_positions))

    def layers(self) -> Sequence[int]:
        return range(self.method.first_layer, self.n_layers) if self.method.alpha else ()

    def shift(self, layer: int, last: LastQuery) -> AttentionBias:
        visual = self.cells.on_keys(last.key.shape[2], self.step)[:, None, None]
        return AttentionBias(torch.where(visual, self.method.alpha * last.scores.abs(), 0.0))

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        self.step += 1
        return scores if self.method.gamma == 1 else super().logits(generated, scores)


def _text_alone(asked: MethodContext) -> dict[str, Tensor]:
    """Inputs of the prompts without their pictures.

    Raises:
        InputError: the family's processor cannot do without a picture.
    """
    try:
        return build_batch(asked.model, [without_pictures(chat) for chat in asked.chats]).inputs
    except (ValueError, TypeError) as error:
        raise InputError(
            f"method pai: {asked.model.family.name} cannot read a prompt without a picture "
            f"({str(error).splitlines()[0]}); gamma=1 leaves that path out"
        ) from None


def without_pictures(chat: Chat) -> Chat:
    """The texts of a chat."""
    messages = [
        message | {"content": [part for part in message["content"] if part["type"] == "text"]}
        for message in chat.messages
    ]
    return chat._replace(messages=messages, images=[])
