"""Self-refine: the model criticises its answer and answers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmprobe.interventions.prompt_method import (
    AskFunction,
    PromptMethod,
    add_diagnostics,
    add_lines,
    text_with_prefill,
)
from mmprobe.interventions.registry import integer, text
from mmprobe.models import Model
from mmprobe.models.prompt import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer


@dataclass(frozen=True)
class SelfRefine(PromptMethod):
    """The answer that the model gives after it has criticised its earlier answer.

    If a chat has a prefill, it is part of the answer that is criticised, and each new answer begins with it.
    The feedback does not begin with it.

    Parameters:
        rounds: 0 to 10, number of refinements; the default, 1, is our choice. 0 is the model's own answer.
        criticise: the request for feedback, after the question and the answer; our wording.
        refine: the request for a new answer, after the question, the answer and the feedback; our wording.
    """

    name: ClassVar[str] = "self-refine"
    reference: ClassVar[str] = "Madaan et al., 2023, Self-refine: iterative refinement with self-feedback"
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"rounds": 0}
    shares_prefix: ClassVar[bool] = True
    asks_again: ClassVar[bool] = True

    rounds: int = integer(1, 0, 10)
    criticise: str = text("What is wrong or missing in this answer?")
    refine: str = text("Answer the question again, better.")

    @property
    def neutral(self) -> bool:
        return self.rounds == 0

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        answers = ask(chats)
        diagnostics: list[dict[str, list[str]]] = [{"answers": [], "feedback": []} for _ in chats]
        for _ in range(self.rounds):
            answer_lines = [
                f"Answer: {text_with_prefill(model, chat, answer)}"
                for chat, answer in zip(chats, answers, strict=True)
            ]
            feedbacks = ask(
                [
                    add_lines(chat, line, self.criticise)._replace(prefill="")
                    for chat, line in zip(chats, answer_lines, strict=True)
                ]
            )
            for details, answer, feedback in zip(diagnostics, answers, feedbacks, strict=True):
                details["answers"].append(answer.text)
                details["feedback"].append(feedback.text)
            answers = ask(
                [
                    add_lines(chat, line, f"Feedback: {feedback.text}", self.refine)
                    for chat, line, feedback in zip(chats, answer_lines, feedbacks, strict=True)
                ]
            )
        return [
            add_diagnostics(answer, self, details)
            for answer, details in zip(answers, diagnostics, strict=True)
        ]
