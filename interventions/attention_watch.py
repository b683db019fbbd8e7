"""What methods share that look again where the first answer's attention was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.prompt_method import Ask, PromptMethod, noting, whole_answer
from mmprobe.interventions.visual import AttentionMap
from mmprobe.models import Model, Prompt
from mmprobe.models.attention_bias import LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch

if TYPE_CHECKING:
    from mmprobe.interventions.generate import Generated


@dataclass(frozen=True)
class AttentionWatch(Method):
    """Changes nothing and reports the attention of the answer's queries to each visual token."""

    name: ClassVar[str] = "watch"

    def begin(self, asked: MethodContext) -> MethodState:
        return AttentionRecorder(asked)


class AttentionRecorder(MethodState):
    def __init__(self, asked: MethodContext):
        self.asked, self.step = asked, 0
        self.ends = torch.tensor(sorted(asked.model.eos_token_ids), device=asked.model.device)
        self.map = AttentionMap(asked)  # of the step that is being read
        self.total = torch.zeros_like(self.map.total)
        self.count = torch.zeros(len(self.total), device=asked.model.device)  # layers and steps of each row

    def layers(self) -> Sequence[int]:
        return range(self.asked.model.n_layers)

    def shift(self, layer: int, last: LastQuery) -> None:
        self.map.add(last.weights(), self.step)

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        going = ~(generated[..., None] == self.ends).any((1, 2))  # the others read padding
        self.total += torch.where(going[:, None], self.map.total, 0)
        self.count += going * self.map.layers
        self.map, self.step = AttentionMap(self.asked), self.step + 1
        return scores

    def report(self, row: int, steps: int) -> dict[str, Any]:
        prompt = self.asked.batch.prompts[row]
        visual = torch.from_numpy(prompt.visual_positions + prompt.padding)
        return {"attention": (self.total[row, visual] / self.count[row]).tolist()}


@dataclass(frozen=True)
class LookAgain(PromptMethod):
    """Asks once, watching, and has the map of attention for what it asks next."""

    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        watched = ask(chats, extra=[AttentionWatch()])
        again, told = [], []
        for chat, first in zip(chats, watched, strict=True):
            attention = np.array(first.diagnostics["watch"]["attention"])  # float64 [visual]
            prompt = build_batch(model, [chat]).prompts[0]
            asked, of_look = self.look_again(chat, prompt, whole_answer(model, chat, first), attention)
            again.append(asked)
            told.append({"first": first.text} | of_look)
        return [noting(each, self, mine) for each, mine in zip(ask(again), told, strict=True)]

    def look_again(
        self, chat: Chat, prompt: Prompt, first: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        """What is asked next, from the first answer and its attention to each visual token; and what to tell of it."""
        raise NotImplementedError
