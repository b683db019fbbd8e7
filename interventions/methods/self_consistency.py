"""Self-consistency: sample several answers, and take the one that agrees most with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmprobe.interventions.prompt_method import AskFunction, PromptMethod, add_diagnostics
from mmprobe.interventions.registry import integer, number
from mmprobe.models import Model
from mmprobe.models.prompt import Chat
from mmprobe.thoughts import drop_thoughts

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer


@dataclass(frozen=True)
class SelfConsistency(PromptMethod):
    """The answer, of several sampled ones, that agrees most with the others.

    The paper votes on a short final answer. Here an answer may have any length, so the vote is our own.
    Answers are of three kinds, without their thoughts: they begin with yes, with no, or with neither. Within the most frequent kind,
    the answer with the largest mean F1 of words with the others wins. If several have it, the earliest wins.

    Parameters:
        answers: 1 to 100, number of answers; 40 in the paper, 5 by default. 1 is the model's own answer and is not
            sampled.
        sampling_temperature: 0 to 10; the paper's 0.7. 0 is the model's own answer.
    """

    name: ClassVar[str] = "self-consistency"
    reference: ClassVar[str] = (
        "Wang et al., 2022, Self-consistency improves chain of thought reasoning in language models"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"answers": 1}
    shares_prefix: ClassVar[bool] = True
    asks_again: ClassVar[bool] = True

    answers: int = integer(5, 1, 100)
    sampling_temperature: float = number(0.7, 0, 10)

    @property
    def neutral(self) -> bool:
        return self.answers == 1 or self.sampling_temperature == 0

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        rounds = [
            ask(chats, temperature=self.sampling_temperature, seed=seed + index)
            for index in range(self.answers)
        ]
        return [self._choose(answers) for answers in zip(*rounds, strict=True)]

    def _choose(self, answers: Sequence[GeneratedAnswer]) -> GeneratedAnswer:
        texts = [answer.text for answer in answers]
        chosen = elect_answer([drop_thoughts(answer.response).strip() for answer in answers])
        return add_diagnostics(answers[chosen], self, {"answers": texts, "chosen": chosen})


def elect_answer(answers: Sequence[str]) -> int:
    """Return the index of the answer that agrees most with the others.

    Example:
        >>> elect_answer(["No.", "Yes, a star.", "Yes, a red star.", "Yes, a red star moved."])
        2
    """
    words = [answer.casefold().replace(",", " ").replace(".", " ").split() for answer in answers]
    kinds = [tokens[0] if tokens and tokens[0] in ("yes", "no") else "" for tokens in words]
    votes = Counter(kinds)
    winner = max(votes, key=lambda kind: (votes[kind], -kinds.index(kind)))
    candidates = [index for index, kind in enumerate(kinds) if kind == winner]

    def agreement(index: int) -> float:
        return sum(_word_f1(words[index], words[other]) for other in candidates if other != index)

    return max(candidates, key=agreement)


def _word_f1(left: Sequence[str], right: Sequence[str]) -> float:
    """Return the F1 of two multisets of words; it is 1 for two empty ones."""
    if not left and not right:
        return 1.0
    return 2 * sum((Counter(left) & Counter(right)).values()) / (len(left) + len(right))
