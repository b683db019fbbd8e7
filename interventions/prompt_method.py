"""What methods share that ask the model again instead of changing how it decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.models import Model
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.generate import Generated


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

    def begin(self, asked: MethodContext) -> MethodState:
        """It does nothing while the model decodes."""
        return MethodState()

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        """Of each chat the answer that is left of several, of up to `limit` tokens each."""
        raise NotImplementedError


def noting(found: Generated, method: Method, told: Mapping[str, Any]) -> Generated:
    """The answer with what a method has to say of it."""
    return found._replace(diagnostics=found.diagnostics | {method.name: dict(told)})


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
