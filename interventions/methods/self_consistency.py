"""Self-consistency: several sampled answers, of which the one that agrees most with the others is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmprobe.interventions.parameters import number, whole
from mmprobe.models import Model
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.generate import Generated
from mmprobe.interventions.prompt_method import Ask, PromptMethod, noting


@dataclass(frozen=True)
class SelfConsistency(PromptMethod):
    """Several sampled answers, of which the one that agrees most with the others is taken.

    The paper votes on a short final answer; answers here may be of any length, so the vote is ours: those that begin
    with yes, with no, and with neither are counted, and among the most frequent kind the answer with the largest
    mean F1 of words with the others of its kind wins, the earliest where several do.

    Parameters:
        answers: 1 to 100; the paper draws 40, ours 5. 1 is the model's own answer, not a sampled one.
        sampling_temperature: 0 to 10; the paper's 0.7.
    """

    name: ClassVar[str] = "self-consistency"
    reference: ClassVar[str] = (
        "Wang et al., 2022, Self-consistency improves chain of thought reasoning in language models"
    )

    answers: int = whole(5, 1, 100, "answers that are drawn")
    sampling_temperature: float = number(0.7, 0, 10, "temperature that they are drawn at")

    @property
    def neutral(self) -> bool:
        return self.answers == 1 or self.sampling_temperature == 0

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        rounds = [
            ask(chats, temperature=self.sampling_temperature, seed=seed + index)
            for index in range(self.answers)
        ]
        return [self._chosen(drawn) for drawn in zip(*rounds, strict=True)]

    def _chosen(self, drawn: Sequence[Generated]) -> Generated:
        texts = [each.text for each in drawn]
        chosen = elected(texts)
        return noting(drawn[chosen], self, {"answers": texts, "chosen": chosen})


def elected(answers: Sequence[str]) -> int:
    """Which of several answers agrees most with the others.

    Example:
        >>> elected(["No.", "Yes, a star.", "Yes, a red star.", "Yes, a red star moved."])
        2
    """
    words = [each.casefold().replace(",", " ").replace(".", " ").split() for each in answers]
    kinds = [own[0] if own and own[0] in ("yes", "no") else "" for own in words]
    votes = Counter(kinds)
    kind = max(votes, key=lambda each: (votes[each], -kinds.index(each)))
    members = [index for index, each in enumerate(kinds) if each == kind]
    return max(
        members, key=lambda mine: sum(_f1(words[mine], words[other]) for other in members if other != mine)
    )


def _f1(one: Sequence[str], other: Sequence[str]) -> float:
    """Of two multisets of words; two empty ones are alike."""
    if not one and not other:
        return 1.0
    return 2 * sum((Counter(one) & Counter(other)).values()) / (len(one) + len(other))
