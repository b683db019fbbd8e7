"""The base classes of methods that ask the model again instead of changing how it decodes.

A two-pass method asks again according to the attention of the first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.visual import AttentionMap
from mmprobe.models import Batch, Model, Prompt
from mmprobe.models.attention import LastQuery
from mmprobe.models.prompt import Chat, build_batch
from mmprobe.models.reading import SharedStart

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer


Start = Callable[[Sequence[Chat], Batch], SharedStart | None]
"""Returns where a batch of chats starts after what was read already, or None if it is read whole."""


class AskFunction(Protocol):
    """A function that answers chats together, with the decoding-time methods that act beside a prompt method.

    Its temperature and seed are those of `generate` unless they are given. The methods in `extra` act as
    well.

    Attributes:
        start: returns where a batch of the chats starts after what was read already of prompts with their images, or None
            if it is read whole.
    """

    @property
    def start(self) -> Start: ...

    def __call__(
        self,
        chats: Sequence[Chat],
        *,
        temperature: float | None = ...,
        seed: int | None = ...,
        extra: Sequence[Method] = (),
    ) -> list[GeneratedAnswer]: ...


@dataclass(frozen=True)
class PromptMethod(Method):
    """A method that asks the model one or more times and chooses or builds the answer.

    Attributes:
        exclusive: whether the method decodes by itself, so that no other method and no temperature can act.
    """

    exclusive: ClassVar[bool] = False

    def create_state(self, context: MethodContext) -> MethodState:
        """Return a state that does nothing while the model decodes."""
        return MethodState()

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        """Return one answer for each chat.

        Args:
            model: the model that answers.
            chats: the chats to answer.
            ask: answers chats with the model.
            seed: seed of `generate`.
            max_new_tokens: maximum number of tokens of each answer.
        """
        raise NotImplementedError


def add_diagnostics(
    answer: GeneratedAnswer, method: Method, diagnostics: Mapping[str, Any]
) -> GeneratedAnswer:
    """Return an answer with the diagnostics of a method added under the method's name."""
    return answer._replace(diagnostics=answer.diagnostics | {method.name: dict(diagnostics)})


def text_with_prefill(model: Model, chat: Chat, answer: GeneratedAnswer) -> str:
    """Return the text of a chat's prefill and of the answer after it.

    Their tokens are decoded together, because some tokenizers drop a blank at the beginning of a text.
    """
    if not chat.prefill:
        return answer.text
    prefill_ids = model.tokenizer(chat.prefill, add_special_tokens=False)["input_ids"]
    return model.tokenizer.decode([*prefill_ids, *answer.token_ids], skip_special_tokens=True)


def find_last_text(parts: list[dict[str, Any]]) -> int:
    """Return the index of the last text among the parts of a turn; one without any gets an empty one at its end.

    Example:
        >>> find_last_text(parts := [{"type": "image"}]), parts
        (1, [{'type': 'image'}, {'type': 'text', 'text': ''}])
    """
    texts = [index for index, part in enumerate(parts) if part["type"] == "text"]
    if not texts:
        parts.append({"type": "text", "text": ""})
    return texts[-1] if texts else len(parts) - 1


def add_lines(chat: Chat, *lines: str) -> Chat:
    """Return a chat with lines of text added to the end of the user's last text.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> add_lines(chat, "Answer: so.").messages[0]["content"][0]["text"]
        'Why?\\nAnswer: so.'
    """
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    last = find_last_text(parts)
    parts[last] = parts[last] | {"text": "\n".join([*filter(None, [parts[last]["text"]]), *lines])}
    return chat._replace(messages=messages)


@dataclass(frozen=True)
class AttentionRecorder(Method):
    """A method that changes nothing and reports the answer's mean attention to each visual token."""

    name: ClassVar[str] = "attention-recorder"
    shares_prefix: ClassVar[bool] = True

    def create_state(self, context: MethodContext) -> MethodState:
        return _AttentionRecorderState(context)


class _AttentionRecorderState(MethodState):
    def __init__(self, context: MethodContext):
        device = context.model.device
        self.context = context
        self.step = 0
        self.eos_token_ids = torch.tensor(sorted(context.model.eos_token_ids), device=device)
        self.map = AttentionMap(context)  # of the current step
        self.total = torch.zeros_like(self.map.total)  # sum over steps and layers, [batch, token]
        self.count = torch.zeros(len(self.total), device=device)  # steps times layers of each row

    def attention_layers(self) -> Sequence[int]:
        return range(self.context.model.n_layers)

    def attention_bias(self, layer: int, last_query: LastQuery) -> None:
        self.map.add_layer(last_query.weights(), self.step)

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        unfinished = ~(generated[..., None] == self.eos_token_ids).any((1, 2))  # finished rows read padding
        self.total += torch.where(unfinished[:, None], self.map.total, 0)
        self.count += unfinished * self.map.n_layers
        self.map = AttentionMap(self.context)
        self.step += 1
        return logits

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return `attention`: the mean over steps, layers and heads for each visual token."""
        prompt = self.context.batch.prompts[row]
        visual = torch.from_numpy(prompt.visual_positions + prompt.padding)
        return {"attention": (self.total[row, visual] / self.count[row]).tolist()}


@dataclass(frozen=True)
class TwoPassMethod(PromptMethod):
    """A method that answers twice and builds the second chat from the first answer and its attention."""

    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        recorder = AttentionRecorder()
        second_chats, diagnostics = [], []
        for chat, first in zip(chats, ask(chats, extra=[recorder]), strict=True):
            attention = np.array(first.diagnostics[recorder.name]["attention"])  # float64 [visual]
            prompt = build_batch(model, [chat]).prompts[0]
            text = text_with_prefill(model, chat, first)
            second_chat, details = self.build_second_chat(chat, prompt, text, attention)
            second_chats.append(second_chat)
            diagnostics.append({"first": first.text} | details)
        second_answers = ask(second_chats)
        return [
            add_diagnostics(answer, self, details)
            for answer, details in zip(second_answers, diagnostics, strict=True)
        ]

    def build_second_chat(
        self, chat: Chat, prompt: Prompt, first_answer: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        """Return the second chat, and what the diagnostics say of it.

        Args:
            chat: the first chat.
            prompt: the prompt of the first chat.
            first_answer: text of the first answer, with the prefill.
            attention: mean attention of the first answer to each visual token, float64 [visual].
        """
        raise NotImplementedError
