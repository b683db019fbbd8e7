"""The base class of methods that ask the model again instead of changing how it decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.models import Model
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer


class AskFunction(Protocol):
    """A function that answers chats together, with the decoding-time methods that act beside a prompt method.

    Its temperature and seed are those of `generate` unless they are given. The methods in `extra` act as
    well.
    """

    def __call__(
        self,
        chats: Sequence[Chat],
        *,
        temperature: float = ...,
        seed: int = ...,
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


def append_lines(chat: Chat, *lines: str) -> Chat:
    """Return a chat with lines of text added to the end of the user's last text.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> append_lines(chat, "Answer: so.").messages[0]["content"][0]["text"]
        'Why?\\nAnswer: so.'
    """
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    last = max(index for index, part in enumerate(parts) if part["type"] == "text")
    parts[last] = parts[last] | {"text": "\n".join([parts[last]["text"], *lines])}
    return chat._replace(messages=messages)
