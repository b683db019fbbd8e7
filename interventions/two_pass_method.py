"""The base class of methods that ask again according to the attention of the first answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.prompt_method import AskFunction, PromptMethod, add_diagnostics, text_with_prefill
from mmprobe.interventions.visual import AttentionMap
from mmprobe.models import Model, Prompt
from mmprobe.models.attention_bias import LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer


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
