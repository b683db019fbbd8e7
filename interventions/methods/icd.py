"""ICD, instruction contrastive decoding: contrast with the same images under a disturbing instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import (
    ContrastPath,
    ContrastState,
    begin_with_same_images,
    mask_implausible,
)
from mmprobe.interventions.registry import number, text
from mmprobe.models.prompt import Chat, build_batch


@dataclass(frozen=True)
class Icd(Method):
    """Logits (1 + alpha) z - alpha z' (equation 6).

    z are the model's logits. z' are its logits for the same images and question with a disturbing instruction
    before the question. Tokens with z < max z + log(beta) are excluded.

    Parameters:
        alpha: 0 to 10; the paper's 1. 0 changes nothing and excludes no token.
        beta: 0 to 1; the paper's 0.1. 0 excludes no token.
        instruction: one of the paper's instructions. Its place right before the question is our choice.
    """

    name: ClassVar[str] = "icd"
    reference: ClassVar[str] = (
        "Wang et al., 2024, Mitigating hallucinations in large vision-language models with instruction contrastive "
        "decoding, equation 6"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 5, "beta": 0}
    needs_images: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True
    asks_again: ClassVar[bool] = True
    has_contrast_path: ClassVar[bool] = True

    alpha: float = number(1.0, 0, 10)
    beta: float = number(0.1, 0, 1)
    instruction: str = text("You are a confused object detector.")

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def create_state(self, context: MethodContext) -> MethodState:
        chats = [insert_instruction(chat, self.instruction) for chat in context.chats]
        batch = build_batch(context.model, chats)
        # with the answer's own pixels, and before there is a cache: a copy would take memory beside it
        inputs = batch.inputs | {"pixel_values": context.batch.inputs["pixel_values"]}

        def create_path() -> ContrastPath:
            return ContrastPath(context.model, inputs, begin_with_same_images(context, batch))

        return ContrastState(create_path, self.combine)

    def combine(self, main: Tensor, contrast: Tensor) -> Tensor:
        """Return new logits from those of the answer and of the contrast path, [batch, vocabulary]."""
        return mask_implausible((1 + self.alpha) * main - self.alpha * contrast, main, self.beta)


def insert_instruction(chat: Chat, instruction: str) -> Chat:
    """Return a chat with an instruction before the user's first text.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> insert_instruction(chat, "Err.").messages[0]["content"][0]["text"]
        'Err. Why?'
    """
    messages = []
    inserted = False
    for message in chat.messages:
        parts = []
        for part in message["content"]:
            if not inserted and message["role"] == "user" and part["type"] == "text":
                part = part | {"text": f"{instruction} {part['text']}"}
                inserted = True
            parts.append(part)
        messages.append(message | {"content": parts})
    return chat._replace(messages=messages)
