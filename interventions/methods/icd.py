"""Instruction contrastive decoding: against the same pictures under a disturbing instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import Contrast, plausible
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.parameters import number, text
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch


@dataclass(frozen=True)
class Icd(Method):
    """Logits (1 + alpha) z - alpha z', z' from the same pictures and question behind a disturbing instruction.

    Tokens of which the model itself thinks too little, z < log(beta) + max z, are left out.

    Parameters:
        alpha: 0 to 10; the paper's 1. 0 does nothing, not even the cut-off.
        beta: 0 to 1; the paper's 0.1. 0 leaves no token out.
        instruction: one of the paper's; where it stands is ours: right before the question.
    """

    name: ClassVar[str] = "icd"
    reference: ClassVar[str] = (
        "Wang et al., 2024, Mitigating hallucinations in large vision-language models with instruction contrastive "
        "decoding, equation 6"
    )
    visual: ClassVar[bool] = True

    alpha: float = number(1.0, 0, 10, "weight of the contrast")
    beta: float = number(0.1, 0, 1, "share of the largest probability below which tokens are left out")
    instruction: str = text("You are a confused object detector.", "what the second path is told")

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def begin(self, asked: MethodContext) -> MethodState:
        chats = [told(chat, self.instruction) for chat in asked.chats]
        # now, and with the same pixels: beside a cache they would be held twice
        inputs = build_batch(asked.model, chats).inputs | {"pixel_values": asked.batch.inputs["pixel_values"]}
        return Contrast(lambda: SecondPath(asked.model, inputs), self.combine)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary]."""
        return plausible((1 + self.alpha) * main - self.alpha * second, main, self.beta)


def told(chat: Chat, instruction: str) -> Chat:
    """The chat with an instruction before the first text of its user.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> told(chat, "Err.").messages[0]["content"][0]["text"]
        'Err. Why?'
    """
    messages, pending = [], True
    for message in chat.messages:
        parts = []
        for part in message["content"]:
            if pending and message["role"] == "user" and part["type"] == "text":
                part, pending = part | {"text": f"{instruction} {part['text']}"}, False
            parts.append(part)
        messages.append(message | {"content": parts})
    return chat._replace(messages=messages)
