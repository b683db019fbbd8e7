"""Methods that ask again instead of changing how the model decodes: self-consistency and self-refine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mmprobe.interventions.base import Act, Asked, Method
from mmprobe.interventions.parameters import number, text, whole
from mmprobe.models import Model
from mmprobe.models.prompt import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.answer import Generated


class Ask(Protocol):
    """Answers chats together as `generate` was told to, with the decoding-time methods that act beside this one."""

    def __call__(
        self,
        chats: Sequence[Chat],
        *,
        temperature: float = ...,
        seed: int = ...,
        extra: Sequence[Method] = (),
    ) -> list[Generated]: ...


@dataclass(frozen=True)
class PromptMethod(Method):
    """A method by what it asks.

    Attributes:
        alone: whether no decoding-time method can act beside it, and no temperature.
    """

    alone: ClassVar[bool] = False

    def begin(self, asked: Asked) -> Act:
        """It does nothing while the model decodes."""
        return Act()

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        """Of each chat the answer that is left of several, of up to `limit` tokens each."""
        raise NotImplementedError


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


def noting(found: Generated, method: Method, told: Mapping[str, Any]) -> Generated:
    """The answer with what a method has to say of it."""
    return found._replace(diagnostics=found.diagnostics | {method.name: dict(told)})


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


def whole_answer(model: Model, chat: Chat, found: Generated) -> str:
    """An answer's text behind the chat's prefill, decoded together, since some tokenizers drop a blank at the start."""
    if not chat.prefill:
        return found.text
    begun = model.tokenizer(chat.prefill, add_special_tokens=False)["input_ids"]
    return model.tokenizer.decode([*begun, *found.token_ids], skip_special_tokens=True)


def followed(chat: Chat, *texts: str) -> Chat:
    """The chat with texts, each in lines of its own, behind the last text of its user.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> followed(chat, "Answer: so.").messages[0]["content"][0]["text"]
        'Why?\\nAnswer: so.'
    """
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    last = max(index for index, part in enumerate(parts) if part["type"] == "text")
    parts[last] = parts[last] | {"text": "\n".join([parts[last]["text"], *texts])}
    return chat._replace(messages=messages)
