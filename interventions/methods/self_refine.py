"""Self-refine: the model criticises its answer and answers anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmprobe.interventions.parameters import text, whole
from mmprobe.models import Model
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.generate import Generated
from mmprobe.interventions.prompt_method import Ask, PromptMethod, followed, noting, whole_answer


@dataclass(frozen=True)
class SelfRefine(PromptMethod):
    """The model criticises its answer and answers anew.

    A sample's prefill is part of the answer that is criticised, and each new answer begins with it too, since an answer
    is what follows the prefill; the feedback does not.

    Parameters:
        rounds: 0 to 10; ours, 1. 0 is the model's own answer.
        criticise, refine: what is asked, behind the question and the answer; ours.
    """

    name: ClassVar[str] = "self-refine"
    reference: ClassVar[str] = "Madaan et al., 2023, Self-refine: iterative refinement with self-feedback"

    rounds: int = whole(1, 0, 10, "how often the answer is refined")
    criticise: str = text("What is wrong or missing in this answer?", "the question for feedback")
    refine: str = text("Answer the question again, better.", "the request for another answer")

    @property
    def neutral(self) -> bool:
        return self.rounds == 0

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        found = ask(chats)
        told: list[dict[str, list[str]]] = [{"answers": [], "feedback": []} for _ in chats]
        for _ in range(self.rounds):
            stated = [
                f"Answer: {whole_answer(model, chat, each)}" for chat, each in zip(chats, found, strict=True)
            ]
            criticised = ask(
                [
                    followed(chat, answer, self.criticise)._replace(prefill="")
                    for chat, answer in zip(chats, stated, strict=True)
                ]
            )
            for mine, answer, feedback in zip(told, found, criticised, strict=True):
                mine["answers"].append(answer.text)
                mine["feedback"].append(feedback.text)
            found = ask(
                [
                    followed(chat, answer, f"Feedback: {feedback.text}", self.refine)
                    for chat, answer, feedback in zip(chats, stated, criticised, strict=True)
                ]
            )
        return [noting(each, self, mine) for each, mine in zip(found, told, strict=True)]
